"""Arrays as Paddle Serving has them: as numbers one by one, or as `.npy` files in memory.

Each type of elements has a number and a field of the message in which its elements stand. A `.npy`
file may hold pickled objects, which execute what their writer likes as they are read: here such
files are of numbers only, and others are neither written nor read.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import WireError
from ..datatypes import Array, datatype_of, dtype_of, from_bytes, from_elements

#: The number of a tensor whose bytes are a whole .npy file (pipeline servers only).
NPY: Final = 13


@dataclass(frozen=True, slots=True)
class ElementType:
    """One type of elements.

    Attributes:
        datatype: as the Open Inference Protocol calls it.
        field: the repeated field of a message that holds the elements, one number each.
        as_bits: the numbers are the bits of the elements, not their values.
        raw: the C++ server has the elements as bytes in `tensor_content`, not in `field`.
    """

    datatype: str
    field: str
    as_bits: bool = False
    raw: bool = False


TYPES: Final[dict[int, ElementType]] = {
    0: ElementType("INT64", "int64_data"),
    1: ElementType("FP32", "float_data"),
    2: ElementType("INT32", "int_data"),
    3: ElementType("FP64", "float64_data"),
    4: ElementType("INT16", "int_data", raw=True),
    5: ElementType("FP16", "float_data", raw=True),
    6: ElementType("BF16", "uint32_data", as_bits=True, raw=True),
    7: ElementType("UINT8", "uint32_data", raw=True),
    8: ElementType("INT8", "int_data", raw=True),
    9: ElementType("BOOL", "bool_data"),
}
#: The number of each datatype that has one.
NUMBERS: Final = {kind.datatype: number for number, kind in TYPES.items()}


def type_of(number: int) -> ElementType:
    """The type of a number; raises WireError for one that is not known."""
    kind = TYPES.get(number)
    if kind is None:
        raise WireError(f"elem_type {number} is not known; known are {sorted(TYPES)} and {NPY}")
    return kind


def from_numbers(kind: ElementType, numbers: Sequence[Any], shape: Sequence[int]) -> Array:
    """The array whose elements stand one by one in a repeated field; read-only.

    Raises:
        WireError: they are not as many as the shape says, or one is out of the type's range.
    """
    if kind.as_bits:
        return from_elements(numbers, "UINT16", shape).view(dtype_of(kind.datatype))
    return from_elements(numbers, kind.datatype, shape)


#: Kinds of dtypes that both sides read_npy alike. bfloat16 would arrive as bytes without a meaning.
_NUMBERS = "biuf"


def write_npy(array: Array) -> bytes:
    """The file; raises WireError for dtypes that it has no place for."""
    if array.dtype.kind not in _NUMBERS:
        raise WireError(f"arrays of {_named(array.dtype)} cannot be sent to Paddle Serving")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def read_npy(raw: bytes) -> Array:
    """The array in a file: a read_npy-only view of `raw`.

    Raises:
        WireError: it is no such file, holds anything but numbers, or less or more than it says.
    """
    file = io.BytesIO(raw)
    try:
        version = np.lib.format.read_magic(file)
        header = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, by_columns, dtype = header(file)
    except Exception as error:  # numpy parses the header as an expression, and anything may come
        raise WireError(f"no .npy file of a known version: {type(error).__name__}") from None
    if dtype.kind not in _NUMBERS or dtype.byteorder == ">":
        raise WireError(
            f"a .npy file of dtype {dtype.str} is refused: only numbers, little-endian, are read, "
            "and nothing is ever unpickled"
        )
    elements = memoryview(raw)[file.tell() :]
    if by_columns:
        return from_bytes(elements, datatype_of(dtype), shape[::-1]).T
    return from_bytes(elements, datatype_of(dtype), shape)


def _named(dtype: np.dtype[np.generic]) -> str:
    return "objects or bytes" if dtype.kind in "OSU" else f"dtype {dtype.name}"
