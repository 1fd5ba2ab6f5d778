"""State dicts of frameworks as JSON: numbers, strings and small arrays."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Return a state dict as JSON; a mapping with other keys than strings becomes pairs."""
    if isinstance(value, Mapping):
        if any(not isinstance(key, str) for key in value):
            return {"pairs": [[to_json(key), to_json(each)] for key, each in value.items()]}
        return {key: to_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(each) for each in value]
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        return {"array": value.tolist(), "dtype": value.dtype.name}
    return value.item() if isinstance(value, np.generic) else value


def from_json(value: Any) -> Any:
    """Return what `to_json` was given, with lists in place of tuples, and arrays of numpy."""
    if isinstance(value, Mapping):
        if value.keys() == {"array", "dtype"}:
            return np.array(value["array"], value["dtype"])
        if value.keys() == {"pairs"}:
            return {from_json(key): from_json(each) for key, each in value["pairs"]}
        return {key: from_json(each) for key, each in value.items()}
    return [from_json(each) for each in value] if isinstance(value, list) else value


def bytes_to_text(data: bytes) -> str:
    """Return bytes as text for JSON."""
    return base64.b64encode(data).decode("ascii")


def text_to_bytes(text: str) -> bytes:
    """Return what `bytes_to_text` was given."""
    return base64.b64decode(text)
