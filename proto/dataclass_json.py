"""Dataclasses and named tuples as JSON values, and back according to their type hints.

A dataclass becomes an object with a member for each field, a named tuple or a frozenset becomes a
list, and a path becomes a string. Reading checks types: a value that does not fit its hint raises
WireError. A missing member also raises WireError, unless defaults are allowed and the field has a
default. Keys of mappings are not checked. Unknown members are ignored, so that newer versions may
add members.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from itertools import repeat
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


def from_plain(kind: type[_T], value: Any, *, defaults: bool = False) -> _T:
    """Rebuild an object of the class `kind` from a value that `to_plain` returned.

    Args:
        kind: class of the object.
        value: describes the object.
        defaults: whether a missing member gets the default of its field, if there is one.

    Raises:
        WireError: `value` does not describe such an object; the text names the wrong field.
            The constructor of `kind` may raise other errors.
    """
    try:
        rebuilt: _T = _read(kind, value, defaults)
    except RecursionError:
        raise WireError("it is nested too deeply") from None
    return rebuilt


def _read(hint: Any, value: Any, defaults: bool) -> Any:
    if type(value) is hint:
        return value
    origin, args = _form(hint)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(value, dict):
        given: dict[str, Any] = {}
        try:
            for name, member, optional in _members(hint):
                if name in value:
                    given[name] = _read(member, value[name], defaults)
                elif not (optional and defaults):
                    raise WireError("it is missing")
        except WireError as error:
            raise WireError(f"{name}: {error}") from None
        return hint(**given)
    if isinstance(hint, type) and hasattr(hint, "_fields") and isinstance(value, list):
        if len(value) == len(hint._fields):
            return hint(*map(_read, _hints(hint).values(), value, repeat(defaults)))
    elif origin in (Union, types.UnionType):
        for alternative in args:
            try:
                return _read(alternative, value, defaults)
            except WireError:
                continue
    elif origin is tuple and isinstance(value, list):
        if args[-1] is ...:
            return tuple(_read(args[0], item, defaults) for item in value)
        if len(args) == len(value):
            return tuple(map(_read, args, value, repeat(defaults)))
    elif origin is list and isinstance(value, list):
        return [_read(args[0], item, defaults) for item in value]
    elif origin is frozenset and isinstance(value, list):
        return frozenset(_read(args[0], item, defaults) for item in value)
    elif origin in (Mapping, dict) and isinstance(value, dict):
        return {name: _read(args[1], item, defaults) for name, item in value.items()}
    elif origin is Literal and value in args:
        return value
    elif hint is Path and type(value) is str:
        return Path(value)
    elif hint is Any or (hint is type(None) and value is None):
        return value
    elif hint is float and type(value) is int:
        with suppress(OverflowError):  # an integer beyond the floats
            return float(value)
    raise WireError(f"{value!r:.80} is not of type {getattr(hint, '__name__', hint)}")


@lru_cache
def _form(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the origin and the arguments of a type hint, such as `tuple` and `(int, ...)`."""
    return get_origin(hint), get_args(hint)


@lru_cache
def _members(kind: type[Any]) -> list[tuple[str, Any, bool]]:
    """Return the name and type of each field of a dataclass, and whether it has a default."""
    hints = get_type_hints(kind)
    return [
        (
            field.name,
            hints[field.name],
            field.default is not MISSING or field.default_factory is not MISSING,
        )
        for field in fields(kind)
    ]
