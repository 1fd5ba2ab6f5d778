"""The protocol over HTTP: arrays keep their bits; malformed requests and answers are refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import json_tensors
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest, LabelResponse
from edl.proto.datatypes import count_not_finite
from edl.proto.json_tensors import decode_request, encode_response
from edl.proto.shared_buffer import BufferRef
from edl.proto.tensors import InferRequest, SlowToDecode
from edl.runtime.errors import EdlError, RequestRefused, WireError
from edl.tests.proto.strategies import JSON, arrays, same


def no_memory(_: BufferRef) -> memoryview:
    raise AssertionError("nothing is in shared memory")


def decode(message: Any, raw: bytes = b"") -> InferRequest:
    head = memoryview(message if isinstance(message, bytes) else json.dumps(message).encode())
    return decode_request(head, memoryview(raw), no_memory, model_name="m")


def tensor(data: Any = None, **fields: Any) -> dict[str, Any]:
    given = {} if data is None else {"data": data}
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], **given, **fields}]}


def placed(**fields: Any) -> dict[str, Any]:
    named = {"region": "r", **fields}
    return tensor(parameters={f"shared_memory_{name}": value for name, value in named.items()})


def test_bytes_that_are_no_text_have_to_be_asked_for_as_bytes() -> None:
    noise = LabelResponse({"x": np.array([b"\xff"], dtype=object)}, model_name="m")
    with pytest.raises(RequestRefused, match="with the parameter 'binary_data': true"):
        encode_response(InferRequest("m"), noise, ())
    text = np.array([b"one", "z\u00e9ro".encode()], dtype=object)
    assert answered(InferRequest("m"), {"x": text}).outputs["x"].tolist() == text.tolist()


def test_the_parts_of_an_output_go_as_it_was_asked_for() -> None:
    asked = InferRequest("m", output_parameters={"logits": {"binary_data": True}})
    outputs = {"logits.tail": np.zeros(2, np.float32), "other": np.zeros(1, np.float32)}
    head, raws = encode_response(asked, LabelResponse(outputs, model_name="m"), ())
    assert list(map(bytes, raws)) == [bytes(8)]
    tail, other = json.loads(head)["outputs"]
    assert tail["parameters"] == {"binary_data_size": 8}
    assert other["data"] == [0.0]


def test_much_text_behind_the_object_is_not_for_a_moment() -> None:
    words = np.array([bytes(1000)] * 100, dtype=object)
    head, (raw,) = json_tensors.encode_request(LabelRequest({"x": words}), binary=True)
    with pytest.raises(SlowToDecode):
        decode_request(memoryview(head), raw, no_memory, model_name="m", refuse_slow=True)
    assert decode(head, bytes(raw)).inputs["x"].tolist() == words.tolist()


NO_ROOM = "8 bytes of a generation must lie"
BAD: dict[str, tuple[Any, ...]] = {
    "nothing": (b"", "no JSON"),
    "no Unicode": (b"\xff\xfe", "no JSON"),
    "a list": ([], "no object"),
    "a bomb of lists": (b"[" * 100_000, "more than 80 deep"),
    "a number without end": (b'{"inputs": ' + b"9" * 10_000 + b"}", "no JSON"),
    "NaN": (tensor([float("nan"), 1]), "NaN is no number"),
    "inputs that are no list": ({"inputs": {}}, "'inputs' is no list of objects"),
    "a shape that is no list": (tensor([1, 2], shape=2), "'shape' is no list of integers"),
    "a shape of truths": (tensor([1, 2], shape=[True]), "'shape' is no list of integers"),
    "too few elements": (tensor([1]), "needs 2 elements, 1 are given"),
    "text for numbers": (tensor(["1", "2"]), "is str in JSON"),
    "truths for numbers": (tensor([True, 2]), "is bool in JSON"),
    "lists and numbers": (tensor([[1], 2]), "side by side"),
    "uneven lists": (tensor([[1], [2, 3]], shape=[3]), "not equally long"),
    "deep lists": (tensor(json.loads("[" * 40 + "1" + "]" * 40), shape=[1]), "more than 32 deep"),
    "too large a float": (tensor([1e39, 0]), "beyond the range of FP32"),
    "a vast integer for a float": (tensor([10**400, 0]), "beyond the range of FP32"),
    "an integer out of range": (tensor([256, 0], datatype="UINT8"), r"not within 0\.\.255"),
    "a float for an integer": (tensor([1.0, 0], datatype="INT8"), "is float in JSON"),
    "a number for text": (tensor([1, 2], datatype="BYTES"), "is int in JSON"),
    "no datatype": (tensor([1, 2], datatype="FP33"), "unknown datatype"),
    "no elements": (tensor(), "exactly once"),
    "elements twice": (tensor([1, 2], parameters={"binary_data_size": 0}), "exactly once"),
    "bytes that are not there": (tensor(parameters={"binary_data_size": 8}), "0 bytes are left"),
    "a byte more": (tensor(parameters={"binary_data_size": 8}), "1 bytes follow", bytes(9)),
    "a negative size": (tensor(parameters={"binary_data_size": -1}), "is a number of bytes"),
    "odd parameters": (tensor([1, 2], parameters={"a": []}), "'parameters' is no object"),
    "half a place": (placed(), "byte_size"),
    "an odd place": (placed(byte_size="8"), "is an integer from 0 on"),
    "a place of another size": (placed(byte_size=9), "needs 8 bytes, its location .* has 9"),
    "a generation without room for it": (placed(byte_size=8, generation=1), NO_ROOM),
    "a generation within the place": (
        placed(byte_size=8, offset=64, generation=1, generation_offset=60),
        NO_ROOM,
    ),
    "an output twice": ({"outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
    "classes for an input": (tensor([1, 2], parameters={"classification": 2}), "not supported"),
    "classes": ({"outputs": [{"parameters": {"classification": 2}}]}, "is not supported"),
    "an id that is no text": ({"id": 3}, "'id' is no string"),
    "an input twice": ({"inputs": tensor([1, 2])["inputs"] * 2}, "'x' is given twice"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(name: str) -> None:
    message, words, *raw = BAD[name]
    with pytest.raises(WireError, match=words):
        decode(message, *raw)


_KEYS = st.sampled_from(["name", "datatype", "shape", "data", "parameters", "id", "inputs"])


@given(
    st.dictionaries(_KEYS, JSON | st.floats() | st.lists(st.dictionaries(_KEYS, JSON), max_size=2)),
    st.binary(max_size=16),
)
def test_any_json_is_read_or_refused(message: dict[str, Any], raw: bytes) -> None:
    with contextlib.suppress(EdlError):
        decode(message, raw)


X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_lists_may_be_nested() -> None:
    np.testing.assert_array_equal(decode(tensor(X.tolist(), shape=[2, 3])).inputs["x"], X)


def answered(request: InferRequest, outputs: dict[str, Array], **said: Any) -> LabelResponse:
    response = LabelResponse(outputs, model_name="m", **said)
    head, raws = json_tensors.encode_response(request, response, ())
    return json_tensors.decode_response(memoryview(head), memoryview(b"".join(raws)))


@given(arrays(), st.booleans())
def test_arrays_go_and_come_back_bit_for_bit(array: Array, binary: bool) -> None:
    finite = not count_not_finite(array)
    text = not array.dtype.hasobject or all(_is_text(element) for element in array.ravel())
    try:
        head, raws = json_tensors.encode_request(LabelRequest({"x": array}, ("y",)), binary=binary)
    except (RequestRefused, ValueError):
        assert not binary
        assert not (finite and text)
        return
    request = decode(head, b"".join(raws))
    assert request.outputs == ("y",)
    assert same(request.inputs["x"], array)
    assert same(answered(request, {"y": array}).outputs["y"], array)


def test_a_signalling_nan_is_counted_without_a_warning() -> None:
    bits = np.array([0x7F81, 0x7FC0, 0xFF96, 0x3F80], np.uint16)  # pytest makes warnings errors
    assert count_not_finite(bits.view(ml_dtypes.bfloat16)) == 3
    assert count_not_finite(bits) == 0


def test_all_that_is_said_beside_the_tensors_arrives() -> None:
    head, raws = json_tensors.encode_request(
        LabelRequest(
            {"x": X}, ("a", "b"), "7", {"teacher_id": "t", "n": 2}, {"a": {"form": "float16"}}
        ),
        binary=False,
    )
    assert not raws
    request = decode(head, b"".join(raws))
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
    "message",
    [
        {},
        {"outputs": None},
        {"outputs": {}},
        {"outputs": [1]},
        *(
            {"outputs": message["inputs"]}
            for message in (
                tensor(),
                tensor([1.0]),
                tensor([None, 1.0]),
                tensor([1.0, 2.0], datatype="FLOAT"),
                tensor(parameters={"binary_data_size": 8}),
                placed(byte_size=8),
            )
        ),
        {"outputs": tensor([1.0, 2.0])["inputs"] * 2},
    ],
)
def test_answers_are_not_believed(message: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        _answer(**message)


def _answer(**message: Any) -> LabelResponse:
    head = memoryview(json.dumps(message).encode())
    return json_tensors.decode_response(head, head[len(head) :])


def _is_text(element: bytes) -> bool:
    try:
        bytes(element).decode()
    except UnicodeDecodeError:
        return False
    return True
