"""Hypothesis strategies for what travels: arrays of every datatype, names, parameters, messages."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from edl.proto import inference_pb2 as pb
from edl.proto import tensors
from edl.proto.arena import Array
from edl.proto.clients import LabelRequest
from edl.proto.datatypes import Parameter, datatype_of, from_elements, to_bytes

FIXED_SIZE = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
#: Text without lone surrogates: what protobuf strings can hold.
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
PARAMETERS: st.SearchStrategy[dict[str, Parameter]] = st.dictionaries(
    NAMES,
    st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | NAMES,
    max_size=3,
)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    kind = draw(st.sampled_from([*FIXED_SIZE, "bfloat16", "bytes"]))
    shape = draw(SHAPES)
    if kind == "bytes":
        count = int(np.prod(shape))
        elements = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return from_elements(elements, "BYTES", shape)
    if kind == "bfloat16":
        bits: Array = draw(hnp.arrays("u2", shape))
        return draw(layouts(bits.view(ml_dtypes.bfloat16)))
    dtype = np.dtype(kind)
    if draw(st.booleans()):
        dtype = dtype.newbyteorder(">")
    values: Array = draw(hnp.arrays(dtype, shape))
    return draw(layouts(values))


@st.composite
def layouts(draw: st.DrawFn, array: Array) -> Array:
    """The same elements, in row-major, column-major, strided or backward memory."""
    layout = draw(st.sampled_from(["C", "F", "strided", "backward"]))
    if array.ndim == 0 or layout == "C":
        return array
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "strided":
        wide = np.repeat(array, 2, axis=-1)
        return wide[..., ::2]
    return np.ascontiguousarray(array[::-1])[::-1]


TENSORS: st.SearchStrategy[dict[str, Array]] = st.dictionaries(NAMES, arrays(), max_size=3)


def same(left: Array, right: Array) -> bool:
    """Equal datatype, shape and bits (NaNs included)."""
    return (
        datatype_of(left.dtype) == datatype_of(right.dtype)
        and left.shape == right.shape
        and bytes(to_bytes(left)) == bytes(to_bytes(right))
    )


def as_parameters(values: dict[str, Parameter]) -> dict[str, pb.InferParameter]:
    """Parameters as a peer that uses plain protobuf writes them."""

    def one(value: Any) -> pb.InferParameter:
        if isinstance(value, bool):
            return pb.InferParameter(bool_param=value)
        if isinstance(value, str):
            return pb.InferParameter(string_param=value)
        if isinstance(value, float):
            return pb.InferParameter(double_param=value)
        if value >= 1 << 63:
            return pb.InferParameter(uint64_param=value)
        return pb.InferParameter(int64_param=value)

    return {name: one(value) for name, value in values.items()}


def raw_request(model: str, inputs: dict[str, Array], **more: Any) -> pb.ModelInferRequest:
    """A request as a peer that uses plain protobuf builds it, with raw contents."""
    return pb.ModelInferRequest(
        model_name=model,
        inputs=[
            pb.ModelInferRequest.InferInputTensor(
                name=name, datatype=datatype_of(array.dtype), shape=array.shape
            )
            for name, array in inputs.items()
        ],
        raw_input_contents=[raw_bytes(array) for array in inputs.values()],
        **more,
    )


def raw_bytes(array: Array) -> bytes:
    """The elements as the specification lays them out, written without the codec."""
    if array.dtype == np.object_:
        return b"".join(len(item).to_bytes(4, "little") + item for item in array.ravel().tolist())
    if array.dtype == ml_dtypes.bfloat16:
        return np.ascontiguousarray(array).tobytes()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


#: Where `bend` bends, how many bytes it takes out, and what it puts there.
EDITS = st.lists(
    st.tuples(st.integers(0, 1 << 16), st.integers(0, 4) | st.just(1 << 16), st.binary(max_size=9)),
    min_size=1,
    max_size=4,
)


def bend(whole: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """`whole`, cut, overwritten, stretched or thinned at some places."""
    for where, removed, new in edits:
        at = where % (len(whole) + 1)
        whole = whole[:at] + new + whole[at + removed :]
    return whole


def encoded_request(*, model_name: str, model_version: str = "", **request: Any) -> bytes:
    """A serialised request of the fields of `LabelRequest`; only foreign clients name a version."""
    version = pb.ModelInferRequest(model_version=model_version).SerializeToString()
    return version + tensors.encode_request(model_name, LabelRequest(**request))
