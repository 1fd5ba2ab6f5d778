"""Calls that owe their request: they cost nobody anything, and end in time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto.security.instance import verify
from edl.supervise import python_command, start
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, refusal

#: Far beyond what a call may take on a busy machine, far below the time to wait for a request.
SOON_S = 5.0


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []

    def make(**config: Any) -> Bench:
        benches.append(Bench(**config))
        return benches[-1]

    yield make
    for bench in benches:
        bench.close()


@contextmanager
def half_open(bench: Bench, calls: int, method: str = "ModelInfer") -> Iterator[list[Any]]:
    """Calls that have sent their headers only, until the end of the `with`."""
    over = threading.Event()

    def nothing() -> Iterator[bytes]:
        over.wait(WAIT_S)
        yield from ()

    path = f"/{SERVICE}/{method}"
    open_: list[Any] = [
        bench.channel.stream_unary(path, None, None).future(nothing()) for _ in range(calls)
    ]
    try:
        yield open_
    finally:
        over.set()
        for call in open_:
            call.cancel()


def test_a_request_that_does_not_come_ends_its_call(make: Callable[..., Bench]) -> None:
    bench = make(receive_s=0.3)
    started = time.monotonic()
    with half_open(bench, 1) as (call,):
        code, details = refusal(lambda: call.result(SOON_S))
    assert code is grpc.StatusCode.ABORTED
    assert details == "the request did not come within 0.3 s of its call"
    assert time.monotonic() - started >= 0.3
    assert bench.count("edl_teacher_requests_total", outcome="refused") == 0, "there was none"
    bench.infer()


def test_a_call_without_a_request_is_malformed(make: Callable[..., Bench]) -> None:
    bench = make()
    call = bench.channel.stream_unary(f"/{SERVICE}/ModelInfer", None, None)
    code, details = refusal(lambda: call(iter(()), timeout=WAIT_S))
    assert (code, details) == (
        grpc.StatusCode.INVALID_ARGUMENT,
        "the call ended without a request",
    )
    assert bench.refused("malformed") == 1


def test_who_hangs_up_before_the_request_is_not_to_blame(
    make: Callable[..., Bench], caplog: pytest.LogCaptureFixture
) -> None:
    bench = make()
    table = bench.server._methods.infer_calls
    with half_open(bench, 3):
        wait_for(lambda: len(table) == 3)
        bench.infer()
    wait_for(lambda: len(table) == 0)
    assert bench.refused("malformed") == bench.refused("too_large") == 0
    assert caplog.records == []


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", "ServerMetadata"])
def test_a_request_that_has_no_fields_is_not_waited_for(
    make: Callable[..., Bench], method: str
) -> None:
    bench = make()
    with half_open(bench, 3, method) as calls:
        for call in calls:
            assert call.result(SOON_S)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata"])
def test_the_oldest_ends_for_a_new_call_of_the_same_client(
    make: Callable[..., Bench], method: str
) -> None:
    bench = make(max_calls_per_peer=4)
    with half_open(bench, 12, method) as calls:
        wait_for(lambda: sum(call.done() for call in calls) == 8)
        assert {call.code() for call in calls if call.done()} == {
            grpc.StatusCode.RESOURCE_EXHAUSTED
        }
        started = time.monotonic()
        for _ in range(10):
            bench.infer()
            assert bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
        assert time.monotonic() - started < SOON_S
        assert bench.refused("rate_limited") >= 8


def test_who_has_its_share_in_the_model_is_told_to_wait_and_probes_are_not(
    make: Callable[..., Bench],
) -> None:
    bench = make(max_calls_per_peer=2)
    inside, go = threading.Semaphore(0), threading.Event()

    def wait_inside() -> None:
        inside.release()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    data = bench.request()
    infer = bench.method()
    working = [infer.future(data, timeout=WAIT_S) for _ in range(2)]
    for _ in working:
        assert inside.acquire(timeout=WAIT_S)
    code, details = refusal(bench.infer)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "2 calls of one client are open" in details
    assert bench.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    go.set()
    for answer in working:
        answer.result(WAIT_S)
    bench.infer()


def test_hundreds_of_half_open_calls_starve_nobody(make: Callable[..., Bench]) -> None:
    bench = make(max_calls=64, max_calls_per_peer=64)
    attacker = start(
        python_command("attacker", "edl.tests.teacher.half_open", bench.address, "200")
    )
    try:
        attacker.expect("^open$", WAIT_S)
        before = bench.refused("rate_limited")
        seconds = []
        for _ in range(50):
            started = time.monotonic()
            bench.infer()
            seconds.append(time.monotonic() - started)
        assert max(seconds) < SOON_S
        wait_for(lambda: bench.refused("rate_limited") > before + 200)
    finally:
        attacker.stop()
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 50
    assert bench.count("edl_teacher_requests_total", outcome="refused") == 0


def metadata_of_the_end(bench: Bench, *asked: tuple[str, str]) -> dict[str, str]:
    rpc = bench.channel.unary_unary(
        f"/{SERVICE}/ServerMetadata", None, pb.ServerMetadataResponse.FromString
    )
    answer, call = rpc.with_call(b"", timeout=WAIT_S, metadata=asked)
    assert answer.name == "edl-teacher"
    return {name: str(value) for name, value in call.trailing_metadata()}


def test_an_instance_proves_itself_to_who_asks(make: Callable[..., Bench]) -> None:
    bench = make()
    told = metadata_of_the_end(bench, ("edl-challenge", "c7"), ("edl-instance", "t1"))
    assert told["edl-incarnation"] == "41"
    assert verify(bench.identity.key, "t1", 41, "c7", told["edl-proof"])
    assert "edl-proof" not in metadata_of_the_end(bench)


def test_a_challenge_for_another_instance_is_refused_and_counted(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    asked = (("edl-challenge", "c7"), ("edl-instance", "t9"))
    code, details = refusal(lambda: metadata_of_the_end(bench, *asked))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert details == "teacher_id 't9' was asked for; this is 't1'"
    assert bench.refused("wrong_instance") == 1


def test_what_goes_in_and_out_is_measured(make: Callable[..., Bench]) -> None:
    bench = make()
    data = bench.request(rows=5)
    size = len(bench.infer_bytes(data))
    assert bench.count("edl_teacher_received_bytes_total") == len(data)
    assert bench.count("edl_teacher_sent_bytes_total") == size
    assert bench.count("edl_teacher_samples_total") == 5
    assert bench.count("edl_teacher_device_seconds_sum") == 0.004
    assert bench.count("edl_teacher_request_seconds_count") == 1
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 1


def test_who_hangs_up_while_the_model_works_has_abandoned_its_request(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    asked = bench.method().future(bench.request())
    assert inside.wait(WAIT_S)
    asked.cancel()
    wait_for(lambda: bench.count("edl_teacher_requests_total", outcome="abandoned") == 1)
    go.set()
    wait_for(lambda: bench.traffic.in_flight == 0)
