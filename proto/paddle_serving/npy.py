"""Arrays as `.npy` files in memory, of numbers only.

Such a file may hold pickled objects, which execute what their writer likes as they are read. They
are neither written nor read here.
"""

from __future__ import annotations

import io

import numpy as np

from ...errors import WireError
from ..datatypes import Array, datatype_of, from_bytes

#: Kinds of dtypes that both sides read alike. bfloat16 would arrive as bytes without a meaning.
_NUMBERS = "biuf"


def write(array: Array) -> bytes:
    """The file; raises WireError for dtypes that it has no place for."""
    if array.dtype.kind not in _NUMBERS:
        raise WireError(f"arrays of {_named(array.dtype)} cannot be sent to Paddle Serving")
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def read(raw: bytes) -> Array:
    """The array in a file: a read-only view of `raw`.

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
