"""Options with several keys: `--limit calls=64,memory-mib=1024`, `--cache FOLDER,gib=20`.

A dataclass describes the keys, and one of its objects is the value of the option:

    @dataclass(frozen=True, slots=True)
    class Limits:
        calls: Annotated[int, Key("Calls open at once.", "EDL_MAX_CALLS", at_least=1)] = 256

    LIMIT = StructuredOption("--limit", Limits)

    def serve(limit: Annotated[list[Given] | None, LIMIT.option("Limits.")] = None) -> None:
        limits = LIMIT.read(limit)
"""

from __future__ import annotations

import difflib
import math
import os
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as type_hints

import typer

from .errors import UsageError

#: The option `--json` of commands that print text without it.
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

T = TypeVar("T")
#: A comma separates keys only before `KEY=`, so that values may have commas: `max=16,sizes=4,8`.
_SEPARATOR = re.compile(r",(?=[a-z][a-z-]*=)")
_PIECE = re.compile(r"([a-z][a-z-]*)=(.*)", re.DOTALL)
_SWITCH = {"on": True, "yes": True, "true": True, "1": True} | {
    "off": False, "no": False, "false": False, "0": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Key:
    """What a key of an option means; an annotation of a field.

    Attributes:
        help: its line in `--help`.
        variable: environment variable that is used if the key is not given; empty: none.
        metavar: kind of its value in `--help`; empty: by its type.
        at_least: least value of a number; None: any.
    """

    help: str
    variable: str = ""
    metavar: str = ""
    at_least: float | None = None


class Given(dict[str, Any]):
    """Keys and values of one occurrence of an option."""


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    key: str
    kind: Any
    about: Key
    default: Any


class StructuredOption(Generic[T]):
    """An option with several keys.

    Args:
        flag: its name, `--limit`.
        schema: a dataclass; each field is `Annotated[TYPE, Key(...)]` with a default. Types: `int`,
            `float`, `bool`, `str`, `Path`, `Literal`, and these or None. A field `at_most` is the
            key `at-most`.
        first: key whose value may stand first without `KEY=`; empty: none.
        variables: use the environment variables of the keys.
    """

    def __init__(
        self, flag: str, schema: type[T], *, first: str = "", variables: bool = True
    ) -> None:
        self.flag, self.__name__ = flag, flag  # Typer reads the name of a parser
        self._schema, self._first = schema, first
        hints = type_hints(schema, include_extras=True)
        self._fields: dict[str, _Field] = {}
        for one in fields(schema):  # type: ignore[arg-type]  # it is a dataclass
            kind, about = get_args(hints[one.name])[:2]
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(each for each in get_args(kind) if each is not types.NoneType)
            key = one.name.replace("_", "-")
            about = about if variables else replace(about, variable="")
            self._fields[key] = _Field(one.name, key, kind, about, one.default)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the keys, and what they are."""
        known = self._fields.values()
        return {one.about.variable: one.about.help for one in known if one.about.variable}

    def option(self, about: str = "", *, panel: str | None = None) -> Any:
        """Return the option for Typer, of a parameter `list[Given] | None`.

        Args:
            about: first line of its help.
            panel: panel of the help.
        """
        keys = [self._help(one) for one in self._fields.values()]
        first = self._fields.get(self._first)
        name = first and (first.about.metavar or self._first.upper())
        return typer.Option(
            self.flag,
            parser=self,
            metavar=f"{name}[,KEY=VALUE...]" if first else "KEY=VALUE,...",
            help="\n\n".join(filter(None, [about, *keys])),
            rich_help_panel=panel,
            autocompletion=self.completions,
        )

    def __call__(self, text: str | Given) -> Given:
        """Parse one occurrence; raises BadParameter."""
        if isinstance(text, Given):
            return text
        found = Given()
        for number, piece in enumerate(_SEPARATOR.split(text)):
            match = _PIECE.fullmatch(piece)
            key, value = (match[1], match[2]) if match else (self._first, piece)
            if key not in self._fields and self._first and number == 0:
                key, value = self._first, piece  # it has an equals sign itself
            if key not in self._fields or not piece:
                raise typer.BadParameter(self._unknown(key, piece))
            field = self._fields[key]
            try:
                found[field.name] = _parsed(value, field)
            except ValueError as error:
                raise typer.BadParameter(f"{key}: {error}") from None
        return found

    def read(self, given: Sequence[Given] | None) -> T:
        """Return the value: each key as given, else from its variable, else its default.

        Raises:
            UsageError: a variable is invalid.
        """
        values: dict[str, Any] = {}
        for field in self._fields.values():
            variable = field.about.variable
            if variable and (text := os.environ.get(variable)):
                try:
                    values[field.name] = _parsed(text, field)
                except ValueError as error:
                    raise UsageError(f"{variable}: {error}") from None
        for one in given or ():  # the last one wins, as of other options
            values.update(one)
        return self._schema(**values)

    def words(self, values: Mapping[str, object]) -> list[str]:
        """Return the option as words of a command line; None values are left out."""
        given = [f"{key}={value}" for key, value in values.items() if value is not None]
        return [f"{self.flag}={','.join(given)}"] if given else []

    def spelling(self, key: str) -> str:
        """Return how a key is given, as `--limit calls=N`; empty: there is no such key."""
        field = self._fields.get(key)
        return f"{self.flag} {_spelling(field)}" if field else ""

    def _help(self, field: _Field) -> str:
        variable = field.about.variable
        facts = [f"env var: {variable}"] if variable else []
        if field.default not in (None, "", False):
            facts.append(f"default: {_shown(field.default)}")
        plain = field.about.metavar or field.key.upper()
        name = plain if field.key == self._first else _spelling(field)
        return f"{name}: {field.about.help}" + (f" \\[{'; '.join(facts)}]" if facts else "")

    def _unknown(self, key: str, piece: str) -> str:
        keys = ", ".join(self._fields)
        if not key or not piece:
            return f"expects KEY=VALUE,... with keys {keys}, got {piece!r:.80}"
        near = difflib.get_close_matches(key, self._fields, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"unknown key {key!r:.80}; {hint}There are: {keys}"

    def completions(self, incomplete: str) -> Iterator[str]:
        """Yield completions of a value for a shell: the value with one more key."""
        done, comma, begun = incomplete.rpartition(",")
        given = {piece.partition("=")[0] for piece in done.split(",")}
        for key in self._fields:
            if key.startswith(begun) and key not in given:
                yield f"{done}{comma}{key}="


def variables_of(parameter: Any) -> dict[str, str]:
    """Return the environment variables of a parameter of a command line, and what they are."""
    named = parameter.envvar
    names = [named] if isinstance(named, str) else list(named or ())
    about = getattr(parameter, "help", "") or ""
    keyed = getattr(getattr(parameter.type, "func", None), "variables", {})
    return dict.fromkeys(names, about) | keyed


def spelling_among(parameters: Iterable[Any], flag: str) -> str:
    """Return how `--KEY` is given if KEY is a key of one of these options; empty: it is none."""
    parsers = [getattr(one.type, "func", None) for one in parameters]
    options = [one for one in parsers if isinstance(one, StructuredOption)]
    return next(filter(None, (one.spelling(flag.removeprefix("--")) for one in options)), "")


def _parsed(text: str, field: _Field) -> Any:
    """Raises ValueError if `text` is no value of the field."""
    kind = field.kind
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ValueError(f"expects {' or '.join(get_args(kind))}, got {text!r:.80}")
        return text
    if kind is bool:
        if text.lower() not in _SWITCH:
            raise ValueError(f"expects on or off, got {text!r:.80}")
        return _SWITCH[text.lower()]
    if kind in (str, Path):
        if not text:
            raise ValueError("expects a value")
        return kind(text)
    least = field.about.at_least
    what = "a whole number" if kind is int else "a number"
    bound = "" if least is None else f" of at least {least:g}"
    try:
        number = kind(text)
        is_finite = math.isfinite(number)
    except (ValueError, OverflowError):  # an integer that no float can hold
        raise ValueError(f"expects {what}{bound}, got {text!r:.80}") from None
    if not is_finite or (least is not None and number < least):
        raise ValueError(f"expects {what}{bound}, got {text:.80}")
    return number


def _spelling(field: _Field) -> str:
    """Return `KEY=METAVAR`."""
    names = {int: "N", float: "NUMBER", bool: "on|off", Path: "FILE"}
    words = "|".join(get_args(field.kind)) if get_origin(field.kind) is Literal else ""
    metavar = field.about.metavar or words or names.get(field.kind) or field.key.upper()
    return f"{field.key}={metavar}"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
