"""Probing teachers over real gRPC: which are admitted, which are refused, and why."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from edl.coordinator.manager.prober import INSTANCE_KEY, SIDECAR, GrpcProber, ProbeVerdict
from edl.coordinator.store.records import Member
from edl.proto.security import instance
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.tests.coordinator.scripted_manager import served
from edl.tests.foreign_server import MODEL, ForeignServer, Kind, start
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.scripted_teacher import ScriptedTeacher
from edl.tests.waiting import DEADLINE_S, wait_until

THREADS = 8  # of a scripted teacher


class Teachers(ScriptedTeacher):
    """Any number of teachers behind one address; their keys are what a test says."""

    def __init__(self, security: ServerSecurity | None = None) -> None:
        self.keys: dict[str, str] = {}
        self.incarnation = 7
        self.vouched = ""
        self.peers: set[str] = set()
        self.busy = self.most = 0
        self.free = threading.Event()
        self.free.set()
        self._lock = threading.Lock()
        super().__init__(security=security)

    def _server_metadata(self, request: Any, context: Any) -> Any:
        with self._lock:
            self.peers.add(context.peer())
            self.busy += 1
            self.most = max(self.most, self.busy)
        self.free.wait(DEADLINE_S)
        with self._lock:
            self.busy -= 1
        asked = dict(context.invocation_metadata())
        name, challenge, start = asked["edl-instance"], asked["edl-challenge"], self.incarnation
        if name in self.keys:
            proof = instance.prove(self.keys[name], name, start, challenge, self.vouched)
            context.set_trailing_metadata((("edl-proof", proof), ("edl-incarnation", str(start))))
        return super()._server_metadata(request, context)


@contextmanager
def teachers(security: ServerSecurity | None = None) -> Iterator[Teachers]:
    found = Teachers(security)
    try:
        yield found
    finally:
        found.free.set()
        found.stop()


@pytest.fixture
def mesh() -> Iterator[Teachers]:
    with teachers() as mesh:
        yield mesh


@contextmanager
def probing(
    security: ClientSecurity | None = None, answer_s: float = DEADLINE_S, **more: int
) -> Iterator[GrpcProber]:
    prober = GrpcProber(security, answer_s=answer_s, **more)
    try:
        yield prober
    finally:
        prober.stop()


@pytest.fixture
def prober() -> Iterator[GrpcProber]:
    with probing() as prober:
        yield prober


@pytest.fixture
def hasty() -> Iterator[GrpcProber]:
    """For a test that waits until it has given up."""
    with probing(answer_s=0.5) as prober:
        yield prober


def member(address: str, name: str = "t1", **facts: str) -> Member:
    known = {"incarnation": "7", "address": address, INSTANCE_KEY: instance.new_key()}
    return Member(name, {**known, **facts})


def probe(prober: GrpcProber, asked: Member) -> ProbeVerdict:
    answers: queue.SimpleQueue[ProbeVerdict] = queue.SimpleQueue()
    prober.probe("s", asked, answers.put)
    return answers.get(timeout=3 * DEADLINE_S)


def keyed(mesh: Teachers, name: str = "t1") -> Member:
    mesh.keys[name] = instance.new_key()
    return member(mesh.address, name, **{INSTANCE_KEY: mesh.keys[name]})


def refused(verdict: ProbeVerdict, why: str, *, retry: bool = False) -> bool:
    return (verdict.status, why in verdict.why) == ("retry" if retry else "never", True)


def test_a_teacher_proves_that_it_holds_its_key(mesh: Teachers, prober: GrpcProber) -> None:
    asked = keyed(mesh)
    assert probe(prober, asked) == ProbeVerdict("ok")
    oip = replace(asked, facts={**asked.facts, "protocol": "oip"})
    assert probe(prober, oip) == ProbeVerdict("ok")
    stolen = {**asked.facts, "address": "127.0.0.1:9", SIDECAR: mesh.address}
    assert refused(probe(prober, replace(asked, facts=stolen)), "an impostor")
    mesh.incarnation = 8
    assert refused(probe(prober, asked), "an impostor")
    mesh.incarnation, mesh.keys["t1"] = 7, instance.new_key()
    assert refused(probe(prober, asked), f"another server answers at {mesh.address}")
    del mesh.keys["t1"]
    assert refused(probe(prober, asked), "an impostor")


def test_what_cannot_be_a_teacher_is_refused(mesh: Teachers, prober: GrpcProber) -> None:
    keyless = member(mesh.address, **{INSTANCE_KEY: ""})
    assert refused(probe(prober, keyless), "edl teacher register")
    pigeon = member(mesh.address, protocol="carrier-pigeon")
    assert refused(probe(prober, pigeon), "carrier-pigeon")
    with served() as manager:
        assert refused(probe(prober, member(manager.address)), "Open Inference Protocol")
    for address in ("", "host", "host:", ":1", "host:0", "host:99999", "höst:1"):
        assert refused(probe(prober, member(address)), "host:port")


@pytest.fixture(params=get_args(Kind))
def foreign(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = start(request.param)
    yield server
    server.stop()


def vouched(mesh: Teachers, foreign: ForeignServer, **facts: str) -> Member:
    """A foreign server, and the teacher that vouches for it."""
    asked = keyed(mesh)
    mesh.vouched = foreign.address
    own = {"address": foreign.address, SIDECAR: mesh.address, "model": MODEL}
    return replace(asked, facts={**asked.facts, **own, **facts})


def test_a_foreign_server_is_admitted_on_its_vouchers_proof(
    mesh: Teachers, prober: GrpcProber, hasty: GrpcProber, foreign: ForeignServer
) -> None:
    asked = vouched(mesh, foreign)
    assert probe(prober, asked) == ProbeVerdict("ok")
    pigeon = vouched(mesh, foreign, protocol="carrier-pigeon")
    assert refused(probe(prober, pigeon), "no client speaks 'carrier-pigeon'")
    asked = vouched(mesh, foreign)
    # A stranger that writes another address into the registry has put a server of its own there.
    for other in ("127.0.0.1:9", ""):
        mesh.vouched = other
        assert refused(probe(prober, asked), "an impostor")
    foreign.ready = False
    assert refused(probe(prober, vouched(mesh, foreign)), "is not ready", retry=True)
    foreign.stop()
    assert refused(probe(hasty, vouched(mesh, foreign)), "", retry=True)


def test_a_teacher_that_does_not_answer_is_asked_again_later(hasty: GrpcProber) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for address in (f"127.0.0.1:{silent.getsockname()[1]}", "127.0.0.1:1"):
            verdict = probe(hasty, member(address))
            assert refused(verdict, f"does not answer at {address}", retry=True)


@pytest.mark.parametrize("at_once", [THREADS, 3])
def test_so_many_probes_side_by_side_share_a_connection(
    mesh: Teachers, at_once: int, caplog: pytest.LogCaptureFixture
) -> None:
    members = [keyed(mesh, f"t{n}") for n in range(THREADS)]
    mesh.free.clear()
    answers: queue.SimpleQueue[ProbeVerdict] = queue.SimpleQueue()

    def answered(verdict: ProbeVerdict) -> None:
        answers.put(verdict)
        raise RuntimeError("the manager's own mistake, which ends nothing")

    with probing(at_once=at_once) as prober:
        for each in members:
            prober.probe("s", each, answered)
        wait_until(lambda: mesh.busy == at_once)
        first = {*mesh.peers}
        assert len(first) == 1
        mesh.free.set()
        assert all(answers.get(timeout=DEADLINE_S).status == "ok" for _ in members)
        wait_until(
            lambda: (
                sum("the callback of a probe failed" in text for text in caplog.messages) == THREADS
            )
        )
        assert mesh.most == at_once
        mesh.peers.clear()
        assert probe(prober, members[0]).status == "ok"
        assert not mesh.peers & first, "the connection was closed when nobody was probed"


def test_a_probe_that_waits_is_not_queued_again(mesh: Teachers) -> None:
    told: queue.SimpleQueue[str] = queue.SimpleQueue()
    with probing(at_once=1) as prober:
        mesh.free.clear()
        prober.probe("s", keyed(mesh), lambda _: told.put("first"))
        wait_until(lambda: mesh.busy == 1)
        waiting = keyed(mesh, "t2")
        for number in range(3):
            prober.probe("s", waiting, partial(lambda name, _: told.put(name), f"second {number}"))
        prober.probe("s", keyed(mesh, "t3"), lambda _: told.put("third"))
        mesh.free.set()
        found = [told.get(timeout=DEADLINE_S) for _ in range(3)]
        assert found == ["first", "second 0", "third"]
        assert probe(prober, waiting).status == "ok"


def test_after_its_end_nobody_is_told(mesh: Teachers, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping, shutdown = threading.Event(), ThreadPoolExecutor.shutdown

    def noted(*args: Any, **options: Any) -> None:
        stopping.set()
        shutdown(*args, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", noted)
    prober = GrpcProber(answer_s=DEADLINE_S)
    told: list[Any] = []
    mesh.free.clear()
    prober.probe("s", keyed(mesh), told.append)
    wait_until(lambda: mesh.busy == 1)
    thread = threading.Thread(target=prober.stop)
    thread.start()
    assert stopping.wait(DEADLINE_S)
    mesh.free.set()
    thread.join(DEADLINE_S)
    prober.probe("s", keyed(mesh), told.append)
    prober.stop()
    assert not told


def test_with_certificates_and_a_token(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = write_secret(tmp_path / "tokens", "viewer:manager a-token\n")
    ours = authority.issue("manager", "viewer:manager")
    right = ClientSecurity(ours, write_secret(tmp_path / "right", "a-token"))
    wrong = ClientSecurity(ours, write_secret(tmp_path / "wrong", "another"))
    missing = ClientSecurity(ours, tmp_path / "no-such-file")
    with teachers(ServerSecurity(authority.issue("teacher"), tokens)) as mesh:
        asked = keyed(mesh)
        for security, ok, said in (
            (right, True, ""),
            (wrong, False, "refuses the manager's probe"),
            (missing, False, "no-such-file"),
            (None, False, "does not answer"),
        ):
            with probing(security, answer_s=DEADLINE_S if security else 0.5) as prober:
                verdict = probe(prober, asked)
            assert verdict.status == ("ok" if ok else "retry")
            assert said in verdict.why
