"""Two ways in which a server takes changes: merge patches, and server-side apply with owners."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

#: What tells the elements of a list apart, by the list's name; other lists are values as a whole.
_KEYS: dict[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "conditions": ("type",),
    "ownerReferences": ("uid",),
    "topologySpreadConstraints": ("topologyKey", "whenUnsatisfiable"),
    "ports": ("containerPort", "port", "protocol"),
}
#: A field of an object: names, and for elements of lists what they are called.
Path = tuple[Any, ...]


def merged(value: Any, changes: Any) -> Any:
    """RFC 7386: null takes a field away, objects are merged, all else is replaced."""
    if not isinstance(changes, dict):
        return copy.deepcopy(changes)
    found = dict(value) if isinstance(value, dict) else {}
    for key, change in changes.items():
        if change is None:
            found.pop(key, None)
        else:
            found[key] = merged(found.get(key), change)
    return found


def leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Fields and their values, as owners have them."""
    keys = _KEYS.get(path[-1]) if path and isinstance(path[-1], str) else None
    if isinstance(value, dict) and value:
        for key, one in value.items():
            yield from leaves(one, (*path, key))
    elif isinstance(value, list) and keys and all(isinstance(one, dict) for one in value):
        for one in value:
            name = _name(one, keys)
            yield (*path, name), None
            for key, part in one.items():
                yield from leaves(part, (*path, name, key))
    else:
        yield path, value


def applied(value: Any, wanted: Any, name: str = "") -> Any:
    """What `wanted` says put over a value; what it does not speak of stays."""
    if isinstance(wanted, dict) and isinstance(value, dict):
        return {
            **value,
            **{key: applied(value.get(key), one, key) for key, one in wanted.items()},
        }
    keys = _KEYS.get(name)
    if isinstance(wanted, list) and isinstance(value, list) and keys:
        found = {_name(one, keys): one for one in value}
        for one in wanted:
            known = _name(one, keys)
            found[known] = applied(found.get(known), one)
        return list(found.values())
    return copy.deepcopy(wanted)


def without(value: Any, path: Path, name: str = "") -> Any:
    """A value without one field, or without one element of a list."""
    if not path:
        return value
    step, rest = path[0], path[1:]
    if isinstance(value, dict) and step in value:
        found = dict(value)
        if rest:
            found[step] = without(found[step], rest, step)
            if found[step] in ({}, []):
                del found[step]
        else:
            del found[step]
        return found
    keys = _KEYS.get(name)
    if isinstance(value, list) and keys:
        if rest:
            return [without(one, rest) if _name(one, keys) == step else one for one in value]
        return [one for one in value if _name(one, keys) != step]
    return value


def _name(one: dict[str, Any], keys: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(one.get(key, "TCP" if key == "protocol" else None) for key in keys)
