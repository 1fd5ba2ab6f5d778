"""Arrays as JSON has them: numbers in lists, flat or nested; strings for BYTES."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..errors import WireError
from .datatypes import MAX_DIMENSIONS, Array, dtype_of, element_count, object_array


def from_json(data: object, datatype: str, shape: list[int]) -> Array:
    """The array of these elements, read-only.

    Raises:
        WireError: `data` is no list, or its elements are not as many, of that datatype, or of one
            depth.
    """
    dtype = dtype_of(datatype)
    count = element_count(shape, dtype.itemsize)
    flat = _flat(data)
    if len(flat) != count:
        raise WireError(f"shape {shape} needs {count} elements, {len(flat)} are given")
    kinds = set(map(type, flat))
    if datatype == "BYTES":
        _check_kinds(kinds, {str}, datatype)
        return object_array([text.encode("utf-8", "surrogatepass") for text in flat], shape)
    if dtype.kind == "b":
        _check_kinds(kinds, {bool}, datatype)
    elif dtype.kind in "iu":
        _check_kinds(kinds, {int}, datatype)
        limits = np.iinfo(dtype)
        if flat and not limits.min <= min(flat) <= max(flat) <= limits.max:
            raise WireError(f"an element of {datatype} is not within {limits.min}..{limits.max}")
    else:
        _check_kinds(kinds, {int, float}, datatype)
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype=np.float64 if dtype.kind in "fV" else dtype).astype(dtype)
    except OverflowError:
        raise WireError(f"an element is beyond {datatype}") from None
    if dtype.kind in "fV" and not np.isfinite(array).all():
        raise WireError(f"an element is beyond {datatype}")
    array = array.reshape(tuple(shape))
    array.flags.writeable = False
    return array


def _flat(data: object) -> list[Any]:
    """The elements of a list, or of a list of lists, and so on."""
    if not isinstance(data, list):
        raise WireError("'data' is no list")
    for _ in range(MAX_DIMENSIONS):
        lists = sum(type(element) is list for element in data)
        if not lists:
            return data
        if lists < len(data):
            raise WireError("'data' has lists and elements side by side")
        if len({len(inner) for inner in data}) > 1:
            raise WireError("the lists in 'data' are not equally long")
        data = list(itertools.chain.from_iterable(data))
    raise WireError(f"'data' is nested more than {MAX_DIMENSIONS} deep")


def _check_kinds(found: set[type], allowed: set[type], datatype: str) -> None:
    if found - allowed:
        odd = sorted(kind.__name__ for kind in found - allowed)
        raise WireError(f"an element of {datatype} is {odd[0]} in JSON")


def to_json(array: Array) -> list[Any]:
    """The elements of `array` in a flat list; a double holds each float of fewer bits exactly.

    Raises:
        UnicodeDecodeError: an element is bytes that are no text.
    """
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    flat: list[Any] = array.ravel().tolist()
    if array.dtype.kind not in "OS":
        return flat
    return [bytes(element).decode() for element in flat]
