"""Reads and writes frozen dataclasses as YAML files. Reading is strict; errors name the line.

The dataclass is the schema: fields are keys, their types define valid values, and fields with
defaults are optional. A ValueError of `__post_init__` becomes an error at the line of the mapping.
Nothing is evaluated or guessed: unknown or repeated keys, `nan`, and quoted numbers are errors.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from ...runtime.errors import UsageError
from ...runtime.files import replacing
from ...scheduler.units import Number
from .yaml_tree import (
    ANY_NUMBER,
    FileLocation,
    boolean,
    compose_all,
    describe_node,
    integer,
    number,
    read_text,
    string,
    unknown_key,
)

T = TypeVar("T")
_MAX_DOCUMENTS = 1000


def read(path: str | os.PathLike[str], kind: type[T]) -> T:
    """Read a YAML file.

    Args:
        path: path of the file, at most 1 MiB.
        kind: a dataclass. Types of fields: `str`, `bool`, `int`, `float`, `Literal`, `X | None`,
            other unions (the first type that fits), `Path` (relative to the file),
            `tuple[X, ...]`, `tuple[X, Y]`, `Mapping[str, X]`, `dict[str, X]`, and dataclasses of
            these. `Annotated` with `scheduler.units.Number` gives numbers bounds and units, such as
            `10 Gbit/s`.

    Raises:
        UsageError: the file cannot be read, is not YAML, or is not a valid `kind`. For a wrong key
            or value the message is `name:line: key: what is wrong`.
    """
    return parse(read_text(path), kind, os.fspath(path))


def parse(text: str, kind: type[T], name: str = "text") -> T:
    """Read a YAML text.

    Args:
        text: YAML, at most 1 MiB.
        kind: as for `read`.
        name: file name for errors; paths in the text are relative to its folder.

    Raises:
        UsageError: as for `read`.
    """
    (root,) = compose_all(text, name, most=1)
    value: T = _dataclass(root, kind, FileLocation(name))
    return value


def parse_kinds(text: str, kinds: Mapping[str, type[T]], name: str) -> list[T]:
    """Read a YAML text of documents, each with a key `kind` and the keys of a dataclass.

    Args:
        text: YAML, at most 1 MiB.
        kinds: dataclass for each value of `kind`.
        name: as for `parse`.

    Raises:
        UsageError: as for `read`; or `kind` is missing or unknown.
    """
    location, values = FileLocation(name), []
    for root in compose_all(text, name, most=_MAX_DOCUMENTS):
        named = [(key, child) for key, child in root.value if key.value == "kind"]
        if not named:
            expected = _join_or([f"`kind: {kind}`" for kind in kinds])
            location.fail(root, f"'kind' is missing: expects {expected}")
        kind = kinds[_literal(named[0][1], tuple(kinds), location.of("kind"))]
        root.value.remove(named[0])
        values.append(_dataclass(root, kind, location))
    return values


def _value(node: yaml.Node, kind: Any, location: FileLocation) -> Any:
    """Convert a node to a type."""
    rule = ANY_NUMBER
    while get_origin(kind) is Annotated:
        rule = next((mark for mark in get_args(kind)[1:] if isinstance(mark, Number)), rule)
        kind = get_args(kind)[0]
    if kind is float:
        return number(node, location, rule)
    if kind is int:
        return integer(node, location, rule)
    if kind is bool:
        return boolean(node, location)
    if kind is str:
        return string(node, location)
    if kind is Path:
        return Path(location.name).parent / string(node, location)
    if is_dataclass(kind):
        return _dataclass(node, kind, location)
    return _compound(node, kind, location)


def _compound(node: yaml.Node, kind: Any, location: FileLocation) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return _literal(node, arguments, location)
    if origin in (Union, types.UnionType):
        return _union(node, arguments, location)
    if origin is tuple:
        return _tuple(node, arguments, location)
    if origin in (dict, Mapping) or (isinstance(origin, type) and issubclass(origin, Mapping)):
        return {
            key: _value(child, arguments[1], location.of(key))
            for key, child in _items(node, location)
        }
    raise TypeError(f"{location.key}: files cannot hold a {kind}")


def _dataclass(node: yaml.Node, kind: Any, location: FileLocation) -> Any:
    """Convert a mapping to a dataclass."""
    known = {field.name: field for field in fields(kind) if field.init}
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for key, child in _items(node, location):
        if key not in known:
            location.of(key).fail(child, unknown_key(key, known))
        given[key] = _value(child, hints[key], location.of(key))
    missing = [
        repr(name)
        for name, field in known.items()
        if name not in given and field.default is MISSING and field.default_factory is MISSING
    ]
    if missing:
        location.fail(node, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing")
    try:
        return kind(**given)
    except ValueError as error:
        location.fail(node, str(error))


def _items(node: yaml.Node, location: FileLocation) -> list[tuple[str, yaml.Node]]:
    """Return keys and values of a mapping; fail unless the keys are unique texts."""
    if not isinstance(node, yaml.MappingNode):
        location.fail(node, f"expects a mapping, `key: value` a line, got {describe_node(node)}")
    seen: dict[str, yaml.Node] = {}
    for key_node, _ in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            location.fail(key_node, "a key is text")
        key = str(key_node.value)
        if key in seen:
            line = seen[key].start_mark.line + 1
            location.of(key).fail(key_node, f"duplicate key, first used at line {line}")
        seen[key] = key_node
    return [(str(key_node.value), child) for key_node, child in node.value]


def _tuple(node: yaml.Node, kinds: tuple[Any, ...], location: FileLocation) -> tuple[Any, ...]:
    if not isinstance(node, yaml.SequenceNode):
        location.fail(node, f"expects a list, `- item` a line, got {describe_node(node)}")
    children: list[yaml.Node] = node.value
    if kinds[-1] is not Ellipsis:
        if len(children) != len(kinds):
            location.fail(node, f"expects a list of {len(kinds)}, got {len(children)}")
    else:
        kinds = (kinds[0],) * len(children)
    return tuple(
        _value(child, kind, location.at(index))
        for index, (child, kind) in enumerate(zip(children, kinds, strict=True))
    )


def _literal(node: yaml.Node, words: tuple[Any, ...], location: FileLocation) -> Any:
    """Convert a node to one of several words, even if YAML parses it as another type."""
    text = node.value if isinstance(node, yaml.ScalarNode) else None
    for word in words:
        if str(word) == text:
            return word
    expected = _join_or([repr(word) for word in words])
    return location.fail(node, f"expects {expected}, got {describe_node(node)}")


def _union(node: yaml.Node, kinds: tuple[Any, ...], location: FileLocation) -> Any:
    """Convert a node to the first type that fits.

    If none fits, the error names all types if each type's error says what it expects; otherwise it
    is the error of the last type.
    """
    is_null = node.tag == "tag:yaml.org,2002:null"
    value_kinds = [kind for kind in kinds if kind is not type(None)]
    if is_null and len(value_kinds) < len(kinds):
        return None
    if isinstance(node, yaml.SequenceNode):  # report an error in the item of the list
        value_kinds = [kind for kind in value_kinds if get_origin(kind) is tuple] or value_kinds
    errors: list[UsageError] = []
    for kind in value_kinds:
        try:
            return _value(node, kind, location)
        except UsageError as error:
            errors.append(error)
    if len(errors) > 1:
        expected = [
            str(error).partition(": expects ")[2].partition(", got ")[0] for error in errors
        ]
        if all(expected):
            location.fail(node, f"expects {_join_or(expected)}, got {describe_node(node)}")
    raise errors[-1]


def _join_or(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]


def write(path: str | os.PathLike[str], value: object, heading: str = "") -> None:
    """Write a YAML file atomically; replace an existing file.

    Args:
        path: path of the file.
        value: a dataclass as for `read`; fields with their default value are left out.
        heading: comment lines at the top, without `#`.

    Raises:
        UsageError: the file cannot be written.
    """
    comment = "".join(f"# {line}\n" for line in heading.splitlines())
    text = comment + yaml.safe_dump(
        _to_plain(value), sort_keys=False, allow_unicode=True, width=100
    )
    with replacing(Path(path)) as part:
        part.write_text(text, encoding="utf-8")


def _default(field: Field[Any]) -> Any:
    factory = field.default_factory
    return field.default if factory is MISSING else factory()


def _to_plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: _to_plain(getattr(value, field.name))
            for field in fields(value)
            if field.init and getattr(value, field.name) != _default(field)
        }
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return value
