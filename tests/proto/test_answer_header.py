"""The header of a response, which is written without protobuf."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.errors import WireError
from edl.proto import inference_pb2 as pb
from edl.proto.answer_header import Parameter, answer_header

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
