"""`ModelStreamInfer`: in order, each request by itself, and a stream's place among other calls."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, refusal
from edl.tests.teacher.fakes import array


class Stream:
    """One stream to a bench; what is put goes, `next` is the next answer."""

    def __init__(self, bench: Bench) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        method = f"/{SERVICE}/ModelStreamInfer"
        parse = pb.ModelStreamInferResponse.FromString
        self.call: Any = bench.channel.stream_stream(method, None, parse)(
            iter(self._requests.get, None), timeout=WAIT_S
        )

    def put(self, request: bytes) -> None:
        self._requests.put(request)

    def next(self) -> pb.ModelStreamInferResponse:
        answer: pb.ModelStreamInferResponse = next(self.call)
        return answer

    def end(self) -> None:
        self._requests.put(None)


@pytest.fixture
def make() -> Iterator[Callable[..., Bench]]:
    benches: list[Bench] = []
    yield lambda **config: benches.append(Bench(**config)) or benches[-1]  # type: ignore[func-returns-value]
    for bench in benches:
        bench.close()


def test_answers_come_in_the_order_of_the_requests(make: Callable[..., Bench]) -> None:
    bench = make()
    stream = Stream(bench)
    for rows in range(1, 8):
        stream.put(bench.request(rows, request_id=str(rows)))
    stream.end()
    answers = list(stream.call)
    assert [answer.infer_response.id for answer in answers] == [str(rows) for rows in range(1, 8)]
    last = tensors.decode_response(answers[-1].infer_response.SerializeToString())
    assert last.outputs["double"].tobytes() == (array(7, 4) * 2).tobytes()
    assert bench.count("edl_teacher_requests_total", outcome="answered") == 7
    wait_for(lambda: len(bench.server._methods.infer_calls) == 0)


def test_what_is_wrong_with_one_is_said_and_the_others_are_answered(
    make: Callable[..., Bench],
) -> None:
    bench = make()
    stream = Stream(bench)
    for request in (
        bench.request(request_id="a"),
        b"\xff",
        bench.request(outputs=["no"], request_id="c"),
    ):
        stream.put(request)
    assert stream.next().infer_response.id == "a"
    malformed, unknown = stream.next(), stream.next()
    assert (malformed.infer_response.id, unknown.infer_response.id) == ("", "c")
    assert "truncated" in malformed.error_message
    assert "unknown output 'no'" in unknown.error_message
    assert bench.refused("malformed") == 2
    stream.put(bench.request(request_id="d"))
    assert stream.next().infer_response.id == "d"
    stream.end()
    assert list(stream.call) == []


def test_two_requests_are_in_work_and_no_more_are_read(make: Callable[..., Bench]) -> None:
    bench = make(slots=8)
    inside, go = threading.Semaphore(0), threading.Event()

    def wait_inside() -> None:
        inside.release()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    stream = Stream(bench)
    for _ in range(5):
        stream.put(bench.request())
    for _ in range(2):
        assert inside.acquire(timeout=WAIT_S)
    assert not inside.acquire(timeout=0.2)
    go.set()
    for _ in range(5):
        assert stream.next().error_message == ""
    stream.end()


def test_an_idle_stream_makes_room_and_one_at_work_does_not(make: Callable[..., Bench]) -> None:
    bench = make(max_calls_per_peer=1)
    idle = Stream(bench)
    idle.put(bench.request())
    idle.next()
    bench.infer()
    code, details = refusal(lambda: next(idle.call))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert details == "a stream that sent nothing was ended for another call"
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    working = Stream(bench)
    working.put(bench.request())
    assert inside.wait(WAIT_S)
    assert refusal(bench.infer)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    go.set()
    assert working.next().error_message == ""
    working.end()


def test_too_large_a_request_ends_its_stream_and_is_counted(make: Callable[..., Bench]) -> None:
    bench = make()
    stream = Stream(bench)
    stream.put(bytes((1 << 20) + 1))
    assert refusal(lambda: next(stream.call))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    wait_for(lambda: bench.refused("too_large") == 1)
    bench.infer()


def test_a_stop_answers_what_was_sent_and_waits_for_no_idle_stream() -> None:
    bench = Bench()
    idle, working = Stream(bench), Stream(bench)
    idle.put(bench.request())
    idle.next()
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    working.put(bench.request(request_id="last"))
    assert inside.wait(WAIT_S)
    stopping = threading.Thread(target=lambda: bench.server.stop(WAIT_S))
    stopping.start()
    assert refusal(lambda: next(idle.call))[0] is grpc.StatusCode.UNAVAILABLE
    go.set()
    assert working.next().infer_response.id == "last"
    assert refusal(working.next)[0] is grpc.StatusCode.UNAVAILABLE
    stopping.join(WAIT_S / 4)
    assert not stopping.is_alive()
    for stream in (idle, working):
        stream.end()
    bench.close()


def test_who_hangs_up_leaves_nothing(make: Callable[..., Bench]) -> None:
    bench = make()
    stream = Stream(bench)
    stream.put(bench.request())
    stream.next()
    stream.call.cancel()
    wait_for(lambda: len(bench.server._methods.infer_calls) == 0)
    wait_for(lambda: not bench.server._methods.streams._open)
    stream.end()
    bench.infer()
