"""A frozen dataclass from a YAML file, strictly: every mistake is an error that names its line.

The dataclass is the schema: its fields are the keys, their types say what is read, their defaults
what may be left out. What its `__post_init__` refuses by `ValueError` is an error at the line of
its mapping. Nothing is evaluated, and nothing is guessed: an unknown key, one that stands twice,
`nan`, a number in quotes are errors.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from ...errors import UsageError
from ...scheduler.units import Number
from . import scalars
from .blame import Place, shown, unknown_key
from .tree import compose, load

T = TypeVar("T")


def read(path: str | os.PathLike[str], kind: type[T]) -> T:
    """What a YAML file describes.

    Args:
        path: of the file, at most 1 MiB.
        kind: a dataclass of: `str`, `bool`, `int`, `float` (with `scheduler.units.Number` in
            `Annotated`: with bounds, and with units: `10 Gbit/s`), `Literal`, `X | None`, other
            unions (the first that fits), `Path` (relative to the file), `tuple[X, ...]`,
            `tuple[X, Y]`, `Mapping[str, X]`, `dict[str, X]`, and dataclasses of such.

    Raises:
        UsageError: there is no such file, it is not YAML, or it does not describe a `kind`:
            `name:line: key: what is wrong; what is expected`.
    """
    return parse(load(path), kind, os.fspath(path))


def parse(text: str, kind: type[T], name: str = "text") -> T:
    """The same for a text that is at hand.

    Args:
        text: YAML.
        kind: as for `read`.
        name: what errors call it; a `Path` in it is relative to the folder of that name.

    Raises:
        UsageError: as for `read`.
    """
    if len(text) > 1 << 20:
        raise UsageError(f"{name} is larger than 1 MiB: that is no description")
    value: T = _dataclass(compose(text, name), kind, Place(name))
    return value


def _value(node: yaml.Node, kind: Any, place: Place) -> Any:
    """What stands at a node, as the type asks."""
    rule = scalars.ANY
    while get_origin(kind) is Annotated:
        rule = next((mark for mark in get_args(kind)[1:] if isinstance(mark, Number)), rule)
        kind = get_args(kind)[0]
    if kind is float:
        return scalars.number(node, place, rule)
    if kind is int:
        return scalars.whole(node, place, rule)
    if kind is bool:
        return scalars.truth(node, place)
    if kind is str:
        return scalars.text(node, place)
    if kind is Path:
        return Path(place.name).parent / scalars.text(node, place)
    if is_dataclass(kind):
        return _dataclass(node, kind, place)
    return _compound(node, kind, place)


def _compound(node: yaml.Node, kind: Any, place: Place) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _word(node, arguments, place)
    if origin in (Union, types.UnionType):
        return _union(node, arguments, place)
    if origin is tuple:
        return _tuple(node, arguments, place)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {
            key: _value(child, arguments[1], place.of(key)) for key, child in _items(node, place)
        }
    raise TypeError(f"{place.key}: files cannot hold a {kind}")


def _dataclass(node: yaml.Node, kind: Any, place: Place) -> Any:
    """A dataclass from a mapping: each field from the key of its name."""
    known = {field.name: field for field in fields(kind) if field.init}
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for key, child in _items(node, place):
        if key not in known:
            place.of(key).blame(child, unknown_key(key, known))
        given[key] = _value(child, hints[key], place.of(key))
    missing = [name for name, field in known.items() if name not in given and _required(field)]
    if missing:
        place.blame(node, f"{_quoted(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    try:
        return kind(**given)
    except ValueError as error:
        place.blame(node, str(error))


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _items(node: yaml.Node, place: Place) -> list[tuple[str, yaml.Node]]:
    """Keys and values of a mapping; keys are text, each once."""
    if not isinstance(node, yaml.MappingNode):
        place.blame(node, f"expects a mapping, `key: value` a line, got {shown(node)}")
    seen: dict[str, yaml.Node] = {}
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            place.blame(key_node, "a key is text")
        key = str(key_node.value)
        if key in seen:
            line = seen[key].start_mark.line + 1
            place.of(key).blame(key_node, f"the key is there already, at line {line}")
        seen[key] = key_node
    return [(str(key_node.value), child) for key_node, child in node.value]


def _tuple(node: yaml.Node, kinds: tuple[Any, ...], place: Place) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        place.blame(node, f"expects a list, `- item` a line, got {shown(node)}")
    children: list[yaml.Node] = node.value
    if kinds[-1] is not Ellipsis:
        if len(children) != len(kinds):
            place.blame(node, f"expects a list of {len(kinds)}, got {len(children)}")
    else:
        kinds = (kinds[0],) * len(children)
    return tuple(
        _value(child, kind, place.at(index))
        for index, (child, kind) in enumerate(zip(children, kinds, strict=True))
    )


def _word(node: yaml.Node, words: tuple[Any, ...], place: Place) -> Any:
    """One of several words; without quotes, whatever else YAML takes them for."""
    text = node.value if isinstance(node, yaml.ScalarNode) else None
    found = [word for word in words if str(word) == text]
    if found:
        return found[0]
    expected = _either([repr(word) for word in words])
    return place.blame(node, f"expects {expected}, got {shown(node)}")


def _union(node: yaml.Node, kinds: tuple[Any, ...], place: Place) -> Any:
    """The first kind that fits; of what fits none, the error of the last, or of all."""
    empty = node.tag == "tag:yaml.org,2002:null"
    rest = [kind for kind in kinds if kind is not type(None)]
    if empty and len(rest) < len(kinds):
        return None
    if isinstance(node, yaml.SequenceNode):  # a mistake in a list is named in its item
        rest = [kind for kind in rest if get_origin(kind) is tuple] or rest
    errors: list[UsageError] = []
    for kind in rest:
        try:
            return _value(node, kind, place)
        except UsageError as error:
            errors.append(error)
    if len(errors) > 1:
        wholly = [str(error).partition(": expects ")[2].partition(", got ")[0] for error in errors]
        if all(wholly):
            place.blame(node, f"expects {_either(wholly)}, got {shown(node)}")
    raise errors[-1]


def _either(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
