"""The HTTP form of the protocol: arrays keep their bits, and nothing else is believed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from edl.errors import EdlError, RequestRefused, WireError
from edl.proto.json_tensors import decode_request, encode_response
from edl.proto.places import Place
from edl.proto.tensors import Heavy, InferRequest, InferResponse

DTYPES = [
    np.dtype(name)
    for name in ("?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8")
]


def no_memory(_: Place) -> memoryview:
    raise AssertionError("nothing is in shared memory")


def decode(message: Any, raw: bytes = b"") -> InferRequest:
    head = memoryview(message if isinstance(message, bytes) else json.dumps(message).encode())
    return decode_request(head, memoryview(raw), no_memory, model_name="m")


def tensor(data: Any = None, **fields: Any) -> dict[str, Any]:
    given = {} if data is None else {"data": data}
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [2], **given, **fields}]}


def there_and_back(array: Any, binary: bool) -> Any:
    """An answer's output, read as a request's input."""
    asked = InferRequest("m", parameters={"binary_data_output": binary})
    head, raws = encode_response(asked, InferResponse("m", outputs={"x": array}), ())
    assert len(raws) == binary
    return decode({"inputs": json.loads(head)["outputs"]}, b"".join(raws)).inputs["x"]


@given(data=st.data(), dtype=st.sampled_from(DTYPES), binary=st.booleans())
def test_numbers_keep_their_bits(data: st.DataObject, dtype: np.dtype[Any], binary: bool) -> None:
    elements = arrays.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_side=0), elements=elements))
    back = there_and_back(array, binary)
    assert (back.dtype, back.shape) == (dtype, array.shape)
    assert back.tobytes() == array.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_so_do_bfloat16_and_text(binary: bool) -> None:
    half = np.array([[1.5, -3e38]], dtype=ml_dtypes.bfloat16)
    assert there_and_back(half, binary).tobytes() == half.tobytes()
    text = np.array([b"one", "z\u00e9ro".encode()], dtype=object)
    assert there_and_back(text, binary).tolist() == text.tolist()


def test_bytes_that_are_no_text_have_to_be_asked_for_as_bytes() -> None:
    noise = np.array([b"\xff"], dtype=object)
    assert there_and_back(noise, binary=True).tolist() == [b"\xff"]
    with pytest.raises(RequestRefused, match="ask for it with 'binary_data': true"):
        there_and_back(noise, binary=False)


def test_lists_may_be_nested() -> None:
    nested = tensor([[1, 2], [3, 4.5]], shape=[2, 2])
    assert decode(nested).inputs["x"].tolist() == [[1, 2], [3, 4.5]]


def test_the_parts_of_an_output_go_as_it_was_asked_for() -> None:
    asked = InferRequest("m", output_parameters={"logits": {"binary_data": True}})
    outputs = {"logits.tail": np.zeros(2, np.float32), "other": np.zeros(1, np.float32)}
    head, raws = encode_response(asked, InferResponse("m", outputs=outputs), ())
    assert list(map(bytes, raws)) == [bytes(8)]
    tail, other = json.loads(head)["outputs"]
    assert tail["parameters"] == {"binary_data_size": 8}
    assert other["data"] == [0.0]


def test_much_text_behind_the_object_is_not_for_a_moment() -> None:
    words = np.array([bytes(1000)] * 100, dtype=object)
    head, (raw,) = encode_response(
        InferRequest("m", parameters={"binary_data_output": True}),
        InferResponse("m", outputs={"x": words}),
        (),
    )
    said = memoryview(json.dumps({"inputs": json.loads(head)["outputs"]}).encode())
    with pytest.raises(Heavy):
        decode_request(said, raw, no_memory, model_name="m", light=True)
    asked = decode_request(said, raw, no_memory, model_name="m")
    assert asked.inputs["x"].tolist() == words.tolist()


BAD = {
    "nothing": (b"", "no JSON"),
    "no Unicode": (b"\xff\xfe", "no JSON"),
    "a list": ([], "no object"),
    "a bomb of lists": (b"[" * 100_000, "more than 80 deep"),
    "a bomb of objects": (b'{"a":' * 100_000, "more than 80 deep"),
    "a number without end": (b'{"inputs": ' + b"9" * 10_000 + b"}", "no JSON"),
    "NaN": (tensor([float("nan"), 1]), "NaN is no number"),
    "inputs that are no list": ({"inputs": {}}, "'inputs' is no list of objects"),
    "an input that is no object": ({"inputs": [3]}, "'inputs' is no list of objects"),
    "a shape that is no list": (tensor([1, 2], shape=2), "'shape' is no list of integers"),
    "a shape of truths": (tensor([1, 2], shape=[True]), "'shape' is no list of integers"),
    "a negative shape": (tensor([1, 2], shape=[-2]), "negative dimension"),
    "a vast shape": (tensor([1, 2], shape=[1 << 62, 1 << 62]), "larger than any memory"),
    "a shape of many dimensions": (tensor([1], shape=[1] * 40), "at most 32 are allowed"),
    "too few elements": (tensor([1]), "needs 2 elements, 1 are given"),
    "text for numbers": (tensor(["1", "2"]), "is str in JSON"),
    "truths for numbers": (tensor([True, 2]), "is bool in JSON"),
    "nothing for numbers": (tensor([None, 2]), "is NoneType in JSON"),
    "lists and numbers": (tensor([[1], 2]), "side by side"),
    "uneven lists": (tensor([[1], [2, 3]], shape=[3]), "not equally long"),
    "deep lists": (tensor(json.loads("[" * 40 + "1" + "]" * 40), shape=[1]), "more than 32 deep"),
    "too large a float": (tensor([1e39, 0]), "beyond FP32"),
    "a vast integer for a float": (tensor([10**400, 0]), "beyond FP32"),
    "an integer out of range": (tensor([256, 0], datatype="UINT8"), r"not within 0\.\.255"),
    "a float for an integer": (tensor([1.0, 0], datatype="INT8"), "is float in JSON"),
    "a number for text": (tensor([1, 2], datatype="BYTES"), "is int in JSON"),
    "no datatype": (tensor([1, 2], datatype="FP33"), "unknown datatype"),
    "no elements": (tensor(), "in one place"),
    "elements twice": (tensor([1, 2], parameters={"binary_data_size": 0}), "in one place"),
    "bytes that are not there": (tensor(parameters={"binary_data_size": 8}), "0 bytes are left"),
    "a negative size": (tensor(parameters={"binary_data_size": -1}), "is a number of bytes"),
    "odd parameters": (tensor([1, 2], parameters={"a": []}), "'parameters' is no object"),
    "half a place": (tensor(parameters={"shared_memory_region": "r"}), "byte_size"),
    "an odd place": (
        tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": "8"}),
        "is an integer from 0 on",
    ),
    "a place of another size": (
        tensor(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 9}),
        "needs 8 bytes, its place has 9",
    ),
    "a generation without room for it": (
        tensor(
            parameters={
                "shared_memory_region": "r",
                "shared_memory_byte_size": 8,
                "shared_memory_generation": 1,
            }
        ),
        "8 bytes of the region before its place",
    ),
    "a generation within the place": (
        tensor(
            parameters={
                "shared_memory_region": "r",
                "shared_memory_byte_size": 8,
                "shared_memory_offset": 64,
                "shared_memory_generation": 1,
                "shared_memory_generation_offset": 60,
            }
        ),
        "8 bytes of the region before its place",
    ),
    "an output twice": ({"outputs": [{"name": "y"}, {"name": "y"}]}, "asked for twice"),
    "an id that is no text": ({"id": 3}, "'id' is no string"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_requests_are_refused(name: str) -> None:
    message, words = BAD[name]
    with pytest.raises(WireError, match=words):
        decode(message)


def test_bytes_behind_the_last_tensor_are_refused() -> None:
    with pytest.raises(WireError, match="1 bytes follow the last tensor"):
        decode(tensor(parameters={"binary_data_size": 8}), bytes(9))


def test_an_input_twice_is_refused() -> None:
    (one,) = tensor([1, 2])["inputs"]
    with pytest.raises(WireError, match="'x' is given twice"):
        decode({"inputs": [one, one]})


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
_KEYS = st.sampled_from(["name", "datatype", "shape", "data", "parameters", "id", "inputs"])


@given(
    st.dictionaries(_KEYS, _JSON | st.lists(st.dictionaries(_KEYS, _JSON), max_size=2)),
    st.binary(max_size=16),
)
def test_whatever_it_is_it_is_read_or_refused(message: dict[str, Any], raw: bytes) -> None:
    with contextlib.suppress(EdlError):
        decode(message, raw)
