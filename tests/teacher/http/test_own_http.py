"""Our clients over HTTP: they learn what gRPC would have told, and lose nothing that it keeps."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.errors import (
    DeadlineExceeded,
    EdlError,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    WrongInstance,
)
from edl.proto.clients import Request, http_way
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.security import ClientSecurity, ServerSecurity, TlsFiles
from edl.supervise import Process, python_command, start
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array

X = array(3, 4)
HTTP = "127.0.0.1:0"
Make = Callable[..., Bench]
Connect = Callable[..., OipGrpcClient]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make(client: ClientSecurity | None = None, **config: Any) -> Bench:
        benches.append(Bench(client, **{"http": HTTP, **config}))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setattr(http_way, "_OPEN_S", WAIT_S)  # a busy machine must not shut the way
    clients: list[OipGrpcClient] = []

    def connect(address: str, security: ClientSecurity | None = None) -> OipGrpcClient:
        clients.append(OipGrpcClient(address, "resnet", security))
        clients[-1].probe(WAIT_S)
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def streams_of(bench: Bench) -> int:
    return len(bench.server._methods.streams._open)


def doubled(client: OipGrpcClient, timeout_s: float = WAIT_S, **asked: Any) -> bytes:
    return client.infer(Request({"x": X}, **asked), timeout_s).outputs["double"].tobytes()


def is_doubled(client: OipGrpcClient) -> None:
    assert doubled(client) == (X * 2).tobytes()


def test_batches_go_by_http_and_their_labels_are_those_of_grpc(
    make: Make, connect: Connect
) -> None:
    bench = make(max_message_bytes=1 << 24)
    client = connect(bench.address)
    x = np.random.default_rng(7).standard_normal((1000, 4), np.float32)
    asked = Request({"x": x}, request_id="9", output_parameters={})
    by_http = client.infer(asked, WAIT_S)
    assert streams_of(bench) == 0
    by_grpc = connect(make(http=None).address).infer(asked, WAIT_S)
    assert by_http.parameters.keys() == by_grpc.parameters.keys()
    assert by_http.outputs.keys() == by_grpc.outputs.keys()
    for name, labels in by_grpc.outputs.items():
        assert by_http.outputs[name].dtype == labels.dtype
        assert by_http.outputs[name].tobytes() == labels.tobytes()


def test_those_who_ask_at_once_get_their_own_labels(make: Make, connect: Connect) -> None:
    bench = make(slots=8)
    client = connect(bench.address)
    with ThreadPoolExecutor(4) as pool:

        def ask(scale: int) -> bool:
            answer = client.infer(Request({"x": X * scale}), WAIT_S)
            return answer.outputs["double"].tobytes() == (X * 2 * scale).tobytes()

        assert all(pool.map(ask, range(200)))
    assert streams_of(bench) == 0
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 200


REFUSED: list[tuple[dict[str, Any], type[EdlError]]] = [
    ({"outputs": ("no",)}, RequestRefused),
    ({"parameters": {"teacher_id": "another"}}, WrongInstance),
    ({"parameters": {"incarnation": "1"}}, WrongInstance),
]


@pytest.mark.parametrize(("asked", "kind"), REFUSED)
def test_a_refusal_is_what_grpc_would_have_raised(
    make: Make, connect: Connect, asked: dict[str, Any], kind: type[EdlError]
) -> None:
    client = connect(make().address)
    with pytest.raises(kind) as by_http:
        doubled(client, **asked)
    with pytest.raises(kind) as by_grpc:
        doubled(connect(make(http=None).address), **asked)
    assert type(by_http.value) is type(by_grpc.value)
    assert str(by_http.value) == str(by_grpc.value)
    is_doubled(client)


@pytest.mark.parametrize("after_s", [0.12, 2.5, None])
def test_one_that_is_full_says_when_to_come_back(
    make: Make, connect: Connect, after_s: float | None
) -> None:
    bench = make()
    client = connect(bench.address)

    def full() -> None:
        raise RateLimited("every slot is taken", after_s)

    bench.labeller.before = full
    with pytest.raises(RateLimited, match="every slot is taken") as caught:
        doubled(client)
    assert caught.value.retry_after_s == after_s


def test_a_model_that_fails_for_the_moment_may_be_asked_again(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench.address)
    bench.labeller.ready = False
    with pytest.raises(RetryableError, match="loading"):
        doubled(client)
    bench.labeller.ready = True
    is_doubled(client)
    assert streams_of(bench) == 0


def test_the_model_is_told_until_when_an_answer_is_wanted(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench.address)
    before_s = time.monotonic()
    doubled(client, 7.0)
    (deadline_s,) = bench.labeller.deadlines_s
    assert deadline_s is not None
    assert before_s < deadline_s <= time.monotonic() + 7.0


def test_what_is_late_ends_alone(make: Make, connect: Connect) -> None:
    bench = make(slots=8)
    client = connect(bench.address)
    inside, go = threading.Semaphore(0), threading.Event()

    def wait_inside() -> None:
        inside.release()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with ThreadPoolExecutor(2) as pool:
        late = pool.submit(doubled, client, 3.0)  # enough to get in
        assert inside.acquire(timeout=WAIT_S)
        beside = pool.submit(doubled, client)
        assert inside.acquire(timeout=WAIT_S)
        with pytest.raises(DeadlineExceeded):
            late.result(WAIT_S)
        go.set()
        assert beside.result(WAIT_S) == (X * 2).tobytes()


def test_what_is_being_answered_when_a_server_stops_is_answered(
    make: Make, connect: Connect
) -> None:
    bench = make()
    client = connect(bench.address)
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(doubled, client)
        assert inside.wait(WAIT_S)
        stopping = pool.submit(bench.server.stop, WAIT_S)
        wait_for(lambda: bench.server._stopping)
        go.set()
        assert asked.result(WAIT_S) == (X * 2).tobytes()
        stopping.result(WAIT_S)
    with pytest.raises(TeacherLost):
        doubled(client)


def test_another_life_at_the_same_ports_is_never_taken_for_this_one(
    make: Make, connect: Connect
) -> None:
    bench = make()
    client = connect(bench.address)
    is_doubled(client)
    assert bench.server.url is not None
    ports = {"port": bench.server.port, "http": f"127.0.0.1:{bench.server.url.rpartition(':')[2]}"}
    bench.close()
    other = make(**ports)
    other.identity.incarnation = 42
    with pytest.raises((WrongInstance, TeacherLost)):
        doubled(client, parameters={"incarnation": "41"})
    fresh = connect(other.address)
    assert doubled(fresh, parameters={"incarnation": "42"}) == (X * 2).tobytes()
    assert streams_of(other) <= 1  # of the older client alone


def test_who_comes_by_a_proxy_is_asked_by_grpc(make: Make, connect: Connect) -> None:
    bench = make()
    with FaultProxy(bench.address) as proxy:
        client = connect(proxy.address)
        is_doubled(client)
        assert streams_of(bench) == 1
        client.close()


# --- who may ask


def test_a_wrong_token_is_refused_and_another_is_taken(
    make: Make, connect: Connect, tmp_path: Path
) -> None:
    known = write_secret(tmp_path / "tokens", "student:resnet s3cret\nstudent:resnet an0ther\n")
    bench = make(security=ServerSecurity(tokens_file=known))
    own = write_secret(tmp_path / "token", "s3cret")
    client = connect(bench.address, ClientSecurity(token_file=own))
    is_doubled(client)
    write_secret(known, "student:resnet an0ther\n")

    def refused() -> bool:
        try:
            doubled(client)
        except Unauthenticated:
            return True
        return False

    wait_for(refused)
    write_secret(own, "an0ther")
    wait_for(lambda: not refused())
    is_doubled(client)
    assert streams_of(bench) == 0


def test_over_tls_both_sides_show_what_grpc_asks_for(
    make: Make, connect: Connect, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    server, student = authority.issue("server"), authority.issue("student", "student:resnet")
    security = ClientSecurity(tls=student)
    bench = make(security, security=ServerSecurity(tls=server), slots=4, max_message_bytes=1 << 24)
    client = connect(bench.address, security)
    x = np.random.default_rng(7).standard_normal((200_000, 4), np.float32)
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(lambda _: client.infer(Request({"x": x}), WAIT_S), range(4)):
            assert answer.outputs["double"].tobytes() == (x * 2).tobytes()
    assert streams_of(bench) == 0
    stranger = Authority(tmp_path / "other").issue("student", "student:resnet")
    with pytest.raises(TeacherLost):
        connect(bench.address, ClientSecurity(tls=TlsFiles(ca=stranger.ca)))


# --- processes


@pytest.fixture
def held(tmp_path: Path) -> Iterator[tuple[Process, OipGrpcClient, Path]]:
    """A teacher's process whose model waits for a file, a client of it, and that file."""
    go = tmp_path / "go"
    process = start(python_command("teacher", "edl.tests.teacher.held_teacher", str(go), HTTP))
    try:
        port = process.expect(r"^port (\d+)$", WAIT_S)[1]
        client = OipGrpcClient(f"127.0.0.1:{port}", "resnet")
        client.probe(WAIT_S)
        yield process, client, go
        client.close()
    finally:
        process.kill()


def test_a_teacher_that_is_killed_while_it_answers_is_lost_at_once(
    held: tuple[Process, OipGrpcClient, Path],
) -> None:
    process, client, _ = held
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(doubled, client)
        process.expect("^held$", WAIT_S)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(TeacherLost) as caught:
            asked.result(WAIT_S / 2)
    assert not isinstance(caught.value, DeadlineExceeded)


def test_a_teacher_that_is_stopped_is_late_and_serves_again_once_it_wakes(
    held: tuple[Process, OipGrpcClient, Path],
) -> None:
    process, client, go = held
    go.touch()
    is_doubled(client)
    os.kill(process.pid, signal.SIGSTOP)
    try:
        large = Request({"x": array(50_000, 4)})
        with ThreadPoolExecutor(3) as pool:
            began = time.monotonic()
            waiting = [pool.submit(client.infer, large, 1.0) for _ in range(3)]
            for one in waiting:
                with pytest.raises(DeadlineExceeded):
                    one.result(WAIT_S)
            assert time.monotonic() - began < WAIT_S / 2
    finally:
        os.kill(process.pid, signal.SIGCONT)
    is_doubled(client)
