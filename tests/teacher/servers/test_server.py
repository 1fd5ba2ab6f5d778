"""The gRPC server on a real socket: methods, statuses, limits, calls without a request, its end."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import numpy as np
import pytest

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.security.instance import verify
from edl.proto.security.servers import aio_server
from edl.proto.status import from_status
from edl.runtime.errors import AddressInUse, RequestRefused, UsageError
from edl.teacher.servers import server
from edl.tests.proto import raw_http2
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, GrpcStream, Make, half_open, refusal
from edl.tests.teacher.fakes import SPEC, array
from edl.tests.waiting import wait_until

Code = grpc.StatusCode


def test_labels_come_with_the_teacher_and_are_counted(bench: Bench) -> None:
    data = bench.request(3, request_id="17")
    answered = bench.infer_bytes(data)
    answer = tensors.decode_response(answered)
    assert answer.model_name == "resnet"
    assert answer.request_id == "17"
    assert list(answer.outputs) == ["sum", "double"]
    np.testing.assert_array_equal(answer.outputs["double"], array(3, 4) * 2)
    assert answer.parameters == {
        "teacher_id": "t1", "incarnation": "41", "content_id": "c0ffee",
        "numerics_id": SPEC.numerics_id, "device_seconds": 0.004, "draining": False,
    }  # fmt: skip
    assert (bench.recorder.labelled_requests, bench.recorder.in_flight) == (1, 0)
    assert bench.count("edl_teacher_received_bytes_total") == len(data)
    assert bench.count("edl_teacher_sent_bytes_total") == len(answered)
    assert bench.count("edl_teacher_samples_total") == 3
    assert bench.count("edl_teacher_device_seconds_sum") == 0.004
    assert bench.count("edl_teacher_request_seconds_count") == bench.requests("answered") == 1
    bench.identity.draining = True
    assert bench.infer(outputs=["double"]).parameters["draining"] is True


def test_a_timeout_counts_from_the_arrival(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not from when a slow request is decoded."""
    decode, decoded_s = tensors.decode_request, list[float]()

    def decode_slowly(data: Any, read: Any, *, refuse_slow: bool) -> tensors.InferRequest:
        if refuse_slow:
            raise tensors.SlowToDecode
        decoded_s.append(time.monotonic())
        return decode(data, read)

    monkeypatch.setattr(tensors, "decode_request", decode_slowly)
    bench.infer(parameters={"timeout": 60_000_000})
    assert bench.labeller.deadlines_s[0] <= decoded_s[0] + 60.0


def test_outputs_come_in_the_requested_forms(bench: Bench) -> None:
    asked = {"double": {"form": "topk:2"}, "sum": {"form": "bfloat16"}}
    answer = bench.infer(outputs=["double", "sum"], output_parameters=asked)
    assert list(answer.outputs) == ["double.values", "double.indices", "double.tail", "sum"]
    assert answer.outputs["double.indices"].dtype == np.uint8
    np.testing.assert_array_equal(answer.outputs["double.indices"], [[3, 2]] * 3)
    np.testing.assert_array_equal(answer.outputs["double.values"], 2 * array(3, 4)[:, [3, 2]])
    assert answer.outputs["sum"].dtype.name == "bfloat16"
    topk = {"form": "topk:2", "classes": 4}
    parts = dict.fromkeys(("double.values", "double.indices", "double.tail"), topk)
    assert answer.output_parameters == {**parts, "sum": {"form": "bfloat16"}}


def test_large_messages_and_typed_fields_are_answered(make: Make) -> None:
    """Both are decoded or encoded by other threads than the event loop's."""
    bench, x = make(max_message_bytes=64 << 20), array(1 << 17, 4)
    message = pb.ModelInferRequest(model_name="resnet")
    contents = message.inputs.add(name="x", datatype="FP32", shape=x.shape).contents
    contents.fp32_contents.extend(x.reshape(-1).tolist())
    answer = tensors.decode_response(bench.infer_bytes(message.SerializeToString()))
    np.testing.assert_array_equal(answer.outputs["double"], x * 2)


def test_malformed_bytes_are_refused(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    for data in (b"", b"garbage", b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x0f"):
        assert refusal(bench.infer_bytes, data)[0] is Code.INVALID_ARGUMENT
    assert bench.requests("refused") == bench.refused("malformed") == 4
    for name in ("ModelReady", "ModelMetadata"):
        code, details = refusal(bench.method(name), b"\xff\xff", timeout=WAIT_S)
        assert (code, details) == (Code.INVALID_ARGUMENT, f"these bytes are no {name}Request")
    bench.infer()
    assert caplog.records == []


def test_messages_have_a_limit(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    code, details = refusal(bench.infer, rows=1 << 17)
    assert code is Code.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    wait_until(lambda: bench.refused("too_large") == 1)
    bench.infer(rows=1000)
    for count, name in ((2, "ModelReady"), (3, "ModelMetadata")):
        code, details = refusal(bench.call, name, name="x" * (1 << 17))
        assert isinstance(from_status(code, details), RequestRefused), "not to be tried again"
        assert bench.refused("too_large") == count
    assert caplog.records == []


def test_probes_and_metadata(bench: Bench) -> None:
    assert bench.call("ServerLive").live
    assert bench.call("ServerReady").ready
    assert bench.call("ModelReady", name="resnet").ready
    assert bench.call("ServerMetadata").name == "edl-teacher"
    model = bench.call("ModelMetadata", name="resnet")
    assert (model.name, list(model.versions), model.platform) == ("resnet", ["1"], "fake")
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("x", "FP32", [-1, 4])]
    assert [t.name for t in model.outputs] == ["sum", "double"]
    bench.labeller.ready = False
    assert bench.call("ServerLive").live
    assert not bench.call("ServerReady").ready
    assert not bench.call("ModelReady", name="resnet").ready
    assert refusal(bench.infer) == (Code.ABORTED, "the model is loading")


def test_unknown_models_and_methods_are_refused(bench: Bench) -> None:
    for method in ("ModelReady", "ModelMetadata"):
        code, details = refusal(bench.call, method, name="vgg")
        assert code is Code.INVALID_ARGUMENT
        assert "unknown model 'vgg'" in details
    load = bench.method("RepositoryModelLoad")
    assert refusal(load, b"", timeout=WAIT_S)[0] is Code.UNIMPLEMENTED
    nothing = bench.channel.stream_unary(f"/{SERVICE}/ModelInfer", None, None)
    code, details = refusal(nothing, iter(()), timeout=WAIT_S)
    assert (code, details) == (Code.INVALID_ARGUMENT, "the call ended without a request")
    assert bench.refused("malformed") == 4
    # Bytes that are no UTF-8, another service, none; gRPC itself may end such a connection.
    paths = [b"/s/\xe8\xfd", b"\xff" * 100, b"/other/echo", f"/{SERVICE}/\x80".encode(), b"/", b""]
    for path in paths * 20:
        said = raw_http2.answer(bench.address, raw_http2.call(path, b""))
        assert b"grpc-status\x0212" in said or said == b""
    assert bench.refused("malformed") >= 4 + 3 * 20
    bench.infer()


def trailing_metadata(bench: Bench, *metadata: tuple[str, str]) -> dict[str, str]:
    rpc = bench.method("ServerMetadata")
    _, call = rpc.with_call(b"", timeout=WAIT_S, metadata=metadata)
    return {name: str(value) for name, value in call.trailing_metadata()}


def test_an_instance_proves_its_identity(bench: Bench) -> None:
    proof = trailing_metadata(bench, ("edl-challenge", "c7"), ("edl-instance", "t1"))
    assert proof["edl-incarnation"] == "41"
    assert verify(bench.identity.key, "t1", 41, "c7", proof["edl-proof"])
    assert bench.identity.key not in repr(bench.identity)
    assert "edl-proof" not in trailing_metadata(bench)
    other = (("edl-challenge", "c7"), ("edl-instance", "t9"))
    words = "teacher_id 't9' was asked for; this is 't1'"
    assert refusal(trailing_metadata, bench, *other) == (Code.FAILED_PRECONDITION, words)
    assert bench.refused("wrong_instance") == 1


def test_a_call_whose_request_does_not_come_is_ended(bench: Bench) -> None:
    with half_open(bench, 1) as (call,):
        wait_until(lambda: bench.open_calls == 1)
        bench.advance(10.0)
        words = "the request did not arrive within 10 s of its call"
        assert refusal(call.result, WAIT_S) == (Code.ABORTED, words)
    assert bench.requests("refused") == 0, "there was no request"
    bench.infer()


def test_an_answer_that_is_not_read_counts_as_a_call_until_its_connection_ends(make: Make) -> None:
    bench = make(max_calls_per_peer=1)
    data = raw_http2.call(f"/{SERVICE}/ModelInfer".encode(), bench.request(), window=0)
    host, port = bench.address.split(":")
    with socket.create_connection((host, int(port)), WAIT_S) as connection:
        connection.sendall(data)
        wait_until(lambda: bench.requests("answered") == 1)
        assert refusal(bench.infer)[0] is Code.RESOURCE_EXHAUSTED
    wait_until(lambda: bench.open_calls == 0)


def test_cancelling_before_the_request_counts_as_no_error(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with half_open(bench, 3):
        wait_until(lambda: bench.open_calls == 3)
        bench.infer()
    wait_until(lambda: bench.open_calls == 0)
    assert bench.refused("malformed") == bench.refused("too_large") == 0
    assert caplog.records == []


def test_empty_requests_are_not_awaited_or_read(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    for method in ("ServerLive", "ServerReady", "ServerMetadata"):
        with half_open(bench, 3, method) as calls:
            assert all(call.result(WAIT_S) for call in calls)
        for data in (b"\xff\xff", bytes(1 << 21)):
            assert bench.method(method)(data, timeout=WAIT_S)
    assert bench.refused("malformed") == bench.refused("too_large") == 0
    assert caplog.records == []
    bench.infer()


@pytest.mark.parametrize("method", ["ModelInfer", "ModelMetadata"])
def test_the_oldest_half_open_call_is_evicted_for_a_new_one(make: Make, method: str) -> None:
    bench = make(max_calls_per_peer=4)
    with half_open(bench, 12, method) as calls:
        wait_until(lambda: sum(call.done() for call in calls) == 8)
        assert {call.code() for call in calls if call.done()} == {Code.RESOURCE_EXHAUSTED}
        for _ in range(10):
            bench.infer()
            assert bench.call("ServerLive").live
        assert bench.refused("rate_limited") >= 8


def test_an_idle_connection_is_closed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_IDLE_MS", 100)
    bench, states = make(), list[grpc.ChannelConnectivity]()
    note = states.append
    bench.channel.subscribe(note)
    bench.infer()
    wait_until(lambda: states[-1:] == [grpc.ChannelConnectivity.IDLE])
    bench.infer()
    bench.channel.unsubscribe(note)
    known: Any = bench.channel
    watching = known._connectivity_state  # noqa: SLF001 - its thread must end before the channel
    wait_until(lambda: not watching.polling)


def test_a_server_tells_when_it_ends_by_itself(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[grpc.aio.Server] = []

    def recorded(*arguments: Any, **names: Any) -> grpc.aio.Server:
        servers.append(aio_server(*arguments, **names))
        return servers[-1]

    monkeypatch.setattr("edl.teacher.servers.server.aio_server", recorded)
    ended, stopped = threading.Event(), threading.Event()
    bench, other = make(on_ended=ended.set), make(on_ended=stopped.set)
    asyncio.run_coroutine_threadsafe(servers[0].stop(0), bench.loop).result(WAIT_S)
    assert ended.wait(WAIT_S)
    other.server.stop(0)
    assert not stopped.is_set()


def test_a_port_that_is_in_use_is_refused(bench: Bench, make: Make) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"another process listens on 127.0.0.1:{port}"):
            make(port=port)
    with pytest.raises(AddressInUse):
        make(port=bench.server.port)
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1:0"):
        make(host="192.0.2.1")


# --- streams of requests


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


@pytest.mark.parametrize(
    ("memory", "requests", "read"), [({}, 5, 2), ({"request_bytes": 1 << 20}, 3, 1)]
)
def test_a_stream_reads_two_requests_ahead_if_it_has_memory_for_them(
    make: Make, memory: dict[str, int], requests: int, read: int
) -> None:
    bench = make(slots=8, **memory)
    held = bench.hold()
    stream = GrpcStream(bench)
    stream.put(*[bench.request()] * requests)
    held.wait(read)
    bench.call("ServerLive")  # time for one more
    assert not held.more
    held.release()
    assert [stream.next().error_message for _ in range(requests)] == [""] * requests


def test_a_request_over_the_limit_ends_its_stream(bench: Bench) -> None:
    stream = GrpcStream(bench)
    stream.put(bytes((1 << 20) + 1))
    assert refusal(stream.next)[0] is Code.RESOURCE_EXHAUSTED
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
        assert refusal(idle.next)[0] is Code.UNAVAILABLE
        held.release()
        assert working.next().infer_response.id == "last"
        assert refusal(working.next)[0] is Code.UNAVAILABLE
        stopping.result(WAIT_S)
