"""The numbers of Paddle Serving's element types, and the field in which each travels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ...errors import WireError
from ..datatypes import Array, dtype_of, element_count

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


def from_numbers(kind: ElementType, numbers: Sequence[Any], shape: Iterable[int]) -> Array:
    """The array whose elements stand one by one in a repeated field; read-only.

    Raises:
        WireError: they are not as many as the shape says, or one is out of the type's range.
    """
    dims = tuple(shape)
    dtype = dtype_of(kind.datatype)
    count = element_count(dims, dtype.itemsize)
    if len(numbers) != count:
        raise WireError(
            f"{kind.datatype} of shape {list(dims)} needs {count} elements in {kind.field}, "
            f"{len(numbers)} are given"
        )
    stored = np.dtype(np.uint16) if kind.as_bits else dtype
    try:
        array = np.fromiter(numbers, stored, count).view(dtype).reshape(dims)
    except OverflowError:
        raise WireError(f"an element is out of the range of {kind.datatype}") from None
    array.flags.writeable = False
    return array
