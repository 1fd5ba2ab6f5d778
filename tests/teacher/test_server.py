"""The gRPC server on a real socket, with a function for a model: methods, statuses, limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from edl.errors import (
    BadAnswer,
    DeadlineExceeded,
    RequestRefused,
    RetryableError,
)
from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.status import PUSHBACK, from_status
from edl.teacher.refusals import Overloaded
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.bench import SERVICE, WAIT_S, Bench, refusal
from edl.tests.teacher.fakes import SPEC, array


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.close()


def test_labels_come_back_with_who_made_them_and_what_it_took(bench: Bench) -> None:
    answer = bench.infer(request_id="17")
    assert answer.model_name == "resnet"
    assert answer.request_id == "17"
    assert list(answer.outputs) == ["sum", "double"]
    np.testing.assert_array_equal(answer.outputs["double"], array(3, 4) * 2)
    assert answer.parameters == {
        "teacher_id": "t1",
        "incarnation": "41",
        "content_id": "c0ffee",
        "numerics_id": SPEC.numerics_id,
        "device_seconds": 0.004,
        "draining": False,
    }
    assert (bench.traffic.answered, bench.traffic.in_flight) == (1, 0)


def test_the_outputs_asked_for_come_in_their_order(bench: Bench) -> None:
    assert list(bench.infer(outputs=["double"]).outputs) == ["double"]


def test_outputs_come_in_the_forms_asked_for_and_say_so(bench: Bench) -> None:
    asked = {"double": {"form": "topk:2"}, "sum": {"form": "bfloat16"}}
    answer = bench.infer(outputs=["double", "sum"], output_parameters=asked)
    assert list(answer.outputs) == ["double.values", "double.indices", "double.tail", "sum"]
    assert answer.outputs["double.indices"].dtype == np.uint8
    np.testing.assert_array_equal(answer.outputs["double.indices"], [[3, 2]] * 3)
    np.testing.assert_array_equal(answer.outputs["double.values"], 2 * array(3, 4)[:, [3, 2]])
    assert answer.outputs["sum"].dtype.name == "bfloat16"
    said = {"form": "topk:2", "classes": 4}
    assert answer.output_parameters == {
        "double.values": said,
        "double.indices": said,
        "double.tail": said,
        "sum": {"form": "bfloat16"},
    }
    code, details = refusal(lambda: bench.infer(parameters={"form": "topk:2"}))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "output 'sum' has shape [-1], no classes for topk:2" in details


def test_draining_is_said_in_every_answer(bench: Bench) -> None:
    bench.identity.draining = True
    assert bench.infer().parameters["draining"] is True


def test_a_request_for_this_instance_is_answered_and_for_another_one_is_not(bench: Bench) -> None:
    bench.infer(parameters={"teacher_id": "t1", "incarnation": "41"})
    for other in ({"teacher_id": "t2"}, {"incarnation": "40"}, {"incarnation": 40}):
        code, details = refusal(lambda other=other: bench.infer(parameters=other))  # type: ignore[misc]
        assert code is grpc.StatusCode.FAILED_PRECONDITION
        assert "was asked for; this is" in details


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"model_name": "vgg"}, "unknown model 'vgg'"),
        ({"model_version": "9"}, "unknown version '9'"),
        ({"inputs": {"y": array(3, 4)}}, "unknown input 'y': expected ['x']"),
        ({"inputs": {"x": array(3, 5)}}, "has shape [3, 5], expected [-1, 4]"),
        ({"inputs": {"x": array(3, 4, dtype="f8")}}, "has datatype FP64, expected FP32"),
        ({"inputs": {"x": array(0, 4)}}, "the batch is empty"),
        ({"outputs": ["logits"]}, "unknown output 'logits'"),
    ],
)
def test_a_wrong_request_is_an_invalid_argument(
    bench: Bench, request_: dict[str, Any], words: str
) -> None:
    code, details = refusal(lambda: bench.infer(**request_))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert words in details
    assert bench.count("edl_teacher_requests_total", outcome="refused") == 1
    assert bench.refused("malformed") == 1
    bench.infer()


@pytest.mark.parametrize("data", [b"", b"garbage", b"\xff" * 100, b"\x3a\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_request_are_an_invalid_argument(bench: Bench, data: bytes) -> None:
    assert refusal(lambda: bench.infer_bytes(data))[0] is grpc.StatusCode.INVALID_ARGUMENT
    bench.infer()


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
def test_so_are_they_for_a_question_about_the_model(
    bench: Bench, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    call = bench.channel.unary_unary(f"/{SERVICE}/{method}", None, None)
    code, details = refusal(lambda: call(b"\xff\xff", timeout=WAIT_S))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert details == f"these bytes are no {method}Request"
    assert caplog.records == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Overloaded("all 2 slots are taken"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (RetryableError("restarting"), grpc.StatusCode.ABORTED),
        (DeadlineExceeded("over"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (BadAnswer("NaN"), grpc.StatusCode.INTERNAL),
    ],
)
def test_what_the_predictor_says_reaches_the_client(
    bench: Bench, error: Exception, code: grpc.StatusCode
) -> None:
    def fail() -> None:
        raise error

    bench.labeller.before = fail
    assert refusal(bench.infer) == (code, str(error))
    outcome = "bad_answer" if isinstance(error, BadAnswer) else "failed"
    if isinstance(error, Overloaded):
        outcome = "refused"
        assert bench.refused("overloaded") == 1
    assert bench.count("edl_teacher_requests_total", outcome=outcome) == 1


def test_a_full_teacher_says_when_there_will_be_room(bench: Bench) -> None:
    def full() -> None:
        raise Overloaded("all 2 slots are taken", 0.25)

    bench.labeller.before = full
    with pytest.raises(grpc.RpcError) as caught:
        bench.infer()
    error: Any = caught.value
    assert (PUSHBACK, "250") in [tuple(pair) for pair in error.trailing_metadata()]


def test_the_deadline_of_a_call_travels_with_its_request(bench: Bench) -> None:
    before = time.monotonic()
    bench.method()(bench.request(), timeout=WAIT_S)
    (deadline_s,) = bench.labeller.deadlines_s
    assert deadline_s is not None
    assert before < deadline_s <= time.monotonic() + WAIT_S + 0.1
    bench.method()(bench.request(), timeout=None)
    assert bench.labeller.deadlines_s[1] is None


def test_a_message_beyond_the_limit_is_refused_and_the_server_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    code, details = refusal(lambda: bench.infer(rows=1 << 17))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in details
    wait_for(lambda: bench.refused("too_large") == 1)
    assert caplog.records == []
    bench.infer(rows=1000)


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
def test_a_question_about_the_model_may_not_be_large(
    bench: Bench, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    request = pb.ModelReadyRequest(name="x" * (1 << 17)).SerializeToString()
    code, details = refusal(lambda: bench.method(method)(request, timeout=WAIT_S))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(from_status(code, details), RequestRefused), "not to be tried again"
    assert bench.refused("too_large") == 1
    assert caplog.records == []


@pytest.mark.parametrize("method", ["ServerLive", "ServerReady", "ServerMetadata"])
@pytest.mark.parametrize("data", [b"\xff\xff", bytes(1 << 21)], ids=["garbage", "large"])
def test_a_request_that_has_no_fields_is_not_looked_at(
    bench: Bench, method: str, data: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    assert bench.method(method)(data, timeout=WAIT_S)
    assert bench.refused("malformed") == bench.refused("too_large") == 0
    assert caplog.records == []
    bench.infer()


def test_probes_and_metadata(bench: Bench) -> None:
    assert bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert bench.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    ready = pb.ModelReadyRequest(name="resnet")
    assert bench.call("ModelReady", ready, pb.ModelReadyResponse).ready
    server = bench.call("ServerMetadata", pb.ServerMetadataRequest(), pb.ServerMetadataResponse)
    assert server.name == "edl-teacher"
    request = pb.ModelMetadataRequest(name="resnet")
    model = bench.call("ModelMetadata", request, pb.ModelMetadataResponse)
    assert (model.name, list(model.versions), model.platform) == ("resnet", ["1"], "fake")
    assert [(t.name, t.datatype, list(t.shape)) for t in model.inputs] == [("x", "FP32", [-1, 4])]
    assert [t.name for t in model.outputs] == ["sum", "double"]


def test_a_model_that_loads_is_live_and_not_ready(bench: Bench) -> None:
    bench.labeller.ready = False
    assert bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
    assert not bench.call("ServerReady", pb.ServerReadyRequest(), pb.ServerReadyResponse).ready
    ready = pb.ModelReadyRequest(name="resnet")
    assert not bench.call("ModelReady", ready, pb.ModelReadyResponse).ready
    assert refusal(bench.infer) == (grpc.StatusCode.ABORTED, "the model is loading")


@pytest.mark.parametrize("method", ["ModelReady", "ModelMetadata"])
def test_questions_about_another_model_are_refused(bench: Bench, method: str) -> None:
    request = pb.ModelReadyRequest(name="vgg")
    code, details = refusal(lambda: bench.call(method, request, pb.ModelReadyResponse))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert "unknown model 'vgg'" in details


def test_a_method_that_is_not_served_is_unimplemented(bench: Bench) -> None:
    call = bench.channel.unary_unary(f"/{SERVICE}/RepositoryModelLoad", None, None)
    assert refusal(lambda: call(b"", timeout=WAIT_S))[0] is grpc.StatusCode.UNIMPLEMENTED
    assert bench.refused("malformed") == 1


def test_probes_are_answered_while_many_requests_wait_for_the_model(bench: Bench) -> None:
    inside, go = threading.Semaphore(0), threading.Event()

    def wait_inside() -> None:
        inside.release()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    with ThreadPoolExecutor(30) as pool:
        asked = [pool.submit(bench.infer) for _ in range(30)]
        for _ in asked:
            assert inside.acquire(timeout=WAIT_S)
        assert bench.call("ServerLive", pb.ServerLiveRequest(), pb.ServerLiveResponse).live
        assert bench.traffic.in_flight == 30
        go.set()
        for future in asked:
            assert len(future.result(WAIT_S).outputs["sum"]) == 3
    assert bench.labeller.released == 30


def test_what_is_labelled_for_a_caller_that_has_gone_is_given_back(bench: Bench) -> None:
    inside, go = threading.Event(), threading.Event()

    def wait_inside() -> None:
        inside.set()
        go.wait(WAIT_S)

    bench.labeller.before = wait_inside
    call = bench.method().future(bench.request(), timeout=WAIT_S)
    assert inside.wait(WAIT_S)
    call.cancel()
    wait_for(lambda: bench.count("edl_teacher_requests_total", outcome="abandoned") == 1)
    assert bench.traffic.in_flight == 0
    assert bench.labeller.released == 0
    go.set()
    wait_for(lambda: bench.labeller.released == 1)


def test_what_takes_more_than_a_moment_to_read_or_write_is_answered_all_the_same() -> None:
    """Elements in typed fields, and labels of more than a megabyte: both go by other threads."""
    bench = Bench(max_message_bytes=64 << 20)
    try:
        x = array(1 << 17, 4)
        message = pb.ModelInferRequest(model_name="resnet")
        message.inputs.add(name="x", datatype="FP32", shape=x.shape).contents.fp32_contents.extend(
            x.reshape(-1).tolist()
        )
        answer = tensors.decode_response(bench.infer_bytes(message.SerializeToString()))
        np.testing.assert_array_equal(answer.outputs["double"], x * 2)
    finally:
        bench.close()
