"""Streams of requests, by gRPC: their order, limits and end."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, Make, refusal
from edl.tests.teacher.fakes import array
from edl.tests.waiting import wait_until


class GrpcStream:
    """One stream to a server; `put` sends requests, `next` waits for the next answer."""

    def __init__(self, bench: Bench) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        method = f"/{SERVICE}/ModelStreamInfer"
        parse = pb.ModelStreamInferResponse.FromString
        bench.at_end.callback(self.close)
        self.call: Any = bench.channel.stream_stream(method, None, parse)(
            iter(self._requests.get, None), timeout=WAIT_S
        )

    def put(self, *requests: bytes) -> None:
        for request in requests:
            self._requests.put(request)

    def next(self) -> pb.ModelStreamInferResponse:
        answer: pb.ModelStreamInferResponse = next(self.call)
        return answer

    def close(self) -> None:
        self._requests.put(None)


def test_answers_come_in_the_order_of_the_requests(make: Make) -> None:
    """Also where the second is labelled before the first."""
    bench = make(slots=8)
    held = bench.hold()
    with closing(GrpcStream(bench)) as stream:
        stream.put(bench.request(1, request_id="first"))
        held.wait()
        bench.heal()
        stream.put(bench.request(2, request_id="second"))
        wait_until(lambda: bench.requests("answered") == 1)
        held.release()
        answers = [stream.next().infer_response for _ in range(2)]
    assert [answer.id for answer in answers] == ["first", "second"]
    second = tensors.decode_response(answers[1].SerializeToString())
    assert second.outputs["double"].tobytes() == (array(2, 4) * 2).tobytes()
    wait_until(lambda: bench.open_calls == 0)


def test_a_wrong_request_is_refused_and_the_others_are_answered(bench: Bench) -> None:
    unknown_output = bench.request(outputs=["no"], request_id="c")
    stream = GrpcStream(bench)
    stream.put(bench.request(request_id="a"), b"\xff", unknown_output)
    assert stream.next().infer_response.id == "a"
    malformed, unknown = stream.next(), stream.next()
    assert (malformed.infer_response.id, unknown.infer_response.id) == ("", "c")
    assert "truncated" in malformed.error_message
    assert "unknown output 'no'" in unknown.error_message
    assert bench.refused("malformed") == 2
    stream.put(bench.request(request_id="d"))
    assert stream.next().infer_response.id == "d"


def test_no_more_than_two_requests_are_read_ahead(make: Make) -> None:
    bench = make(slots=8)
    held = bench.hold()
    stream = GrpcStream(bench)
    stream.put(*[bench.request()] * 5)
    held.wait(2)
    bench.call("ServerLive")  # time for a third
    assert not held.more
    held.release()
    assert [stream.next().error_message for _ in range(5)] == [""] * 5


def test_a_request_over_the_limit_ends_its_stream(bench: Bench) -> None:
    stream = GrpcStream(bench)
    stream.put(bytes((1 << 20) + 1))
    assert refusal(stream.next)[0] is grpc.StatusCode.RESOURCE_EXHAUSTED
    wait_until(lambda: bench.refused("too_large") == 1)
    bench.infer()


def test_a_stop_answers_what_was_sent_and_waits_for_no_idle_stream(bench: Bench) -> None:
    """Of a client that does not understand GOAWAY messages."""
    idle, working = GrpcStream(bench), GrpcStream(bench)
    with ThreadPoolExecutor(1) as pool:
        idle.put(bench.request())
        idle.next()
        held = bench.hold()
        working.put(bench.request(request_id="last"))
        held.wait()
        stopping = pool.submit(bench.server.stop, 2 * WAIT_S)
        assert refusal(idle.next)[0] is grpc.StatusCode.UNAVAILABLE
        held.release()
        assert working.next().infer_response.id == "last"
        assert refusal(working.next)[0] is grpc.StatusCode.UNAVAILABLE
        stopping.result(WAIT_S)
