"""Tensors in messages: arrays, parameters, datatypes and stacked pieces, against plain protobuf."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.clients import LabelResponse
from edl.proto.datatypes import (
    Parameter,
    StackedArray,
    as_one_array,
    datatype_of,
    from_bytes,
    pieces_of,
    to_bytes,
)
from edl.proto.tensors import decode_request
from edl.runtime.errors import WireError

from .strategies import (
    NAMES,
    PARAMETERS,
    TENSORS,
    arrays,
    as_parameters,
    encoded_request,
    raw_bytes,
    raw_request,
    same,
)


def assert_same(got: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert list(got) == list(expected)
    for name, array in expected.items():
        assert same(got[name], array), (name, got[name], array)
        assert not got[name].flags.writeable


NAMED = ("model_name", "model_version", "request_id")


@given(TENSORS, st.tuples(NAMES, NAMES, NAMES), PARAMETERS, st.dictionaries(NAMES, PARAMETERS))
def test_messages_come_back(
    arrays: dict[str, Array],
    names: tuple[str, str, str],
    parameters: dict[str, Parameter],
    wanted: dict[str, dict[str, Parameter]],
) -> None:
    said: dict[str, Any] = dict(zip(NAMED, names, strict=True))
    said["parameters"] = parameters
    request = tensors.decode_request(
        encoded_request(inputs=arrays, outputs=[*wanted], output_parameters=wanted, **said)
    )
    of_each = dict.fromkeys(arrays, parameters)
    response = tensors.decode_response(
        tensors.encode_response(LabelResponse(outputs=arrays, output_parameters=of_each, **said))
    )
    assert request.outputs == tuple(wanted)
    assert request.output_parameters == {name: some for name, some in wanted.items() if some}
    assert response.output_parameters == (of_each if parameters else {})
    assert_same(request.inputs, arrays)
    assert_same(response.outputs, arrays)
    for got in (request, response):
        assert (got.model_name, got.model_version, got.request_id) == names
        assert got.parameters == parameters
        kinds = {name: type(value) for name, value in got.parameters.items()}
        assert kinds == {name: type(value) for name, value in parameters.items()}


@given(TENSORS, PARAMETERS)
def test_protobuf_reads_our_bytes(
    arrays: dict[str, Array], parameters: dict[str, Parameter]
) -> None:
    said: dict[str, Any] = {"model_name": "m", "parameters": parameters}
    theirs = as_parameters(parameters)
    request = encoded_request(inputs=arrays, outputs=["logits"], **said)
    expected = raw_request("m", arrays, parameters=theirs, outputs=[{"name": "logits"}])
    assert pb.ModelInferRequest.FromString(request) == expected
    message = pb.ModelInferResponse.FromString(
        tensors.encode_response(LabelResponse(outputs=arrays, **said))
    )
    assert [(one.name, tuple(one.shape)) for one in message.outputs] == [
        (name, array.shape) for name, array in arrays.items()
    ]
    assert list(message.raw_output_contents) == [raw_bytes(array) for array in arrays.values()]
    assert dict(message.parameters) == theirs


@given(TENSORS, PARAMETERS, st.randoms(use_true_random=False))
def test_fields_may_come_in_any_order(
    inputs: dict[str, Array], parameters: dict[str, Parameter], random: Any
) -> None:
    """Protobuf orders fields by number; a sender need not, and may add fields of its own."""
    message = raw_request(
        "m", inputs, id="7", parameters=as_parameters(parameters), outputs=[{"name": "logits"}]
    )
    unknown = [b"\xf8\x06\x05", b"\xf9\x06" + bytes(8), b"\xfa\x06\x02hi", b"\xfd\x06" + bytes(4)]
    got = tensors.decode_request(shuffled(message, unknown, random))
    assert (got.model_name, got.request_id, got.outputs) == ("m", "7", ("logits",))
    assert got.parameters == parameters
    assert_same(got.inputs, inputs)


def shuffled(message: pb.ModelInferRequest, more: list[bytes], random: Any) -> bytes:
    """The message with its top-level fields mixed; those of one field keep their order."""
    queues: list[list[bytes]] = [[field] for field in more]
    for descriptor, value in message.ListFields():
        pieces: list[Any] = [value]
        if descriptor.name == "parameters":
            pieces = [{key: value[key]} for key in value]
        elif descriptor.is_repeated:
            pieces = [[item] for item in value]
        parts: list[dict[str, Any]] = [{descriptor.name: piece} for piece in pieces]
        queues.append([pb.ModelInferRequest(**part).SerializeToString() for part in parts])
    data = b""
    while queues := [queue for queue in queues if queue]:
        data += random.choice(queues).pop(0)
    return data


@given(arrays(), st.sampled_from([bytes, bytearray, memoryview]))
def test_a_raw_array_is_a_view_of_the_message(array: Array, kind: Any) -> None:
    data = kind(raw_request("m", {"x": array}).SerializeToString())
    got = tensors.decode_request(data).inputs["x"]
    assert same(got, array)
    assert not got.flags.writeable
    if array.dtype != np.object_ and array.size > 0:
        assert np.shares_memory(got, np.frombuffer(data, dtype=np.uint8))


CONTENTS: dict[str, tuple[str, str, list[Any]]] = {
    "BOOL": ("?", "bool_contents", [True, False]),
    "INT8": ("i1", "int_contents", [-128, 127]),
    "INT16": ("i2", "int_contents", [-32768, 32767]),
    "INT32": ("i4", "int_contents", [-(1 << 31), (1 << 31) - 1]),
    "INT64": ("i8", "int64_contents", [-(1 << 63), (1 << 63) - 1]),
    "UINT8": ("u1", "uint_contents", [0, 255]),
    "UINT16": ("u2", "uint_contents", [0, 65535]),
    "UINT32": ("u4", "uint_contents", [0, (1 << 32) - 1]),
    "UINT64": ("u8", "uint64_contents", [0, (1 << 64) - 1]),
    "FP32": ("f4", "fp32_contents", [0.5, -3.0]),
    "FP64": ("f8", "fp64_contents", [1e300, 0.1]),
    "BYTES": ("O", "bytes_contents", [b"", b"\x00\xff"]),
}
DTYPES = {name: np.dtype(dtype) for name, (dtype, _, _) in CONTENTS.items()}
DTYPES |= {"FP16": np.dtype("f2"), "BF16": np.dtype(ml_dtypes.bfloat16)}


@pytest.mark.parametrize("datatype", CONTENTS)
def test_contents_are_read(datatype: str) -> None:
    _, field, values = CONTENTS[datatype]
    elements: dict[str, Any] = {field: values}
    contents = pb.InferTensorContents(**elements)
    request = pb.ModelInferRequest(
        inputs=[{"name": "x", "datatype": datatype, "shape": [1, 2], "contents": contents}]
    )
    array = tensors.decode_request(request.SerializeToString()).inputs["x"]
    assert array.dtype == DTYPES[datatype]
    assert array.tolist() == [values]
    assert not array.flags.writeable

    response = pb.ModelInferResponse(
        outputs=[{"name": "x", "datatype": datatype, "shape": [2], "contents": contents}]
    )
    assert tensors.decode_response(response.SerializeToString()).outputs["x"].tolist() == values


@pytest.mark.parametrize(("datatype", "dtype"), DTYPES.items())
def test_an_empty_tensor_has_a_datatype_and_no_contents(datatype: str, dtype: Any) -> None:
    request = pb.ModelInferRequest(inputs=[{"name": "x", "datatype": datatype, "shape": [3, 0]}])
    array = tensors.decode_request(request.SerializeToString()).inputs["x"]
    assert (array.shape, array.dtype) == ((3, 0), dtype)
    assert datatype_of(dtype) == datatype_of(dtype.newbyteorder(">")) == datatype


def test_the_last_of_two_scalars_wins_as_in_protobuf() -> None:
    data = b"".join(
        encoded_request(model_name=name, inputs={}, parameters={"a": value})
        for name, value in [("first", 1), ("last", 2)]
    )
    got = tensors.decode_request(data)
    assert (got.model_name, got.parameters) == ("last", {"a": 2})


def test_parameters_of_a_later_protocol_are_left_out() -> None:
    unknown = pb.InferParameter.FromString(b"\x32\x01x")  # field 6 of a oneof that ends at 5
    message = pb.ModelInferRequest(parameters={"new": unknown, "old": as_parameters({"o": 1})["o"]})
    assert tensors.decode_request(message.SerializeToString()).parameters == {"old": 1}


def test_encoding_copies_once_and_decoding_never() -> None:
    image = np.arange(4_800_000, dtype=np.uint8).reshape(32, -1)
    tensors.decode_request(encoded_request(model_name="m", inputs={"x": image}))  # warm up
    tracemalloc.start()
    try:
        data = encoded_request(model_name="m", inputs={"x": image})
        encoding = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        tensors.decode_request(data)
        decoding = tracemalloc.get_traced_memory()[1] - len(data)
    finally:
        tracemalloc.stop()
    assert encoding < image.nbytes * 1.05
    assert decoding < 100_000


UNSENDABLE: list[Any] = ["c8", "M8[s]", "U3", "V4", "g", ml_dtypes.float8_e4m3fn]


@pytest.mark.parametrize(
    "more",
    [
        *({"inputs": {"x": np.zeros(2, dtype)}} for dtype in UNSENDABLE),
        {"inputs": {"x": np.array([1, b"x"], dtype=object)}},
        {"inputs": {"x": np.broadcast_to(np.uint8(0), (1 << 31,))}},
        {"parameters": {"p": 1 << 64}},
        {"parameters": {"p": None}},
        {"parameters": {"p": "\ud800"}},
        {"model_name": "\ud800"},
    ],
    ids=str,
)
def test_what_the_protocol_cannot_carry_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        encoded_request(**{"model_name": "m", "inputs": {}, **more})
    response = dict(more)
    response["outputs"] = response.pop("inputs", {})
    with pytest.raises(WireError):
        tensors.encode_response(LabelResponse(**{"model_name": "m", **response}))


def test_many_arrays_must_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "MAX_MESSAGE_BYTES", 1000)
    half = np.zeros(600, dtype=np.uint8)
    encoded_request(model_name="m", inputs={"a": half})
    with pytest.raises(WireError, match="split the batch"):
        encoded_request(model_name="m", inputs={"a": half, "b": half})


def test_empty_contents_beside_raw_ones_say_nothing() -> None:
    """MLServer's answers bear them; any element in both places is an error."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    message = pb.ModelInferResponse()
    message.ParseFromString(tensors.encode_response(LabelResponse({"x": x}, model_name="m")))
    message.outputs[0].contents.SetInParent()
    assert message.outputs[0].HasField("contents")
    assert_same(tensors.decode_response(message.SerializeToString()).outputs, {"x": x})
    message.outputs[0].contents.fp32_contents.append(1.0)
    with pytest.raises(WireError, match="contents and raw contents are both given"):
        tensors.decode_response(message.SerializeToString())


def test_only_what_takes_a_moment_is_decoded_where_that_is_asked_for() -> None:
    large = np.zeros((1 << 10, 1 << 8), np.float32)
    raw = encoded_request(model_name="m", inputs={"x": large})
    assert_same(tensors.decode_request(raw, refuse_slow=True).inputs, {"x": large})

    typed = pb.ModelInferRequest(model_name="m")
    typed.inputs.add(name="x", datatype="FP32", shape=large.shape).contents.fp32_contents.extend(
        large.reshape(-1).tolist()
    )
    words = {"x": np.array([b"word"] * (1 << 15), np.object_)}
    for heavy in (
        typed.SerializeToString(),
        encoded_request(model_name="m", inputs=words),
    ):
        tensors.decode_request(heavy)
        with pytest.raises(tensors.SlowToDecode):
            tensors.decode_request(heavy, refuse_slow=True)


def test_fixed_width_bytes_travel_as_bytes() -> None:
    array = np.array([b"ab", b"c"], dtype="S2")
    got = from_bytes(to_bytes(array), datatype_of(array.dtype), array.shape)
    assert got.tolist() == [b"ab", b"c"]


X = np.arange(24, dtype=np.float32).reshape(6, 4)


@given(st.lists(st.integers(0, 6), max_size=5), st.sampled_from(["<f4", ">f4", "<i8", "|u1"]))
def test_stacked_pieces_encode_like_the_whole_array(cuts: list[int], dtype: str) -> None:
    array = X.astype(dtype)
    edges = [0, *sorted(cuts), 6]
    pieces = tuple(array[a:b] for a, b in pairwise(edges))
    stacked = StackedArray(pieces)
    assert (stacked.dtype, stacked.shape, stacked.ndim) == (array.dtype, array.shape, 2)
    assert stacked.nbytes == array.nbytes
    joined = encoded_request(model_name="m", inputs={"x": stacked, "y": X})
    assert joined == encoded_request(model_name="m", inputs={"x": array, "y": X})
    np.testing.assert_array_equal(decode_request(joined).inputs["x"], array)
    np.testing.assert_array_equal(as_one_array(stacked), array)


def test_one_piece_is_never_copied() -> None:
    assert as_one_array(X) is as_one_array(StackedArray((X,))) is X
    assert pieces_of(X) == (X,)


def test_pieces_that_differ_cannot_be_stacked() -> None:
    scalar = np.array(1.0, np.float32)
    different: list[tuple[Array, ...]] = [(), (X, X[:, :2]), (X, X.astype(np.float64)), (scalar,)]
    for pieces in different:
        with pytest.raises(WireError, match="cannot be stacked"):
            StackedArray(pieces)
