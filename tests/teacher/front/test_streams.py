"""`ModelStreamInfer`: in order, each request by itself, and a stream's place among other calls."""

from __future__ import annotations

import queue
import threading
from typing import Any

import grpc

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, Make, refusal
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until

EVICTED = grpc.StatusCode.RESOURCE_EXHAUSTED


class Stream:
    """One stream to a server; `put` sends a request, `next` waits for the next answer."""

    def __init__(self, bench: Bench) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        method = f"/{SERVICE}/ModelStreamInfer"
        parse = pb.ModelStreamInferResponse.FromString
        self.call: Any = bench.channel.stream_stream(method, None, parse)(
            iter(self._requests.get, None), timeout=WAIT_S
        )

    def put(self, *requests: bytes) -> None:
        for request in requests:
            self._requests.put(request)

    def next(self) -> pb.ModelStreamInferResponse:
        answer: pb.ModelStreamInferResponse = next(self.call)
        return answer

    def end(self) -> None:
        self._requests.put(None)


def test_answers_come_in_the_order_of_the_requests(bench: Bench) -> None:
    stream, ids = Stream(bench), [str(rows) for rows in range(1, 8)]
    stream.put(*(bench.request(int(one), request_id=one) for one in ids))
    stream.end()
    answers = list(stream.call)
    assert [answer.infer_response.id for answer in answers] == ids
    last = tensors.decode_response(answers[-1].infer_response.SerializeToString())
    assert last.outputs["double"].tobytes() == (array(7, 4) * 2).tobytes()
    assert bench.requests("answered") == 7
    wait_until(lambda: bench.open_calls == 0)


def test_a_wrong_request_is_refused_and_the_others_are_answered(bench: Bench) -> None:
    stream = Stream(bench)
    unknown_output = bench.request(outputs=["no"], request_id="c")
    stream.put(bench.request(request_id="a"), b"\xff", unknown_output)
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


def test_no_more_than_two_requests_are_read_ahead(make: Make) -> None:
    bench = make(slots=8)
    held, stream = bench.hold(), Stream(bench)
    stream.put(*[bench.request()] * 5)
    held.wait(2)
    bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse)  # time for a third
    assert not held.more
    held.release()
    assert [stream.next().error_message for _ in range(5)] == [""] * 5
    stream.end()


def test_an_idle_stream_makes_room_and_one_at_work_does_not(make: Make) -> None:
    bench = make(max_calls_per_peer=1)
    idle = Stream(bench)
    idle.put(bench.request())
    idle.next()
    bench.infer()
    assert refusal(idle.next) == (EVICTED, "a stream that sent nothing was ended for another call")
    held, working = bench.hold(), Stream(bench)
    working.put(bench.request())
    held.wait()
    assert refusal(bench.infer)[0] is EVICTED
    held.release()
    assert working.next().error_message == ""
    working.end()


def test_a_request_over_the_limit_ends_its_stream(bench: Bench) -> None:
    stream = Stream(bench)
    stream.put(bytes((1 << 20) + 1))
    assert refusal(stream.next)[0] is EVICTED
    wait_until(lambda: bench.refused("too_large") == 1)
    bench.infer()


def test_a_stop_answers_what_was_sent_and_waits_for_no_idle_stream(bench: Bench) -> None:
    idle, working = Stream(bench), Stream(bench)
    idle.put(bench.request())
    idle.next()
    held = bench.hold()
    working.put(bench.request(request_id="last"))
    held.wait()
    stopping = threading.Thread(target=lambda: bench.server.stop(2 * WAIT_S))
    stopping.start()
    assert refusal(idle.next)[0] is grpc.StatusCode.UNAVAILABLE
    held.release()
    assert working.next().infer_response.id == "last"
    assert refusal(working.next)[0] is grpc.StatusCode.UNAVAILABLE
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    for stream in (idle, working):
        stream.end()


def test_a_cancelled_stream_leaves_nothing_open(bench: Bench) -> None:
    stream = Stream(bench)
    stream.put(bench.request())
    stream.next()
    stream.call.cancel()
    wait_until(lambda: bench.open_calls == 0)
    stream.end()
    bench.infer()
