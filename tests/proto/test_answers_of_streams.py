"""Answers of streams, and the header of a response that is written without protobuf."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl import errors
from edl.errors import BadAnswer, EdlError, RateLimited, RetryableError, WireError
from edl.proto import inference_pb2 as pb
from edl.proto.answer_header import Parameter, answer_header
from edl.proto.status import from_status, to_metadata, to_status
from edl.proto.stream_answers import answered, failed, read

from .strategies import as_parameters

ERRORS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, EdlError) and kind is not EdlError
]


@given(st.binary(max_size=300))
def test_a_response_comes_out_as_it_went_in(response: bytes) -> None:
    assert bytes(read(answered(response))) == response


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_a_failure_is_read_as_by_a_call_of_its_own(kind: type[EdlError]) -> None:
    error = kind("why not")
    if isinstance(error, RateLimited):
        error.retry_after_s = 1.5
    as_call = from_status(*to_status(error), to_metadata(error))
    answer = pb.ModelStreamInferResponse.FromString(failed(error, "7"))
    assert answer.infer_response.id == "7", "it names its request"
    with pytest.raises(EdlError) as caught:
        read(failed(error, "7"))
    assert type(caught.value) is type(as_call)
    assert str(caught.value) == str(as_call)
    if isinstance(as_call, RateLimited):
        assert isinstance(caught.value, RateLimited)
        assert caught.value.retry_after_s == as_call.retry_after_s == 1.5


def test_what_is_neither_labels_nor_an_error_is_no_answer() -> None:
    twice = answered(b"a") + answered(b"b")
    for nonsense in (b"", twice, b"\xff\xff", answered(b"x")[:-1], b"\x0a\x01\xff"):
        with pytest.raises(BadAnswer):
            read(nonsense)


@pytest.mark.parametrize(
    ("status", "kind"),
    [({}, RetryableError), ({"status": "OK"}, BadAnswer), ({"status": "NEW"}, RetryableError)],
)
def test_an_error_without_a_known_status(status: dict[str, Any], kind: type[EdlError]) -> None:
    about = pb.ModelInferResponse(parameters=as_parameters(status))
    answer = pb.ModelStreamInferResponse(error_message="so", infer_response=about)
    with pytest.raises(kind, match="so"):
        read(answer.SerializeToString())


@given(st.binary(max_size=200))
def test_garbage_raises_our_errors_only(data: bytes) -> None:
    with contextlib.suppress(EdlError):
        read(data)


TEXT = st.text(max_size=200)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.floats(allow_nan=False),
    st.sampled_from([0, 1, 0.0, -0.0, 1.0, False, True, ""]),
    TEXT,
)
PARAMETERS = st.dictionaries(TEXT, VALUES, max_size=6)
OUTPUTS = st.lists(
    st.tuples(TEXT, TEXT, st.lists(st.integers(0, 1 << 62), max_size=5).map(tuple), PARAMETERS),
    max_size=3,
)


def said(parameters: Any) -> dict[str, Parameter]:
    return {
        name: getattr(value, str(value.WhichOneof("parameter_choice")))
        for name, value in parameters.items()
    }


def spelt(parameters: dict[str, Parameter]) -> dict[str, str]:
    return {name: repr(value) for name, value in parameters.items()}


@given(TEXT, TEXT, TEXT, PARAMETERS, OUTPUTS)
@example("m", "", "", {"a": 0.0}, [])
@example("m", "", "", {"a": -0.0}, [])
@example("m", "", "", {"a": True, "b": 1}, [("y", "FP32", (0,), {"b": True, "a": 1})])
def test_header(name: str, version: str, request_id: str, parameters: Any, outputs: Any) -> None:
    data = answer_header(
        model_name=name,
        model_version=version,
        request_id=request_id,
        parameters=parameters,
        outputs=outputs,
    )
    message = pb.ModelInferResponse.FromString(data)
    assert (message.model_name, message.model_version, message.id) == (name, version, request_id)
    assert spelt(said(message.parameters)) == spelt(parameters)
    assert len(message.outputs) == len(outputs)
    for output, given_one in zip(message.outputs, outputs, strict=True):
        assert (output.name, output.datatype, tuple(output.shape)) == given_one[:3]
        assert spelt(said(output.parameters)) == spelt(given_one[3])
    known = pb.ModelInferResponse.FromString(data)
    known.DiscardUnknownFields()
    assert known == message


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        *(({"a": value}, WireError) for value in (1 << 64, -(1 << 63) - 1, None)),
        *((text, UnicodeEncodeError) for text in ({"a": "\ud800"}, {"\ud800": 1})),
    ],
)
def test_a_parameter_that_cannot_be_sent_is_refused(parameters: Any, error: Any) -> None:
    beside: dict[str, Any] = {"model_name": "m", "model_version": "", "request_id": ""}
    with pytest.raises(error, match=r"parameter 'a' cannot be sent|surrogates"):
        answer_header(**beside, parameters=parameters, outputs=[])
