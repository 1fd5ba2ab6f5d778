"""Options with several keys: `--limit calls=64,memory-mib=1024`, `--cache FOLDER,gib=20`.

A dataclass describes the keys, and an instance of it is the value of the option:

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
    """The meaning of a key of an option; an annotation of a field of the dataclass.

    Attributes:
        help: the line of the key in `--help`.
        variable: environment variable that is used if the key is not given; empty: none.
        metavar: placeholder of the value in `--help`; empty: derived from the type.
        at_least: smallest allowed number; None: no limit.
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
    kind: Any  # its type, without None
    meaning: Key
    default: Any


class StructuredOption(Generic[T]):
    """An option with several keys.

    Args:
        flag: the name of the option, as `--limit`.
        schema: a dataclass; each field is `Annotated[TYPE, Key(...)]` with a default. TYPE is
            `int`, `float`, `bool`, `str`, `Path` or a `Literal`, or one of these and None. The
            field `at_most` is the key `at-most`.
        first: key whose value may come first, without `KEY=`; empty: none.
        variables: whether to use the environment variables of the keys.
    """

    def __init__(
        self, flag: str, schema: type[T], *, first: str = "", variables: bool = True
    ) -> None:
        self.flag, self.__name__ = flag, flag  # Typer reads `__name__` of a parser
        self._schema, self._first = schema, first
        hints = type_hints(schema, include_extras=True)
        self._fields: dict[str, _Field] = {}
        for field in fields(schema):  # type: ignore[arg-type]  # it is a dataclass
            kind, meaning = get_args(hints[field.name])[:2]
            if get_origin(kind) in (Union, types.UnionType):
                kind = next(each for each in get_args(kind) if each is not types.NoneType)
            key = field.name.replace("_", "-")
            meaning = meaning if variables else replace(meaning, variable="")
            self._fields[key] = _Field(field.name, key, kind, meaning, field.default)

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the keys, and their help."""
        meanings = [field.meaning for field in self._fields.values()]
        return {meaning.variable: meaning.help for meaning in meanings if meaning.variable}

    def option(self, about: str = "", *, panel: str | None = None) -> Any:
        """Return the option for Typer, for a parameter of type `list[Given] | None`.

        Args:
            about: first line of the help of the option.
            panel: panel of `--help` that shows the option; None: the default panel.
        """
        keys = [self._help(field) for field in self._fields.values()]
        first = self._fields.get(self._first)
        name = first and (first.meaning.metavar or self._first.upper())
        return typer.Option(
            self.flag,
            parser=self,
            metavar=f"{name}[,KEY=VALUE...]" if first else "KEY=VALUE,...",
            help="\n\n".join(filter(None, [about, *keys])),
            rich_help_panel=panel,
            autocompletion=self.completions,
        )

    def __call__(self, text: str | Given) -> Given:
        """Parse the text of one occurrence of the option; raises BadParameter."""
        if isinstance(text, Given):
            return text
        given = Given()
        for number, piece in enumerate(_SEPARATOR.split(text)):
            match = _PIECE.fullmatch(piece)
            key, value = (match[1], match[2]) if match else (self._first, piece)
            if key not in self._fields and self._first and number == 0:
                key, value = self._first, piece  # a value that contains an equals sign
            if key not in self._fields or not piece:
                raise typer.BadParameter(self._unknown(key, piece))
            field = self._fields[key]
            try:
                given[field.name] = _parsed(value, field)
            except ValueError as error:
                raise typer.BadParameter(f"{key}: {error}") from None
        return given

    def read(self, given: Sequence[Given] | None) -> T:
        """Return the option's value: each key as given, else from its variable, else its default.

        Raises:
            UsageError: a variable that is needed is invalid.
        """
        values: dict[str, Any] = {}
        for occurrence in given or ():  # the last value of a key counts, as for other options
            values.update(occurrence)
        for field in self._fields.values():
            variable = field.meaning.variable
            if field.name not in values and variable and (text := os.environ.get(variable)):
                try:
                    values[field.name] = _parsed(text, field)
                except ValueError as error:
                    raise UsageError(f"{variable}: {error}") from None
        return self._schema(**values)

    def words(self, values: Mapping[str, object]) -> list[str]:
        """Return the option as arguments of a command line; None values are left out."""
        pairs = [f"{key}={value}" for key, value in values.items() if value is not None]
        return [f"{self.flag}={','.join(pairs)}"] if pairs else []

    def spelling(self, key: str) -> str:
        """Return how a key is written, as `--limit calls=N`; empty: there is no such key."""
        field = self._fields.get(key)
        return f"{self.flag} {_spelling(field)}" if field else ""

    def _help(self, field: _Field) -> str:
        variable = field.meaning.variable
        notes = [f"env var: {variable}"] if variable else []
        if field.default not in (None, "", False):
            notes.append(f"default: {_default_text(field.default)}")
        metavar = field.meaning.metavar or field.key.upper()
        name = metavar if field.key == self._first else _spelling(field)
        return f"{name}: {field.meaning.help}" + (f" \\[{'; '.join(notes)}]" if notes else "")

    def _unknown(self, key: str, piece: str) -> str:
        keys = ", ".join(self._fields)
        if not key or not piece:
            return f"expects KEY=VALUE,... with keys {keys}, got {piece!r:.80}"
        similar = difflib.get_close_matches(key, self._fields, 1)
        hint = f"did you mean {similar[0]!r}? " if similar else ""
        return f"unknown key {key!r:.80}; {hint}There are: {keys}"

    def completions(self, incomplete: str) -> Iterator[str]:
        """Yield completions of a value for a shell: the value with one more key."""
        complete, comma, begun = incomplete.rpartition(",")
        given = {piece.partition("=")[0] for piece in complete.split(",")}
        for key in self._fields:
            if key.startswith(begun) and key not in given:
                yield f"{complete}{comma}{key}="


def variables_of(parameter: Any) -> dict[str, str]:
    """Return the environment variables of a parameter of a command line, and their help."""
    envvar = parameter.envvar
    names = [envvar] if isinstance(envvar, str) else list(envvar or ())
    help_text = getattr(parameter, "help", "") or ""
    of_keys = getattr(getattr(parameter.type, "func", None), "variables", {})
    return dict.fromkeys(names, help_text) | of_keys


def spelling_among(parameters: Iterable[Any], flag: str) -> str:
    """Return how the former option `--KEY` is written now, as a key of one of these options.

    Empty if none of them has that key.
    """
    parsers = [getattr(parameter.type, "func", None) for parameter in parameters]
    options = [parser for parser in parsers if isinstance(parser, StructuredOption)]
    key = flag.removeprefix("--")
    return next(filter(None, (option.spelling(key) for option in options)), "")


def _parsed(text: str, field: _Field) -> Any:
    """Convert `text` to the type of a field; raises ValueError."""
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
    least = field.meaning.at_least
    what = "a whole number" if kind is int else "a number"
    bound = "" if least is None else f" of at least {least:g}"
    try:
        number = kind(text)
        is_finite = math.isfinite(number)
    except (ValueError, OverflowError):  # OverflowError: an integer that no float can hold
        raise ValueError(f"expects {what}{bound}, got {text!r:.80}") from None
    if not is_finite or (least is not None and number < least):
        raise ValueError(f"expects {what}{bound}, got {text:.80}")
    return number


def _spelling(field: _Field) -> str:
    """Return `KEY=METAVAR`."""
    names = {int: "N", float: "NUMBER", bool: "on|off", Path: "FILE"}
    words = "|".join(get_args(field.kind)) if get_origin(field.kind) is Literal else ""
    metavar = field.meaning.metavar or words or names.get(field.kind) or field.key.upper()
    return f"{field.key}={metavar}"


def _default_text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
