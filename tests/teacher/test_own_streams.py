"""Our clients over streams that are kept: they learn what a call of its own would have told."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
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
from edl.proto.clients import Request
from edl.proto.clients.grpc_line import GrpcLine
from edl.proto.clients.lines import Ended
from edl.proto.clients.oip_grpc import OipGrpcClient
from edl.proto.security import ClientSecurity, ServerSecurity
from edl.tests.faults import FaultProxy
from edl.tests.ground.programs import wait_for
from edl.tests.proto.security.authority import write_secret
from edl.tests.teacher.bench import WAIT_S, Bench
from edl.tests.teacher.fakes import array

X = array(3, 4)
Make = Callable[..., Bench]
Connect = Callable[..., OipGrpcClient]


@pytest.fixture
def make() -> Iterator[Make]:
    benches: list[Bench] = []

    def make(**config: Any) -> Bench:
        benches.append(Bench(**config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@pytest.fixture
def connect() -> Iterator[Connect]:
    clients: list[OipGrpcClient] = []

    def connect(bench: Bench, security: ClientSecurity | None = None) -> OipGrpcClient:
        clients.append(OipGrpcClient(bench.address, "resnet", security))
        clients[-1].probe(WAIT_S)
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


def streams_of(bench: Bench) -> int:
    return len(bench.server._methods.streams._open)


def doubled(client: OipGrpcClient, timeout_s: float = WAIT_S, **asked: Any) -> bytes:
    return client.infer(Request({"x": X}, **asked), timeout_s).outputs["double"].tobytes()


def test_one_stream_carries_all_that_is_asked_one_after_the_other(
    make: Make, connect: Connect
) -> None:
    bench = make()
    client = connect(bench)
    for _ in range(5):
        assert doubled(client) == (X * 2).tobytes()
    assert streams_of(bench) == 1
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 5


def test_those_who_ask_at_once_share_streams_and_get_their_own_labels(
    make: Make, connect: Connect
) -> None:
    bench = make(slots=8)
    client = connect(bench)
    with ThreadPoolExecutor(4) as pool:

        def ask(scale: int) -> bool:
            answer = client.infer(Request({"x": X * scale}), WAIT_S)
            return answer.outputs["double"].tobytes() == (X * 2 * scale).tobytes()

        assert all(pool.map(ask, range(200)))
    assert 1 <= streams_of(bench) <= 4


REFUSED: list[tuple[dict[str, Any], type[EdlError]]] = [
    ({"outputs": ("no",)}, RequestRefused),
    ({"parameters": {"teacher_id": "another"}}, WrongInstance),
    ({"parameters": {"incarnation": "1"}}, WrongInstance),
]


@pytest.mark.parametrize(("asked", "kind"), REFUSED)
def test_a_refusal_is_what_a_call_of_its_own_would_raise(
    make: Make, connect: Connect, asked: dict[str, Any], kind: type[EdlError]
) -> None:
    bench = make()
    client = connect(bench)
    with pytest.raises(kind) as over_stream:
        doubled(client, **asked)
    client._by_stream = False
    with pytest.raises(kind) as by_call:
        doubled(client, **asked)
    assert str(over_stream.value) == str(by_call.value)
    client._by_stream = True
    assert doubled(client) == (X * 2).tobytes()
    assert streams_of(bench) == 1  # which a refusal does not end


def test_one_that_is_full_says_when_to_come_back(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench)

    def full() -> None:
        error = RateLimited("every slot is taken")
        error.retry_after_s = 2.5
        raise error

    bench.labeller.before = full
    with pytest.raises(RateLimited, match="slot") as caught:
        doubled(client)
    assert caught.value.retry_after_s == 2.5


def test_the_model_is_told_until_when_an_answer_is_wanted(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench)
    before_s = time.monotonic()
    doubled(client, 7.0)
    (deadline_s,) = bench.labeller.deadlines_s
    assert deadline_s is not None
    assert before_s < deadline_s <= time.monotonic() + 7.0


def test_what_is_late_ends_and_the_others_are_answered(make: Make, connect: Connect) -> None:
    bench = make(slots=8)
    client = connect(bench)
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
    wait_for(lambda: streams_of(bench) == 1)


def test_a_stream_that_had_to_make_room_is_not_noticed(make: Make, connect: Connect) -> None:
    bench = make(max_calls_per_peer=1)
    first, second = connect(bench), connect(bench)
    for _ in range(3):
        assert doubled(first) == doubled(second) == (X * 2).tobytes()
    wait_for(lambda: streams_of(bench) == 1)


def test_a_model_that_fails_for_the_moment_may_be_asked_again(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench)
    bench.labeller.ready = False
    with pytest.raises(RetryableError, match="loading"):
        doubled(client)
    bench.labeller.ready = True
    assert doubled(client) == (X * 2).tobytes()


def test_a_server_that_stops_is_lost(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench)
    doubled(client)
    bench.server.stop(0)
    with pytest.raises(TeacherLost):
        doubled(client)


def test_a_client_that_closes_ends_who_waits_and_leaves_nothing(
    make: Make, connect: Connect
) -> None:
    bench = make()
    client = connect(bench)
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(doubled, client)
        assert inside.wait(WAIT_S)
        client.close()
        with pytest.raises(TeacherLost, match="closed"):
            asked.result(WAIT_S)
    go.set()
    wait_for(lambda: streams_of(bench) == 0)
    wait_for(lambda: not any(t.name == "edl-answers" for t in threading.enumerate()))


def test_a_token_that_is_withdrawn_counts_no_more_on_streams_that_are_open(
    make: Make, connect: Connect, tmp_path: Path
) -> None:
    known = write_secret(tmp_path / "tokens", "student:resnet s3cret\n")
    bench = make(security=ServerSecurity(tokens_file=known))
    client = connect(bench, ClientSecurity(token_file=write_secret(tmp_path / "token", "s3cret")))
    assert doubled(client) == (X * 2).tobytes()
    write_secret(known, "student:resnet an0ther\n")

    def refused() -> bool:
        try:
            doubled(client)
        except Unauthenticated:
            return True
        return False

    wait_for(refused)
    assert bench.refused("unauthenticated") >= 1


def test_a_client_whose_token_was_changed_goes_on_over_fresh_streams(
    make: Make, connect: Connect, tmp_path: Path
) -> None:
    known = write_secret(tmp_path / "tokens", "student:resnet s3cret\nstudent:resnet an0ther\n")
    bench = make(security=ServerSecurity(tokens_file=known))
    own = write_secret(tmp_path / "token", "s3cret")
    client = connect(bench, ClientSecurity(token_file=own))
    assert doubled(client) == (X * 2).tobytes()
    write_secret(own, "an0ther")
    write_secret(known, "student:resnet an0ther\n")
    wait_for(lambda: _refuses(bench, "s3cret"))
    for _ in range(3):
        assert doubled(client) == (X * 2).tobytes()
    wait_for(lambda: streams_of(bench) == 1)


def _refuses(bench: Bench, token: str) -> bool:
    metadata = (("authorization", f"Bearer {token}"),)
    call = bench.channel.unary_unary("/inference.GRPCInferenceService/ServerMetadata", None, None)
    try:
        call(b"", timeout=WAIT_S, metadata=metadata)
    except grpc.RpcError as error:
        return bool(error.code() is grpc.StatusCode.UNAUTHENTICATED)
    return False


def test_a_request_that_is_on_its_way_is_answered_by_a_server_that_takes_leave() -> None:
    bench = Bench()
    large = array(50_000, 4)
    half = threading.Event()
    arrived = 0

    def count(data: bytes) -> None:
        nonlocal arrived
        arrived += len(data)
        if arrived > large.nbytes / 2 and not half.is_set():
            proxy.partition()
            half.set()

    with FaultProxy(bench.address, on_request=count) as proxy, ThreadPoolExecutor(2) as pool:
        client = OipGrpcClient(proxy.address, "resnet")
        client.probe(WAIT_S)
        asked = pool.submit(client.infer, Request({"x": large}, ("sum",)), WAIT_S)
        assert half.wait(WAIT_S)
        wait_for(lambda: bool(bench.server._methods.streams._open))
        stopping = pool.submit(bench.server.stop, WAIT_S)
        wait_for(lambda: bench.server._methods.streams._leaving)
        proxy.heal()
        assert asked.result(WAIT_S).outputs["sum"].tobytes() == large.sum(axis=1).tobytes()
        stopping.result(WAIT_S / 4)  # it waits for no caller that has been told
        with pytest.raises(TeacherLost):
            doubled(client)
        client.close()
    bench.close()


def test_what_breaks_a_stream_in_whatever_way_is_a_lost_teacher(
    make: Make, connect: Connect
) -> None:
    client = connect(make())

    class Broken:
        def __iter__(self) -> Iterator[bytes]:
            raise ValueError("Channel closed!")

        def cancel(self) -> None:
            """Nothing is there."""

    line = GrpcLine(lambda requests, metadata: Broken())
    wait_for(lambda: not line.is_open)
    with pytest.raises(Ended) as caught:
        line.ask(b"", time.monotonic() + WAIT_S)
    assert isinstance(caught.value.why, TeacherLost)
    client._channel.close()
    with pytest.raises(TeacherLost, match="closed"):
        doubled(client)


def test_an_error_nobody_foresaw_fails_its_request_alone(make: Make, connect: Connect) -> None:
    bench = make()
    client = connect(bench)
    doubled(client)

    def fail() -> None:
        raise ZeroDivisionError("of nothing")

    bench.labeller.before = fail
    with pytest.raises(RetryableError, match="ZeroDivisionError: of nothing"):
        doubled(client)
    bench.labeller.before = lambda: None
    assert doubled(client) == (X * 2).tobytes()
    assert streams_of(bench) == 1


def test_streams_that_have_ended_wait_for_no_garbage_collector(
    make: Make, connect: Connect
) -> None:
    client = connect(make())
    doubled(client)
    line = weakref.ref(client._streams._lines[0].line)
    gc.collect()
    gc.disable()
    try:
        client.close()
        wait_for(lambda: line() is None)
    finally:
        gc.enable()
