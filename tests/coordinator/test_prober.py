"""Probing teachers over real gRPC: who answers, who proves it, and who is refused and why."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import grpc
import pytest

from edl.coordinator.manager.admission import Verdict
from edl.coordinator.manager.prober import INSTANCE_KEY, VOUCHER, GrpcProber
from edl.coordinator.registry import Member
from edl.errors import AccessError
from edl.proto import inference_pb2 as pb
from edl.proto.security import ClientSecurity, Gate, ServerSecurity, instance, listen
from edl.proto.status import to_status
from edl.tests.coordinator.scripted_manager import served
from edl.tests.foreign_server import MODEL, ForeignServer, Kind, start
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority, write_secret

_SERVICE = "inference.GRPCInferenceService"


class Teachers:
    """Any number of teachers behind one address; their keys are what a test says."""

    def __init__(self, security: ServerSecurity | None = None) -> None:
        self.keys: dict[str, str] = {}
        self.incarnation = 7
        self.vouched = ""
        self.peers: set[str] = set()
        self.busy = 0
        self.most = 0
        self.free = threading.Event()
        self.free.set()
        self._gate = Gate(security)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(16)
        methods = {"ServerMetadata": self._metadata}
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(method) for name, method in methods.items()
        }
        self._server = grpc.server(self._threads)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(_SERVICE, handlers),)
        )
        self.address = f"127.0.0.1:{listen(self._server, '127.0.0.1:0', security)}"
        self._server.start()

    def stop(self) -> None:
        self.free.set()
        self._server.stop(0).wait()
        self._threads.shutdown()

    def _metadata(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        self._admit(context)
        asked = {name: str(value) for name, value in context.invocation_metadata()}
        name = asked["edl-instance"]
        if name in self.keys:
            proof = instance.prove(
                self.keys[name], name, self.incarnation, asked["edl-challenge"], self.vouched
            )
            context.set_trailing_metadata(
                (("edl-proof", proof), ("edl-incarnation", str(self.incarnation)))
            )
        return pb.ServerMetadataResponse(name="t").SerializeToString()

    def _admit(self, context: grpc.ServicerContext) -> None:
        try:
            self._gate.admit(context.invocation_metadata(), context.auth_context())
        except AccessError as error:
            context.abort(*to_status(error))
        with self._lock:
            self.peers.add(context.peer())
            self.busy += 1
            self.most = max(self.most, self.busy)
        self.free.wait(20.0)
        with self._lock:
            self.busy -= 1


@contextmanager
def teachers(security: ServerSecurity | None = None) -> Iterator[Teachers]:
    found = Teachers(security)
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def mesh() -> Iterator[Teachers]:
    with teachers() as mesh:
        yield mesh


@pytest.fixture
def prober() -> Iterator[GrpcProber]:
    prober = GrpcProber(answer_s=20.0)
    yield prober
    prober.stop()


@pytest.fixture
def hasty() -> Iterator[GrpcProber]:
    """For a test that waits until it has given up."""
    prober = GrpcProber(answer_s=2.0)
    yield prober
    prober.stop()


def member(address: str, name: str = "t1", **facts: str) -> Member:
    return Member(
        name, {"incarnation": "7", "address": address, INSTANCE_KEY: instance.new_key(), **facts}
    )


def probe(prober: GrpcProber, asked: Member) -> Verdict:
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    prober.probe("s", asked, answers.put)
    return answers.get(timeout=45.0)  # one asks a voucher and the server that it speaks for


def keyed(mesh: Teachers, name: str = "t1") -> Member:
    """A teacher that holds its key."""
    mesh.keys[name] = instance.new_key()
    return member(mesh.address, name, **{INSTANCE_KEY: mesh.keys[name]})


def test_who_holds_the_key_is_admitted(mesh: Teachers, prober: GrpcProber) -> None:
    assert probe(prober, keyed(mesh)) == Verdict(True)


def test_who_holds_another_key_is_an_impostor(mesh: Teachers, prober: GrpcProber) -> None:
    asked = keyed(mesh)
    mesh.keys["t1"] = instance.new_key()
    verdict = probe(prober, asked)
    assert (verdict.ok, verdict.retry) == (False, False)
    assert verdict.why == (
        f"another server answers at {mesh.address}: an impostor or an old address"
    )


def test_who_proves_nothing_or_for_another_start_is_an_impostor(
    mesh: Teachers, prober: GrpcProber
) -> None:
    asked = keyed(mesh)
    mesh.incarnation = 8
    assert "an impostor" in probe(prober, asked).why
    del mesh.keys["t1"]
    assert "an impostor" in probe(prober, asked).why


def test_who_registered_no_key_is_nobody(mesh: Teachers, prober: GrpcProber) -> None:
    verdict = probe(prober, member(mesh.address, **{INSTANCE_KEY: ""}))
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "edl teacher register" in verdict.why


@pytest.fixture(params=get_args(Kind))
def foreign(request: pytest.FixtureRequest) -> Iterator[ForeignServer]:
    server = start(request.param)
    yield server
    server.stop()


def vouched(mesh: Teachers, foreign: ForeignServer, **facts: str) -> Member:
    """A foreign server, and the teacher that vouches for it."""
    asked = keyed(mesh)
    mesh.vouched = foreign.address
    own = {"address": foreign.address, VOUCHER: mesh.address, "model": MODEL}
    return replace(asked, facts={**asked.facts, **own, **facts})


def test_a_foreign_server_is_admitted_on_its_vouchers_proof(
    mesh: Teachers, prober: GrpcProber, foreign: ForeignServer
) -> None:
    assert probe(prober, vouched(mesh, foreign)) == Verdict(True)


def test_a_voucher_speaks_for_one_address_only(
    mesh: Teachers, prober: GrpcProber, foreign: ForeignServer
) -> None:
    """Whoever has written another address into the registry has put a server of his own there."""
    asked = vouched(mesh, foreign)
    mesh.vouched = "127.0.0.1:9"
    verdict = probe(prober, asked)
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "an impostor" in verdict.why
    mesh.vouched = ""
    assert "an impostor" in probe(prober, asked).why


def test_a_teacher_of_ours_is_no_voucher(mesh: Teachers, prober: GrpcProber) -> None:
    """Its proof is for itself, not for any address that somebody writes beside its key."""
    asked = keyed(mesh)
    stolen = {**asked.facts, "address": "127.0.0.1:9", VOUCHER: mesh.address}
    assert "an impostor" in probe(prober, replace(asked, facts=stolen)).why


def test_a_foreign_server_has_to_answer_where_students_find_it(
    mesh: Teachers, prober: GrpcProber, hasty: GrpcProber, foreign: ForeignServer
) -> None:
    foreign.ready = False
    verdict = probe(prober, vouched(mesh, foreign))
    assert (verdict.ok, verdict.retry) == (False, True)
    assert "is not ready" in verdict.why
    foreign.stop()
    verdict = probe(hasty, vouched(mesh, foreign))
    assert (verdict.ok, verdict.retry) == (False, True)


def test_a_foreign_server_of_a_protocol_that_nobody_speaks(
    mesh: Teachers, prober: GrpcProber, foreign: ForeignServer
) -> None:
    verdict = probe(prober, vouched(mesh, foreign, protocol="carrier-pigeon"))
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "no client speaks 'carrier-pigeon'" in verdict.why


def test_who_does_not_answer_is_asked_again_later(hasty: GrpcProber) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_at = f"127.0.0.1:{silent.getsockname()[1]}"
        begin = time.monotonic()
        for address in (silent_at, "127.0.0.1:1"):
            verdict = probe(hasty, member(address))
            assert (verdict.ok, verdict.retry) == (False, True)
            assert f"does not answer at {address}" in verdict.why
        assert time.monotonic() - begin < 8.0


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:0", "host:99999", "höst:1"])
def test_an_address_that_is_none_is_refused(prober: GrpcProber, address: str) -> None:
    verdict = probe(prober, member(address))
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "host:port" in verdict.why


def test_a_protocol_that_no_student_speaks_is_refused(mesh: Teachers, prober: GrpcProber) -> None:
    asked = keyed(mesh)
    assert probe(prober, replace(asked, facts={**asked.facts, "protocol": "oip"})).ok
    verdict = probe(prober, member(mesh.address, protocol="carrier-pigeon"))
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "carrier-pigeon" in verdict.why


def test_a_server_of_another_kind_is_refused(prober: GrpcProber) -> None:
    with served() as manager:
        verdict = probe(prober, member(manager.address))
    assert (verdict.ok, verdict.retry) == (False, False)
    assert "Open Inference Protocol" in verdict.why


def test_teachers_behind_one_address_share_a_connection(mesh: Teachers, prober: GrpcProber) -> None:
    members = [keyed(mesh, f"t{n}") for n in range(40)]
    mesh.free.clear()  # all are asked while the first is
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    for each in members:
        prober.probe("s", each, answers.put)
    wait_for(lambda: mesh.busy > 1)
    wait_for(lambda: prober._users[mesh.address] == len(members))
    mesh.free.set()
    assert all(answers.get(timeout=20.0).ok for _ in members)
    assert len(mesh.peers) == 1
    wait_for(lambda: not prober._channels)  # nothing is kept when nobody is probed


def test_so_many_are_probed_side_by_side(mesh: Teachers) -> None:
    prober = GrpcProber(at_once=3, answer_s=20.0)
    mesh.free.clear()
    answers: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
    for number in range(9):
        prober.probe("s", keyed(mesh, f"t{number}"), answers.put)
    wait_for(lambda: mesh.busy == 3)
    mesh.free.set()
    assert all(answers.get(timeout=20.0).ok for _ in range(9))
    assert mesh.most == 3
    prober.stop()


def test_a_callback_that_fails_ends_nothing(
    mesh: Teachers, prober: GrpcProber, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(verdict: Verdict) -> None:
        raise RuntimeError("the manager's own mistake")

    prober.probe("s", keyed(mesh), failing)
    wait_for(lambda: any("probe" in record.getMessage() for record in caplog.records))
    assert probe(prober, keyed(mesh)).ok


def test_after_its_end_nobody_is_told_anything(mesh: Teachers) -> None:
    prober = GrpcProber(answer_s=20.0)
    told: list[Any] = []
    mesh.free.clear()
    prober.probe("s", keyed(mesh), told.append)
    wait_for(lambda: mesh.busy == 1)
    stopping = threading.Thread(target=prober.stop)
    stopping.start()
    wait_for(lambda: prober._stopped)
    mesh.free.set()
    stopping.join(20.0)
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
            prober = GrpcProber(security, answer_s=20.0 if security else 2.0)
            verdict = probe(prober, asked)
            prober.stop()
            assert (verdict.ok, verdict.retry) == (ok, not ok)
            assert said in verdict.why
