"""The fields of a JSON object that a peer has sent, of which nothing is believed."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ..errors import WireError
from .tensors import Parameter

JsonObject = Mapping[str, Any]

#: Lists within lists that a message may have: numpy has no array of more than 64 dimensions.
_NESTED: Final = 80
_BUT_BRACKETS: Final = bytes(set(range(256)) - set(b'[]{}"'))
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
    found = message.get("parameters", {})
    if not isinstance(found, dict) or set(map(type, found.values())) - {bool, int, float, str}:
        raise WireError("'parameters' is no object of numbers, strings, true and false")
    return found
