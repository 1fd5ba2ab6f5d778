"""Dataclasses and named tuples as JSON values, and back according to their type hints.

A dataclass becomes an object with a member for each field, a named tuple or a set becomes a list,
and a path becomes a string. Reading checks types: a value that does not fit its hint, or a missing
member, raises WireError; keys of mappings are not checked. Unknown members are ignored, so that
newer versions may add members.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..runtime.errors import WireError

_T = TypeVar("_T")
_hints = lru_cache(get_type_hints)


def to_plain(value: Any) -> Any:
    """Convert dataclasses, also within other containers, to values that `json.dumps` accepts."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: to_plain(item) for name, item in value.items()}
    if isinstance(value, tuple | list | frozenset):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def from_plain(kind: type[_T], value: Any) -> _T:
    """Rebuild an object of the class `kind` from a value that `to_plain` returned.

    Raises:
        WireError: `value` does not describe such an object. The constructor of `kind` may raise
            other errors.
    """
    rebuilt: _T = _read(kind, value)
    return rebuilt


def _read(hint: Any, value: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        if value.keys() >= (names := {field.name for field in fields(hint)}):
            return hint(**{name: _read(_hints(hint)[name], value[name]) for name in names})
    elif isinstance(hint, type) and hasattr(hint, "_fields") and isinstance(value, list):
        if len(value) == len(hint._fields):
            return hint(*map(_read, _hints(hint).values(), value))
    elif origin in (Union, types.UnionType):
        for alternative in args:
            try:
                return _read(alternative, value)
            except WireError:
                continue
    elif origin is tuple and isinstance(value, list):
        if args[-1] is ...:
            return tuple(_read(args[0], item) for item in value)
        if len(args) == len(value):
            return tuple(map(_read, args, value))
    elif origin is list and isinstance(value, list):
        return [_read(args[0], item) for item in value]
    elif origin is frozenset and isinstance(value, list):
        return frozenset(_read(args[0], item) for item in value)
    elif origin in (Mapping, dict) and isinstance(value, dict):
        return {name: _read(args[1], item) for name, item in value.items()}
    elif origin is Literal and value in args:
        return value
    elif hint is Path and type(value) is str:
        return Path(value)
    elif hint is Any or type(value) is hint or (hint is type(None) and value is None):
        return value
    elif hint is float and type(value) is int:
        return float(value)
    raise WireError(f"{value!r:.80} is not of type {getattr(hint, '__name__', hint)}")
