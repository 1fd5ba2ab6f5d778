"""Our client by each way: gRPC, and frames over TCP and a Unix socket."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.security.credentials import ClientSecurity, ServerSecurity
from edl.proto.shared_buffer import SharedBuffer
from edl.runtime.errors import (
    DeadlineExceeded,
    EdlError,
    InputsOverwritten,
    RateLimited,
    RequestRefused,
    RetryableError,
    TeacherLost,
    Unauthenticated,
    WrongInstance,
)
from edl.tests.faults import FaultProxy
from edl.tests.proto.security.authority import Authority, write_secret
from edl.tests.teacher.bench import WAIT_S, Bench, Make
from edl.tests.teacher.conftest import AccessLog
from edl.tests.teacher.fakes import array
from edl.tests.teacher.servers.frames_client import FramesClient
from edl.tests.waiting import wait_until

X = array(300, 4)
#: Of each transport, what the access log says of a request, and connections that stay open.
TRANSPORTS = {"call": ("grpc ModelInfer", 0), "tcp": ("tcp Label", 1), "local": ("local Label", 1)}


class Client:
    """Asks for labels by one transport; closed with the server."""

    def __init__(self, bench: Bench, client: FramesClient | OipGrpcClient) -> None:
        bench.at_end.callback(client.close)
        self.close = client.close
        self._client = client

    def ask(self, x: Any = X, timeout_s: float = WAIT_S, **request: Any) -> LabelResponse:
        if isinstance(self._client, FramesClient) and (arena := self._client.arena) is not None:
            x = arena.get(arena.put([x]).arrays[0])
        return self._client.infer(LabelRequest({"x": x}, **request), timeout_s)

    def double(self, timeout_s: float = WAIT_S, **request: Any) -> bytes:
        return self.ask(X, timeout_s, **request).outputs["double"].tobytes()

    def is_answered(self) -> bool:
        return self.double() == (X * 2).tobytes()

    def is_refused(self) -> bool:
        try:
            self.double()
        except Unauthenticated:
            return True
        return False


class Transport:
    """Servers, and clients whose requests go by one transport."""

    def __init__(self, name: str, make: Make) -> None:
        self.name = name
        self.logged, self.connections = TRANSPORTS[name]
        self.server = partial(make, max_message_bytes=1 << 24)

    def connect(self, bench: Bench, security: ClientSecurity | None = None) -> Client:
        if self.name == "call":
            return by_calls(bench, security)
        arena = SharedBuffer.create(1 << 20) if self.name == "local" else None
        return Client(bench, FramesClient(bench.address, security, arena))

    def pair(self, **config: Any) -> tuple[Bench, Client]:
        bench = self.server(**config)
        return bench, self.connect(bench)


def by_calls(bench: Bench, security: ClientSecurity | None = None) -> Client:
    return Client(bench, OipGrpcClient(bench.address, "resnet", security))


@pytest.fixture(params=TRANSPORTS)
def by(request: pytest.FixtureRequest, make: Make) -> Transport:
    return Transport(request.param, make)


def test_labels_are_those_of_a_call(by: Transport, lines: AccessLog) -> None:
    bench, client = by.pair()
    x = np.random.default_rng(7).standard_normal((1000, 4), np.float32)
    request: dict[str, Any] = {"request_id": "9", "output_parameters": {}}
    before_s = time.monotonic()
    for _ in range(5):
        ours = client.ask(x, **request)
    heard_s = [deadline_s - WAIT_S for deadline_s in bench.labeller.deadlines_s]
    assert before_s - 1 < min(heard_s) <= max(heard_s) < time.monotonic() + 1
    wait_until(lambda: bench.open_calls == by.connections and lines.labelled() == [by.logged] * 5)
    theirs = by_calls(bench).ask(x, **request)
    wait_until(lambda: lines.labelled()[5:] == ["grpc ModelInfer"])
    assert ours.parameters.keys() == theirs.parameters.keys()
    assert ours.outputs.keys() == theirs.outputs.keys()
    for name, labels in theirs.outputs.items():
        assert ours.outputs[name].dtype == labels.dtype
        assert ours.outputs[name].tobytes() == labels.tobytes()
    assert bench.requests("answered") == 6


@pytest.mark.parametrize(
    ("request_", "error", "kind", "words"),
    [
        ({"outputs": ("no",)}, None, RequestRefused, "unknown output 'no'"),
        ({"parameters": {"teacher_id": "t2"}}, None, WrongInstance, "'t2' was asked for; this is"),
        ({"parameters": {"incarnation": 40}}, None, WrongInstance, "was asked for; this is"),
        ({}, RateLimited("every slot is taken", 0.12), RateLimited, "every slot is taken"),
        ({}, RateLimited("every slot is taken"), RateLimited, "every slot is taken"),
        ({}, ZeroDivisionError("of nothing"), RetryableError, "^ZeroDivisionError: of nothing$"),
    ],
)
def test_errors_are_those_of_a_call(
    by: Transport,
    request_: dict[str, Any],
    error: Exception | None,
    kind: type[EdlError],
    words: str,
) -> None:
    bench, client = by.pair()
    if error is not None:
        bench.fail(error)
    with pytest.raises(kind, match=words) as ours:
        client.double(**request_)
    with pytest.raises(kind) as theirs:
        by_calls(bench).double(**request_)
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)
    if isinstance(ours.value, RateLimited) and isinstance(error, RateLimited):
        assert ours.value.retry_after_s == error.retry_after_s
    bench.heal()
    assert client.is_answered()
    wait_until(lambda: bench.open_calls == by.connections)  # an error ends no connection


def test_a_batch_that_changes_while_it_is_sent_is_not_answered(by: Transport) -> None:
    """What lies in shared memory the server looks at itself."""
    _, client = by.pair()
    if by.name == "local":
        assert client.ask(is_current=lambda: False)
    else:
        with pytest.raises(InputsOverwritten):
            client.ask(is_current=lambda: False)
    assert client.is_answered()


def test_a_late_request_ends_alone(by: Transport) -> None:
    bench, client = by.pair(slots=8)
    client.is_answered()
    held = bench.hold()
    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(client.double)
        held.wait()
        with pytest.raises(DeadlineExceeded):
            client.double(0.3)
        held.release()
        assert beside.result(WAIT_S) == (X * 2).tobytes()
    wait_until(lambda: bench.open_calls == bench.idle_calls and bench.recorder.in_flight == 0)
    assert client.is_answered()


def test_idle_connections_make_room_and_those_at_work_do_not(by: Transport) -> None:
    bench = by.server(max_calls_per_peer=1, slots=8)
    first, second = by.connect(bench), by.connect(bench)
    for _ in range(3):
        assert first.is_answered()
        assert second.is_answered()
    held = bench.hold()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(first.double)
        held.wait()
        with pytest.raises(RateLimited, match="1 calls of one client are open"):
            second.double()
        assert bench.call("ServerReady").ready
        held.release()
        assert asked.result(WAIT_S) == (X * 2).tobytes()
    assert second.is_answered()
    wait_until(lambda: bench.open_calls == by.connections)


def is_leaving(bench: Bench) -> bool:
    """Whether the server takes no new calls.

    A call that arrives at the moment when gRPC's asyncio server begins to stop may get no answer at
    all. That says nothing: it is asked again.
    """
    try:
        bench.call("ServerLive", timeout_s=1.0)
    except grpc.RpcError as error:
        call: Any = error
        return call.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return False


def test_a_stop_answers_what_was_asked_and_closes_idle_connections(by: Transport) -> None:
    bench = by.server()
    client, idle = by.connect(bench), by.connect(bench)
    idle.double()
    held = bench.hold()
    with ThreadPoolExecutor(2) as pool:
        asked = pool.submit(client.double)
        held.wait()
        stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
        wait_until(lambda: is_leaving(bench) and bench.open_calls == 1)
        held.release()
        assert asked.result(WAIT_S) == (X * 2).tobytes()
        stopping.result(WAIT_S)
    for one in (client, idle):
        with pytest.raises(TeacherLost):
            one.double()


def test_a_teacher_that_ends_is_lost_at_once(by: Transport) -> None:
    """Its stop does not wait for a model that hangs."""
    bench, client = by.pair()
    held = bench.hold()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(client.double)
        held.wait()
        bench.server.stop(0.0)
        with pytest.raises(TeacherLost):
            asked.result(WAIT_S)
        held.release()


def test_closing_a_client_abandons_its_requests_and_leaves_nothing(
    by: Transport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the model has begun ends later; one that waits in line is cancelled."""
    bench, client = by.pair()
    other = by.connect(bench)
    held, in_line, came = bench.hold(), Future[Any](), threading.Event()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(client.double)]
        held.wait()

        def submit(_: object) -> Future[Any]:
            came.set()
            return in_line

        monkeypatch.setattr(bench.labeller, "submit", submit)
        asked.append(pool.submit(other.double))
        assert came.wait(WAIT_S)
        for one, answer in zip((client, other), asked, strict=True):
            one.close()
            with pytest.raises(TeacherLost, match="closed"):
                answer.result(WAIT_S)
    wait_until(in_line.cancelled)
    wait_until(lambda: bench.open_calls == bench.recorder.in_flight == 0)
    assert bench.requests("abandoned") == 2
    assert bench.labeller.released == 0
    held.release()
    wait_until(lambda: bench.labeller.released == 1)


def test_tokens_may_change_while_a_client_is_connected(
    by: Transport, tmp_path: Path, lines: AccessLog
) -> None:
    known = write_secret(tmp_path / "tokens", "student:a s3cret\nstudent:a an0ther\n")
    token = write_secret(tmp_path / "token", "s3cret")
    bench = by.server(security=ServerSecurity(tokens_file=known))
    client = by.connect(bench, ClientSecurity(token_file=token))
    assert client.is_answered()
    write_secret(token, "an0ther")
    write_secret(known, "student:a an0ther\n")
    old = [("authorization", "Bearer s3cret")]

    def old_is_refused() -> bool:
        try:
            bench.method("ServerMetadata")(b"", timeout=WAIT_S, metadata=old)
        except grpc.RpcError:
            return True
        return False

    wait_until(old_is_refused)
    for count in range(2, 5):
        assert client.is_answered()
        wait_until(lambda count=count: len(lines.labelled()) == count)  # type: ignore[misc]
    assert lines.labelled()[-1] == by.logged, "it goes on by the same transport"
    wait_until(lambda: bench.open_calls <= 2 * by.connections)
    write_secret(known, "student:a s3cret\n")
    wait_until(client.is_refused)
    assert bench.refused("unauthenticated") >= 1
    write_secret(token, "s3cret")
    wait_until(lambda: not client.is_refused())


def test_a_server_that_leaves_answers_a_request_on_its_way(bench: Bench) -> None:
    large = array(50_000, 4)
    half = threading.Event()
    arrived = 0

    def count(data: bytes) -> None:
        nonlocal arrived
        arrived += len(data)
        if arrived > large.nbytes / 2 and not half.is_set():
            proxy.stall()
            half.set()

    with FaultProxy(bench.address, on_request=count) as proxy, ThreadPoolExecutor(2) as pool:
        client = OipGrpcClient(proxy.address, "resnet")
        client.probe(WAIT_S)
        asked = pool.submit(client.infer, LabelRequest({"x": large}, ("sum",)), WAIT_S)
        assert half.wait(WAIT_S)
        wait_until(lambda: bench.open_calls == 1)
        stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
        wait_until(lambda: is_leaving(bench))
        proxy.heal()
        assert asked.result(WAIT_S).outputs["sum"].tobytes() == large.sum(axis=1).tobytes()
        stopping.result(WAIT_S)  # it waits for no client that was told
        with pytest.raises(TeacherLost):
            client.infer(LabelRequest({"x": X}), WAIT_S)
        client.close()


def test_an_offer_that_cannot_be_used_is_not_asked_for_again_soon(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind something that maps ports."""
    asked: list[object] = []
    listener = bench.server._methods.transport  # noqa: SLF001 - what offers

    def offer(shown: object) -> tuple[()]:
        asked.append(shown)
        return ()

    monkeypatch.setattr(listener, "offer", offer)
    with FaultProxy(bench.address) as proxy, closing(OipGrpcClient(proxy.address, "resnet")) as one:
        for _ in range(5):
            assert one.connect(None) is None
    assert len(asked) <= 1


@pytest.mark.parametrize("by", ["tcp"], indirect=True)
def test_client_certificates(by: Transport, authority: Authority, lines: AccessLog) -> None:
    security = ClientSecurity(tls=authority.issue("student", "student:resnet"))
    server = ServerSecurity(tls=authority.issue("server"))
    bench = by.server(security, security=server, slots=4)
    client = by.connect(bench, security)
    x = np.random.default_rng(7).standard_normal((200_000, 4), np.float32)
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(lambda _: client.ask(x), range(4)):
            assert answer.outputs["double"].tobytes() == (x * 2).tobytes()
    wait_until(lambda: lines.labelled() == [by.logged] * 4)
