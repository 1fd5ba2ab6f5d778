"""States of other libraries' objects as JSON values, and back: exact for what they hold."""

from __future__ import annotations

import base64
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import UsageError

_KIND = "$kind"  # the key that marks what JSON has no word for


def encoded(value: Any, where: str = "") -> Any:
    """A copy of `value` of JSON values alone; `decoded` gives it back, with its types.

    Raises:
        UsageError: it holds something that is neither a JSON value nor bytes, a tuple, a dict, a
            numpy array or number, or a tensor of PyTorch on the CPU.
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        if all(isinstance(key, str) and key != _KIND for key in value):
            return {key: encoded(held, f"{where}.{key}") for key, held in value.items()}
        pairs = [[encoded(k, where), encoded(v, f"{where}.{k}")] for k, v in value.items()]
        return {_KIND: "dict", "pairs": pairs}
    if isinstance(value, (list, tuple)):
        values = [encoded(held, f"{where}[{place}]") for place, held in enumerate(value)]
        return values if isinstance(value, list) else {_KIND: "tuple", "values": values}
    if isinstance(value, (bytes, bytearray)):
        return {_KIND: "bytes", "data": _text(bytes(value))}
    if isinstance(value, (np.ndarray, np.generic)) and not value.dtype.hasobject:
        return _array("array" if isinstance(value, np.ndarray) else "number", np.asarray(value))
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _array("tensor", value.detach().cpu().numpy())
    raise UsageError(
        f"the source's state_dict() holds a {type(value).__name__} at state{where}, which cannot be"
        " written as JSON; have it return numbers, texts, lists, dicts, bytes and arrays"
    )


def decoded(value: Any) -> Any:
    """What `encoded` was given."""
    if isinstance(value, list):
        return [decoded(held) for held in value]
    if not isinstance(value, dict):
        return value
    match value.get(_KIND):
        case None:
            return {key: decoded(held) for key, held in value.items()}
        case "dict":
            return {decoded(key): decoded(held) for key, held in value["pairs"]}
        case "tuple":
            return tuple(decoded(held) for held in value["values"])
        case "bytes":
            return base64.b64decode(value["data"])
        case "number":
            return _read(value)[()]
        case "tensor":
            import torch

            return torch.from_numpy(_read(value))
        case _:
            return _read(value)


def _array(kind: str, array: np.ndarray[Any, Any]) -> dict[str, Any]:
    # As a list: numpy's text of the dtype of a record is one.
    dtype = array.dtype.descr if array.dtype.names else array.dtype.str
    return {_KIND: kind, "dtype": dtype, "shape": [*array.shape], "data": _text(array.tobytes())}


def _read(value: dict[str, Any]) -> np.ndarray[Any, Any]:
    data = bytearray(base64.b64decode(value["data"]))  # to be written to, as what it was
    return np.frombuffer(data, np.dtype(value["dtype"])).reshape(value["shape"])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
