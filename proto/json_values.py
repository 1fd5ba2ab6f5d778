"""The fields and arrays of a JSON object that a peer has sent, of which nothing is believed.

Arrays are numbers in lists, flat or nested; strings for BYTES.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..errors import WireError
from .datatypes import MAX_DIMENSIONS, Array, dtype_of, from_elements
from .wire import Parameter

JsonObject = Mapping[str, Any]

#: Lists within lists that a message may have: numpy has no array of more than 64 dimensions.
_NESTED: Final = 80
_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
#: Which values of JSON may be the elements of an array, by the kind of its dtype.
_ALLOWED: Final[Mapping[str, set[type]]] = {
    "O": {str},
    "b": {bool},
    "i": {int},
    "u": {int},
    "f": {int, float},
    "V": {int, float},
}
_STRING: Final = re.compile(rb'"[^"]*"')


def parse_object(data: memoryview) -> dict[str, Any]:
    """A JSON object.

    Raises:
        WireError: it is none, it is nested too deep, or has numbers that no JSON has.
    """
    body = bytes(data)
    _check_nesting(body)
    try:
        message = json.loads(str(body, "utf-8"), parse_constant=_no_constant)
    except ValueError as error:
        raise WireError(f"the body is no JSON: {error}") from None
    if not isinstance(message, dict):
        raise WireError("the body is JSON, but no object")
    return message


def _check_nesting(body: bytes) -> None:
    """Raise WireError for what would overflow the parser's stack, from which Python may abort."""
    if body.count(b"[") + body.count(b"{") <= _NESTED:
        return
    unescaped = body.replace(rb"\\", b"").replace(rb"\"", b"")
    brackets = _STRING.sub(b"", unescaped.translate(None, _BUT_BRACKETS))
    codes = np.frombuffer(brackets, np.uint8)
    opened = (codes == ord("[")) | (codes == ord("{"))
    closed = (codes == ord("]")) | (codes == ord("}"))
    depth = np.cumsum(opened.astype(np.int8) - closed.astype(np.int8), dtype=np.int64)
    if depth.max(initial=0) > _NESTED:
        raise WireError(f"the body is nested more than {_NESTED} deep")


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no number")


def shape_of(tensor: JsonObject) -> list[int]:
    """Its dimensions, which may still be negative; raises WireError."""
    shape = tensor.get("shape")
    if not isinstance(shape, list) or set(map(type, shape)) - {int}:
        raise WireError("'shape' is no list of integers")
    return shape


def objects_in(message: JsonObject, key: str) -> list[JsonObject]:
    """The objects in the list `key`, none where it is left out; raises WireError."""
    found = message.get(key, [])
    if not isinstance(found, list) or set(map(type, found)) - {dict}:
        raise WireError(f"{key!r} is no list of objects")
    return found


def text_in(message: JsonObject, key: str) -> str:
    """The string `key`, empty where it is left out; raises WireError."""
    text = message.get(key, "")
    if not isinstance(text, str):
        raise WireError(f"{key!r} is no string")
    return text


def parameters_of(message: JsonObject) -> dict[str, Parameter]:
    """The parameters of a message or of a tensor; raises WireError."""
    value = message.get("parameters", {})
    if not isinstance(value, dict) or set(map(type, value.values())) - {bool, int, float, str}:
        raise WireError(
            f"'parameters' is no object of numbers, strings, true and false: {value!r:.80}"
        )
    return value


def array_from_json(data: object, datatype: str, shape: list[int]) -> Array:
    """The array of these elements, read-only.

    Raises:
        WireError: `data` is no list, or its elements are not as many, of that datatype, or of one
            depth.
    """
    flat, kind = _flat(data), dtype_of(datatype).kind
    if odd := set(map(type, flat)) - _ALLOWED[kind]:
        raise WireError(f"an element of {datatype} is {min(one.__name__ for one in odd)} in JSON")
    if datatype == "BYTES":
        flat = [text.encode("utf-8", "surrogatepass") for text in flat]
    array = from_elements(flat, datatype, shape)
    if kind in "fV" and not np.isfinite(array).all():
        raise WireError(f"an element is beyond {datatype}")
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


def array_to_json(array: Array) -> list[Any]:
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
