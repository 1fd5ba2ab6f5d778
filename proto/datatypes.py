"""Datatypes and specs of tensors of the Open Inference Protocol, and arrays in several pieces."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Self

import ml_dtypes
import numpy as np

from ..runtime.errors import UsageError, WireError
from .arena import Array

Buffer = bytes | bytearray | memoryview


#: The value of a named parameter of a message or a tensor.
Parameter = bool | int | float | str


#: Size of the largest message of protobuf and gRPC, which store lengths as signed 32-bit integers.
MAX_MESSAGE_BYTES = (1 << 31) - 1


#: Maximum number of dimensions of an array; every release of numpy supports so many.
MAX_DIMENSIONS = 32

_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "BYTES": np.dtype(np.object_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LENGTH = struct.Struct("<I")


def count_not_finite(array: Array) -> int:
    """Return the number of elements that are NaN or infinite."""
    if array.dtype.kind not in "fcV":  # V: bfloat16
        return 0
    # numpy warns of signalling NaNs in bfloat16, and a broken device may produce many.
    with np.errstate(invalid="ignore"):
        return int(array.size - np.count_nonzero(np.isfinite(array)))


@lru_cache(maxsize=64)
def datatype_of(dtype: np.dtype[Any]) -> str:
    """Return the protocol's name for a dtype of any byte order; "BYTES" for object and `S` dtypes.

    Raises:
        WireError: the protocol has no such datatype.
    """
    if dtype.kind == "S":
        return "BYTES"
    name = _NAMES.get(dtype.newbyteorder("<"))
    if name is None:
        raise WireError(f"arrays of dtype {dtype} cannot be sent; known are {', '.join(_DTYPES)}")
    return name


@lru_cache(maxsize=64)
def dtype_of(datatype: str) -> np.dtype[Any]:
    """Return the dtype to which arrays of a datatype are decoded.

    Raises:
        WireError: the protocol has no such datatype.
    """
    dtype = _DTYPES.get(datatype)
    if dtype is None:
        raise WireError(f"unknown datatype {quoted(datatype)}; known are {', '.join(_DTYPES)}")
    return dtype


def quoted(text: str) -> str:
    """Quote text from a peer for an error message, shortened to 60 characters."""
    return repr(text if len(text) <= 60 else text[:60] + "…")


def to_bytes(array: Array) -> memoryview:
    """Serialise the elements of an array.

    Returns:
        The array's own memory if it is row-major, little-endian and not BYTES, else a copy.

    Raises:
        WireError: the dtype has no datatype, an object is not bytes, or the elements do not fit
            into one message.
    """
    datatype = datatype_of(array.dtype)
    if array.nbytes > MAX_MESSAGE_BYTES:
        raise WireError(f"an array of {array.nbytes} bytes does not fit into one message")
    if datatype == "BYTES":
        return memoryview(_pack(array.ravel().tolist()))
    flat = np.ascontiguousarray(array, dtype=_DTYPES[datatype]).reshape(-1)
    return flat.view(np.uint8).data


def element_count(shape: Sequence[int], itemsize: int) -> int:
    """Return the number of elements of an array of this shape.

    Raises:
        WireError: a dimension is negative, there are more than `MAX_DIMENSIONS`, or the array could
            not be addressed.
    """
    if len(shape) > MAX_DIMENSIONS:
        raise WireError(f"a shape has at most {MAX_DIMENSIONS} dimensions, this has {len(shape)}")
    count = extent = 1
    for size in shape:
        if size < 0:
            raise WireError(f"shape {list(shape)} has a negative dimension")
        count *= size
        extent *= max(size, 1)  # numpy limits this product even if another dimension is 0
    if extent * itemsize >= 1 << 63:
        raise WireError(f"shape {list(shape)} is larger than any memory")
    return count


def nbytes_of(datatype: str, shape: Sequence[int]) -> int | None:
    """Return the bytes of an array; None for BYTES, as its elements vary in length.

    Raises:
        WireError: unknown datatype or impossible shape.
    """
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    return None if datatype == "BYTES" else count * dtype.itemsize


def from_bytes(raw: memoryview, datatype: str, shape: Sequence[int]) -> Array:
    """Decode the array in `raw`.

    Returns:
        A view of `raw`, which need not be aligned, and is read-only if `raw` is; for BYTES a
        read-only array of copies.

    Raises:
        WireError: unknown datatype, impossible shape, or `raw` does not hold exactly these
            elements.
    """
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    if datatype == "BYTES":
        return _object_array(_unpack(raw, count), shape)
    if len(raw) != count * dtype.itemsize:
        raise WireError(
            f"{datatype} of shape {list(shape)} needs {count * dtype.itemsize} bytes, "
            f"{len(raw)} are given"
        )
    array = np.frombuffer(raw, dtype=np.uint8)
    if datatype == "BOOL" and array.max(initial=0) > 1:
        raise WireError("a BOOL element is neither 0 nor 1")
    return array.view(dtype).reshape(tuple(shape))


def from_elements(elements: Sequence[Any], datatype: str, shape: Sequence[int]) -> Array:
    """Build an array from elements that a peer sent one by one.

    Args:
        elements: numbers (integers for integer datatypes), booleans for BOOL, bytes objects for
            BYTES. Their types are not checked, only their range.
        datatype: datatype of the array.
        shape: shape of the array.

    Returns:
        A read-only array; floats beyond the range of the datatype become infinite.

    Raises:
        WireError: unknown datatype, impossible shape, the wrong number of elements, or an element
            that the datatype cannot hold.
    """
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    if len(elements) != count:
        raise WireError(
            f"{datatype} of shape {list(shape)} needs {count} elements, {len(elements)} are given"
        )
    if datatype == "BYTES":
        return _object_array(elements, shape)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if count and not limits.min <= min(elements) <= max(elements) <= limits.max:
            raise WireError(f"an element of {datatype} is not within {limits.min}..{limits.max}")
    try:
        with np.errstate(over="ignore"):
            wide_dtype = np.dtype(np.float64) if dtype.kind in "fV" else dtype
            array = np.fromiter(elements, wide_dtype, count).astype(dtype, copy=False)
    except OverflowError:
        raise WireError(f"an element is beyond the range of {datatype}") from None
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array


def _object_array(elements: Sequence[bytes], shape: Sequence[int]) -> Array:
    flat = np.empty(len(elements), dtype=np.object_)
    flat[:] = elements
    array = flat.reshape(tuple(shape))
    array.flags.writeable = False
    return array


def _pack(elements: Iterable[Any]) -> bytes:
    parts: list[bytes] = []
    total = 0
    for element in elements:
        if not isinstance(element, bytes):
            raise WireError(f"an object array must hold bytes, not {type(element).__name__}")
        total += _LENGTH.size + len(element)
        if total > MAX_MESSAGE_BYTES:
            raise WireError("the elements of a BYTES array do not fit into one message")
        parts += (_LENGTH.pack(len(element)), element)
    return b"".join(parts)


def _unpack(raw: memoryview, count: int) -> list[bytes]:
    if count * _LENGTH.size > len(raw):  # before a list of `count` elements is built
        raise WireError(f"{count} BYTES elements do not fit into {len(raw)} bytes")
    elements: list[bytes] = []
    at = 0
    for _ in range(count):
        end = at + _LENGTH.size
        if end <= len(raw):
            end += _LENGTH.unpack_from(raw, at)[0]
        if end > len(raw):
            raise WireError(f"a BYTES element ends at byte {end}, but there are {len(raw)} bytes")
        elements.append(raw[at + _LENGTH.size : end].tobytes())
        at = end
    if at != len(raw):
        raise WireError(f"{len(raw) - at} bytes follow the last BYTES element")
    return elements


#: A free dimension of a model in the Open Inference Protocol.
FREE: Final = -1


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name, datatype and shape of one input or output of a model.

    Attributes:
        name: name of the input or output in the model.
        datatype: name in the Open Inference Protocol ("FP32", "UINT8", ...).
        shape: dimensions, the batch first; -1 for a free one.
        kind: for an output, its `OutputKind` (see `forms`); empty if unknown.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    kind: str = ""

    def admits(self, shape: Sequence[int]) -> bool:
        """Return whether an array of `shape` fits this spec."""
        return len(shape) == len(self.shape) and all(
            expected in (FREE, size) for expected, size in zip(self.shape, shape, strict=True)
        )

    def admits_array(self, array: Array) -> bool:
        """Return whether an array fits this spec in datatype and shape."""
        try:
            return datatype_of(array.dtype) == self.datatype and self.admits(array.shape)
        except WireError:  # no datatype describes its dtype
            return False

    def __str__(self) -> str:
        return f"{self.name}:{self.datatype}:{','.join(map(str, self.shape))}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "NAME:DATATYPE:DIMS", as "image:FP32:-1,3,224,224"; raises UsageError."""
        try:
            name, datatype, dims = text.rsplit(":", 2)
            shape = tuple(int(size) for size in dims.split(","))
            dtype_of(datatype.upper())
        except WireError as error:
            raise UsageError(f"{text!r}: {error}") from None
        except ValueError:
            raise UsageError(
                f"{text!r} does not describe a tensor: write NAME:DATATYPE:DIMS, "
                "for example image:FP32:-1,3,224,224"
            ) from None
        if not name or min(shape) < FREE or 0 in shape:
            raise UsageError(
                f"{text!r} has no name, or a dimension that is neither -1 nor positive"
            )
        return cls(name, datatype.upper(), shape)


@dataclass(frozen=True, slots=True, eq=False)
class StackedArray:
    """The concatenation of several arrays along axis 0, without a copy.

    Attributes:
        pieces: at least one array; all have the same dtype and the same shape apart from axis 0.

    Raises:
        WireError: dtypes or shapes differ.
    """

    pieces: tuple[Array, ...]

    def __post_init__(self) -> None:
        kinds = {(piece.dtype, piece.shape[1:]) for piece in self.pieces}
        if len(kinds) != 1 or any(not piece.ndim for piece in self.pieces):
            given = ", ".join(f"{piece.dtype} {list(piece.shape)}" for piece in self.pieces)
            raise WireError(f"these arrays cannot be stacked: {given or 'none'}")

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.pieces[0].dtype

    @property
    def shape(self) -> tuple[int, ...]:
        rows = sum(piece.shape[0] for piece in self.pieces)
        return (rows, *self.pieces[0].shape[1:])

    @property
    def ndim(self) -> int:
        return self.pieces[0].ndim

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


#: The value of one input of a model.
Input = Array | StackedArray


def pieces_of(value: Input) -> tuple[Array, ...]:
    """Return the arrays that `value` consists of."""
    return value.pieces if isinstance(value, StackedArray) else (value,)


def as_one_array(value: Input) -> Array:
    """Return `value` as one array; a copy if it has several pieces."""
    pieces = pieces_of(value)
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
