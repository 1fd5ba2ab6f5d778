"""The clients of Paddle Serving, at servers made of the generated code."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from edl.proto.clients import LabelRequest, TeacherClient, open_client
from edl.proto.paddle_serving import pipeline_pb2 as pb
from edl.proto.protocols import PADDLE_SERVING, PADDLE_SERVING_CPP
from edl.runtime import errors
from edl.tests.foreign_server import start
from edl.tests.paddle_serving_servers import SERVICE, GeneralModel, Pipeline, labels, serving
from edl.tests.waiting import DEADLINE_S

X = np.arange(24, dtype=np.float32).reshape(4, 6)


@pytest.fixture
def pipeline() -> Iterator[tuple[Pipeline, TeacherClient]]:
    servicer = Pipeline()
    with (
        serving(servicer) as address,
        closing(open_client(PADDLE_SERVING, address, SERVICE)) as client,
    ):
        yield servicer, client


def test_pipeline_probe_asks_for_an_unknown_service(
    pipeline: tuple[Pipeline, TeacherClient],
) -> None:
    """Its operators never see the probe: they may be busy."""
    servicer, client = pipeline
    servicer.answer = lambda: pytest.fail("its operators were asked")
    found = client.probe(DEADLINE_S)
    assert (found.inputs, found.outputs) == ((), ())
    (asked,) = servicer.requests
    assert asked.name not in ("", SERVICE)
    assert not asked.tensors


@pytest.mark.parametrize(
    ("number", "kind"),
    [(3001, errors.TeacherLost), (3003, errors.RetryableError), (6000, errors.RetryableError)],
)
def test_pipeline_with_another_error_is_not_ready(
    pipeline: tuple[Pipeline, TeacherClient], number: int, kind: type[errors.EdlError]
) -> None:
    servicer, client = pipeline
    servicer.stranger = number
    with pytest.raises(kind):
        client.probe(DEADLINE_S)


def test_a_pipeline_labels(pipeline: tuple[Pipeline, TeacherClient]) -> None:
    servicer, client = pipeline
    answer = client.infer(LabelRequest({"x": X}, request_id="17"), DEADLINE_S)
    assert list(answer.outputs) == ["y", "n"]
    assert answer.outputs["y"].tobytes() == labels(X).tobytes()
    assert answer.outputs["n"].tolist() == [4]
    assert servicer.requests[-1].logid == 17
    wanted = client.infer(LabelRequest({"x": X}, ("n", "none"), request_id="batch-8"), DEADLINE_S)
    assert list(wanted.outputs) == ["n"]
    assert servicer.requests[-1].logid == 0


def test_an_error_number_or_text_is_an_error(pipeline: tuple[Pipeline, TeacherClient]) -> None:
    servicer, client = pipeline
    with pytest.raises(errors.RequestRefused, match="err_no 5000: invalid arg list"):
        client.infer(LabelRequest({"picture": X}), DEADLINE_S)
    servicer.answer = lambda: pb.Response(key=["y"], value=["array([[1.0]], dtype=float32)"])
    with pytest.raises(errors.BadAnswer, match="answers with text"):
        client.infer(LabelRequest({"x": X}), DEADLINE_S)


def test_what_cannot_be_sent_is_refused_before_it_is(
    pipeline: tuple[Pipeline, TeacherClient],
) -> None:
    servicer, client = pipeline
    with pytest.raises(errors.RequestRefused, match="cannot be sent"):
        client.infer(LabelRequest({"x": np.array([b"text"], object)}), DEADLINE_S)
    assert not servicer.requests


def test_an_answer_that_does_not_come_ends_in_time(
    pipeline: tuple[Pipeline, TeacherClient],
) -> None:
    servicer, client = pipeline
    over = threading.Event()
    servicer.answer = lambda: pb.Response(err_no=int(over.wait(DEADLINE_S)))
    try:
        with pytest.raises(errors.DeadlineExceeded):
            client.infer(LabelRequest({"x": X}), 0.2)
    finally:
        over.set()


@pytest.mark.parametrize("protocol", [PADDLE_SERVING, PADDLE_SERVING_CPP])
def test_a_server_of_another_protocol_says_so(protocol: str) -> None:
    server = start("grpc")
    try:
        with (
            closing(open_client(protocol, server.address, SERVICE)) as client,
            pytest.raises(errors.RequestRefused, match="--protocol oip"),
        ):
            client.infer(LabelRequest({"x": X}), DEADLINE_S)
    finally:
        server.stop()


def test_a_cpp_server_labels() -> None:
    servicer = GeneralModel()
    with (
        serving(servicer) as address,
        closing(open_client(PADDLE_SERVING_CPP, f"grpc://{address}", "")) as client,
    ):
        assert client.probe(DEADLINE_S).inputs == ()
        answer = client.infer(LabelRequest({"x": X}, ("y",), request_id="17"), DEADLINE_S)
    assert list(answer.outputs) == ["y"]
    assert answer.outputs["y"].tobytes() == labels(X).tobytes()
    asked = servicer.requests[-1]
    assert (asked.log_id, list(asked.fetch_var_names)) == (17, ["y"])
