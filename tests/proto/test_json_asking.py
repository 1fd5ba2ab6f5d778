"""`ModelInfer` over HTTP from both sides: what a client writes a server reads, and back."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import RequestRefused, WireError
from edl.proto import json_asking, json_tensors
from edl.proto.datatypes import Array
from edl.proto.tensors import InferRequest, InferResponse
from edl.tests.proto.strategies import arrays, same

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def served(head: bytes, raws: list[memoryview]) -> InferRequest:
    """The request as a server of ours reads it."""
    raw = memoryview(b"".join(raws))
    return json_tensors.decode_request(memoryview(head), raw, _nothing_there, model_name="m")


def answered(request: InferRequest, outputs: dict[str, Array], **said: Any) -> InferResponse:
    """What a client reads of our server's answer to it."""
    response = InferResponse("m", outputs=outputs, **said)
    head, raws = json_tensors.encode_response(request, response, ())
    return json_asking.decode_response(memoryview(head), memoryview(b"".join(raws)))


@given(arrays(), st.booleans())
def test_arrays_go_and_come_back_bit_for_bit(array: Array, binary: bool) -> None:
    finite = array.dtype.kind not in "fcV" or bool(np.isfinite(array).all())
    text = not array.dtype.hasobject or all(_is_text(element) for element in array.ravel())
    try:
        head, raws = json_asking.encode_request({"x": array}, ("y",), binary=binary)
    except (RequestRefused, ValueError):
        assert not binary
        assert not (finite and text)
        return
    request = served(head, raws)
    assert request.outputs == ("y",)
    assert same(request.inputs["x"], array)
    assert same(answered(request, {"y": array}).outputs["y"], array)


def test_all_that_is_said_beside_the_tensors_arrives() -> None:
    head, raws = json_asking.encode_request(
        {"x": X}, ("a", "b"), request_id="7", parameters={"teacher_id": "t", "n": 2},
        output_parameters={"a": {"form": "float16"}}, binary=False,
    )  # fmt: skip
    assert not raws
    request = served(head, raws)
    assert (request.request_id, request.parameters) == ("7", {"teacher_id": "t", "n": 2})
    assert request.outputs == ("a", "b")
    assert request.output_parameters["a"] == {"form": "float16"}
    beside = {"parameters": {"draining": True}, "output_parameters": {"a": {"k": 1}}}
    said = answered(request, {"a": X}, **beside)
    assert said.parameters == {"draining": True}
    assert said.output_parameters == {"a": {"k": 1}}


def test_what_other_servers_put_beside_tensors_is_left_out() -> None:
    output = {
        "name": "y", "datatype": "FP32", "shape": [1], "data": [1.5],
        "parameters": {"content_type": "np", "headers": {"a": None}, "none": None},
    }  # fmt: skip
    said = _answer(id=None, parameters=None, model_version=None, outputs=[output])
    assert said.outputs["y"].tolist() == [1.5]
    assert (said.parameters, said.output_parameters) == ({}, {"y": {"content_type": "np"}})


@pytest.mark.parametrize(
    "outputs",
    [
        None,
        {},
        [1],
        [{"name": "y", "datatype": "FP32", "shape": [1]}],
        [{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.0]}],
        [{"name": "y", "datatype": "FP32", "shape": [1], "data": [None]}],
        [{"name": "y", "datatype": "FLOAT", "shape": [1], "data": [1.0]}],
        [{"name": "y", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}],
        [
            {
                "name": "y", "datatype": "FP32", "shape": [1],
                "parameters": {"shared_memory_region": "r", "shared_memory_byte_size": 4},
            }
        ],
        [{"name": "y", "datatype": "FP32", "shape": [1], "data": [1.0]}] * 2,
    ],
)  # fmt: skip
def test_answers_are_not_believed(outputs: Any) -> None:
    with pytest.raises(WireError):
        _answer(outputs=outputs)


def test_an_answer_without_outputs_is_none() -> None:
    with pytest.raises(WireError, match="names no outputs"):
        _answer()


def _answer(**message: Any) -> InferResponse:
    head = memoryview(json.dumps(message).encode())
    return json_asking.decode_response(head, head[len(head) :])


def _is_text(element: bytes) -> bool:
    try:
        bytes(element).decode()
    except UnicodeDecodeError:
        return False
    return True


def _nothing_there(place: object) -> memoryview:
    raise AssertionError("nothing lies in shared memory")
