"""Messages of a peer that is broken or means ill: always `WireError`, never a large allocation."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.datatypes import datatype_of
from edl.proto.shared_buffer import REGION
from edl.runtime.errors import WireError

from .strategies import EDITS, PARAMETERS, TENSORS, as_parameters, bend, raw_request

Contents = pb.InferTensorContents


def decode_as_protobuf_does(data: bytes) -> None:
    """Both decoders refuse `data`, or read what protobuf reads; nothing else is raised."""
    for decode, kind in (
        (tensors.decode_request, pb.ModelInferRequest),
        (tensors.decode_response, pb.ModelInferResponse),
    ):
        try:
            got: Any = decode(data)
        except WireError:
            continue
        message: Any = kind.FromString(data)
        assert got.model_name == message.model_name
        assert got.request_id == message.id
        is_request = isinstance(got, tensors.InferRequest)
        arrays = got.inputs if is_request else got.outputs
        described = message.inputs if is_request else message.outputs
        raws = message.raw_input_contents if is_request else message.raw_output_contents
        assert list(arrays) == [tensor.name for tensor in described]
        for tensor, array in zip(described, arrays.values(), strict=True):
            assert list(array.shape) == list(tensor.shape)
            assert datatype_of(array.dtype) == tensor.datatype
        if raws:
            fixed = [(r, a) for r, a in zip(raws, arrays.values(), strict=True) if a.dtype != "O"]
            assert all(array.tobytes() == raw for raw, array in fixed)


@given(st.binary(max_size=200))
@example(b"")
def test_random_bytes(data: bytes) -> None:
    decode_as_protobuf_does(data)


@given(TENSORS, PARAMETERS, EDITS)
def test_mutations(
    inputs: dict[str, Any], parameters: dict[str, Any], edits: list[tuple[int, int, bytes]]
) -> None:
    message = raw_request("m", inputs, parameters=as_parameters(parameters))
    decode_as_protobuf_does(bend(message.SerializeToString(), edits))


def request(
    datatype: str = "FP32", shape: Any = (2,), raw: Any = (bytes(8),), **more: Any
) -> bytes:
    tensor = {"name": "x", "datatype": datatype, "shape": shape, **more}
    return pb.ModelInferRequest(inputs=[tensor], raw_input_contents=raw).SerializeToString()


def typed(datatype: str = "FP32", **contents: Any) -> bytes:
    return request(datatype, raw=[], contents=Contents(**contents))


TENSOR = request(raw=())
CLASSES = pb.ModelInferRequest(outputs=[{"parameters": as_parameters({"classification": 3})}])
BAD = {
    "length beyond the end": (b"\x3a\xff\xff\xff\xff\x07", "truncated"),
    "length of eleven bytes": (b"\x3a" + b"\x80" * 10 + b"\x01", "more than 10 bytes"),
    "tag of six bytes": (b"\xba\x80\x80\x80\x80\x00\x00", "more than 5 bytes"),
    "ends within a tag": (b"\x80", "ends within a number"),
    "ends within a fixed32": (b"\x0d\x00", "truncated"),
    "a group": (b"\x9b\x06\x9c\x06", "wire type 3"),
    "field 0": (b"\x02\x01x", "cannot be parsed"),
    "text that is not UTF-8": (b"\x0a\x01\xff", "cannot be parsed"),
    "negative dimension": (request(shape=[-1]), "negative"),
    "too many dimensions": (request(shape=[1] * 33), "at most 32"),
    "overflowing shape": (request(shape=[1 << 62, 1 << 62]), "larger than any memory"),
    "overflowing empty shape": (request(shape=[0, 1 << 62], raw=[b""]), "larger than any memory"),
    "more elements than bytes": (request(shape=[1 << 40]), "needs"),
    "too many raws": (request(raw=[bytes(8)] * 2), "1 tensors are named"),
    "raws without tensors": (b"\x3a\x00", "0 tensors are named"),
    "a name twice": (TENSOR * 2 + b"\x3a\x08" + bytes(8) + b"\x3a\x08" + bytes(8), "twice"),
    "unknown datatype": (request("FP8"), "unknown datatype 'FP8'"),
    "a very long datatype": (request("x" * 100_000), "unknown datatype"),
    "a datatype of two lines": (request("a\n"), r"unknown datatype 'a\\n'"),
    "BOOL that is 2": (request("BOOL", raw=[b"\x02\x00"]), "neither 0 nor 1"),
    "BYTES too short": (request("BYTES", raw=[bytes(7)]), "do not fit"),
    "BYTES cut in a length": (request("BYTES", raw=[b"\x02\0\0\0ab" + bytes(2)]), "ends at"),
    "BYTES with more behind": (request("BYTES", raw=[bytes(9)]), "1 bytes follow"),
    "contents and raw": (request(contents=Contents(fp32_contents=[1, 2])), "both"),
    "contents of another type": (typed(fp64_contents=[1, 2]), "belong in fp32_contents"),
    "too few contents": (typed(fp32_contents=[1]), "2 elements, 1"),
    "contents of FP16": (typed("FP16", fp32_contents=[1, 2]), "belong in raw bytes"),
    "UINT8 of 256": (typed("UINT8", uint_contents=[0, 256]), "0..255"),
    "INT8 of -129": (typed("INT8", int_contents=[0, -129]), "-128"),
    "shared memory": (request(parameters=as_parameters({REGION: "r"})), "is not supported"),
    "classification": (CLASSES.SerializeToString(), "is not supported"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_message(name: str) -> None:
    data, says = BAD[name]
    with pytest.raises(WireError, match=says) as caught:
        tensors.decode_request(data)
    assert len(str(caught.value)) < 500
    decode_as_protobuf_does(data)


@pytest.mark.parametrize("field", [b"\x2a\x00", b"\x3a\x00", b"\x32\x00", b"\x40\x00"])
def test_a_swarm_of_fields_costs_no_memory(field: bytes) -> None:
    """Two bytes on the wire may be a hundred in memory: the number of fields is bounded."""
    data = field * (1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="4096 fields"):
            tensors.decode_request(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20
