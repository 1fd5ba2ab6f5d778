"""Names of datatypes, and arrays in bytes, beyond what the codec's own tests reach."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from edl.errors import WireError
from edl.proto.datatypes import datatype_of, dtype_of, from_bytes, shown, to_bytes

NAMES = {
    "BOOL": "?",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "FP16": "f2",
    "FP32": "f4",
    "FP64": "f8",
    "BF16": ml_dtypes.bfloat16,
    "BYTES": "O",
}


@pytest.mark.parametrize("name", NAMES)
def test_names_and_dtypes_match(name: str) -> None:
    dtype = np.dtype(NAMES[name])
    assert datatype_of(dtype) == name
    assert datatype_of(dtype.newbyteorder(">")) == name
    assert dtype_of(name) == dtype


@pytest.mark.parametrize("dtype", ["c8", "M8[s]", "U3", "V4", "g", ml_dtypes.float8_e4m3fn])
def test_other_dtypes_have_no_name(dtype: str) -> None:
    with pytest.raises(WireError, match="cannot be sent"):
        datatype_of(np.dtype(dtype))


def test_fixed_width_bytes_travel_as_bytes() -> None:
    array = np.array([b"ab", b"c"], dtype="S2")
    got = from_bytes(to_bytes(array), datatype_of(array.dtype), array.shape)
    assert got.tolist() == [b"ab", b"c"]


def test_row_major_memory_is_not_copied() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert np.shares_memory(np.frombuffer(to_bytes(array), dtype=np.uint8), array)
    assert to_bytes(array[:, ::2]) == array[:, ::2].tobytes()


def test_a_view_need_not_be_aligned() -> None:
    data = memoryview(b"x" + np.arange(4, dtype="<f8").tobytes())
    got = from_bytes(data[1:], "FP64", (2, 2))
    assert got.tolist() == [[0, 1], [2, 3]]


def test_bytes_elements_are_bytes() -> None:
    with pytest.raises(WireError, match="it holds str"):
        to_bytes(np.array(["text"], dtype=object))


def test_text_of_a_peer_is_shown_short() -> None:
    assert shown("a\n") == r"'a\n'"
    assert len(shown("x" * 1000)) < 70
