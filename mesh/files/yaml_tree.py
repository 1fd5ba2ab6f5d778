"""Parses YAML text to nodes with line numbers, and scalars to values; errors name line and key.

No object is constructed: tags are only compared, so a file cannot name a class. Anchors are
refused, as a few lines with anchors can expand to gigabytes. Deep nesting is refused too.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import yaml

from ...runtime.errors import UsageError
from ...scheduler.units import EXAMPLES, LARGEST, SPELLINGS, Number, sensible


@dataclass(frozen=True, slots=True)
class FileLocation:
    """A file and a key in the file, such as `devices[1].price_per_hour`."""

    name: str
    key: str = ""

    def of(self, key: str) -> FileLocation:
        """Return the location of a key of this mapping."""
        key = key if key and key.isprintable() and len(key) <= 60 else repr(key[:60])
        return FileLocation(self.name, f"{self.key}.{key}" if self.key else key)

    def at(self, index: int) -> FileLocation:
        """Return the location of an item of this list."""
        return FileLocation(self.name, f"{self.key}[{index}]")

    def fail(self, node: yaml.Node, what: str) -> NoReturn:
        """Raise UsageError about a node at this location: `name:line: key: what`."""
        line = node.start_mark.line + 1
        raise UsageError(f"{self.name}:{line}: {self.key}{': ' if self.key else ''}{what}")


def unknown_key(key: str, known: Collection[str]) -> str:
    """Return an error message that suggests the most similar known key, or lists all."""
    similar = difflib.get_close_matches(key, known, 1) or [
        name for name in known if difflib.get_close_matches(key, name.split("_"), 1)
    ]
    if similar:
        return f"unknown key; did you mean {similar[0]!r}?"
    return f"unknown key; there are: {', '.join(known)}"


def describe_node(node: yaml.Node) -> str:
    """Describe the content of a node in a few words."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    if not text and node.tag == "tag:yaml.org,2002:null":
        return "nothing"
    return repr(text if len(text) <= 40 else text[:37] + "...")


MAX_BYTES = 1 << 20
MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"


def read_text(path: str | os.PathLike[str]) -> str:
    """Return the text of a file.

    Raises:
        UsageError: the file cannot be read, is larger than `MAX_BYTES`, or is not UTF-8.
    """
    name = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except IsADirectoryError as error:
        raise UsageError(f"{name} is a directory: name a YAML file in it") from error
    except FileNotFoundError as error:
        raise UsageError(f"{name}: no such file") from error
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"cannot read {name}: {reason}") from error
    _check_size(len(data), name)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: not text: expects YAML in UTF-8") from error


def _check_size(size_bytes: int, name: str) -> None:
    if size_bytes > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB, the limit")


def compose_all(text: str, name: str, *, most: int) -> list[yaml.MappingNode]:
    """Parse a text with one to `most` documents, each a mapping.

    Args:
        text: YAML, at most `MAX_BYTES`.
        name: name of the file, for errors.
        most: greatest number of documents.

    Raises:
        UsageError: the text is too large, is not YAML, is empty, is nested too deeply, has too many
            documents, an anchor or an unsupported tag, or a document is not a mapping.
    """
    _check_size(len(text.encode(errors="surrogatepass")), name)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check_events(text, name, loader, most)
        documents = [node for node in yaml.compose_all(text, Loader=loader) if node is not None]
    except yaml.YAMLError as error:
        raise UsageError(_syntax_error(error, text, name)) from error
    roots = [node for node in documents if node.tag != f"{_TAG}null"]
    if not roots:
        raise UsageError(f"{name} is empty: expects a mapping, `key: value` a line")
    mappings = []
    for root in roots:
        if not isinstance(root, yaml.MappingNode):
            FileLocation(name).fail(
                root, f"expects a mapping, `key: value` a line, got {describe_node(root)}"
            )
        mappings.append(root)
    return mappings


def _check_events(text: str, name: str, loader: type[yaml.SafeLoader], most: int) -> None:
    """Raise UsageError for deep nesting, too many documents, any anchor, an unsupported tag."""
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > MAX_DEPTH:
            raise UsageError(f"{name}:{line}: nested deeper than {MAX_DEPTH} levels, the limit")
        if documents > most:
            expects = "one, without `---` inside" if most == 1 else f"at most {most}"
            raise UsageError(f"{name}:{line}: document {documents}: expects {expects}")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(
                f"{name}:{line}: anchors (& and *) are not supported: repeat the value"
            )
        tag = getattr(event, "tag", None)
        if tag and tag not in ("!", *(_TAG + known for known in ("str", "int", "float", "bool"))):
            raise UsageError(f"{name}:{line}: the tag {tag!r} is not supported: remove it")


def _syntax_error(error: yaml.YAMLError, text: str, name: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "broken"
    # Errors about an invalid character have a position in the text instead of a mark.
    line = text.count("\n", 0, getattr(error, "position", 0)) if mark is None else mark.line
    return f"{name}:{line + 1}: not YAML: {problem}"


_INTEGER = re.compile(r"[-+]?[0-9](_?[0-9])*")
_REAL = re.compile(r"[-+]?([0-9](_?[0-9])*\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
_WITH_UNIT = re.compile(rf"({_REAL.pattern})\s*([^\d\s].*)")
ANY_NUMBER = Number()


def string(node: yaml.Node, location: FileLocation) -> str:
    """Return a text. If YAML would parse it as a number or a date, it must be in quotes."""
    if not isinstance(node, yaml.ScalarNode) or node.tag == f"{_TAG}null":
        location.fail(node, f"expects text, got {describe_node(node)}")
    if node.tag != f"{_TAG}str":
        location.fail(
            node, f"expects text, got {describe_node(node)}: put it in quotes if it is text"
        )
    return str(node.value)


def boolean(node: yaml.Node, location: FileLocation) -> bool:
    if node.tag != f"{_TAG}bool" or not isinstance(node, yaml.ScalarNode):
        location.fail(node, f"expects true or false, got {describe_node(node)}")
    return str(node.value).lower() in ("true", "yes", "on")


def integer(node: yaml.Node, location: FileLocation, rule: Number) -> int:
    """Return an integer within the bounds. A number with a unit must be whole once converted."""
    written = _scalar_text(node)
    real = None if written is None else parse_number(written, rule)
    if written is not None and _INTEGER.fullmatch(written) and len(written) < 30:
        value: int | None = int(written)  # conversion through a float would lose digits
    else:
        value = int(real) if real is not None and real.is_integer() else None
    if value is None or not rule.takes(value):
        location.fail(node, _number_error("a whole number", rule, real, node))
    return value


def number(node: yaml.Node, location: FileLocation, rule: Number) -> float:
    """Return a finite number within the bounds, with or without a unit."""
    written = _scalar_text(node)
    real = None if written is None else parse_number(written, rule)
    if real is None or not rule.takes(real):
        location.fail(node, _number_error("a number", rule, real, node))
    return real


def _number_error(kind: str, rule: Number, value: float | None, node: yaml.Node) -> str:
    limits = f"; absolute values are 0, or from {1 / LARGEST:g} to {LARGEST:g}"
    hint = limits if value is not None and not sensible(value) else ""
    return f"expects {describe_number(kind, rule)}, got {describe_node(node)}{hint}"


def _scalar_text(node: yaml.Node) -> str | None:
    """Return the text of a scalar; None: the node is not a scalar, or is a number in quotes."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    quoted = node.style in ("'", '"')
    return None if quoted and _REAL.fullmatch(node.value) else str(node.value).strip()


def parse_number(written: str, rule: Number) -> float | None:
    """Return the number in a text, with or without a unit of `rule`; None: it is not a number."""
    if _REAL.fullmatch(written):
        return float(written)
    parts = _WITH_UNIT.fullmatch(written)
    if parts is None:
        return None
    factor = SPELLINGS.get(rule.unit, {}).get(parts[len(parts.groups())].strip())
    return None if factor is None else float(parts[1]) * factor


def describe_number(kind: str, rule: Number) -> str:
    """Describe the expected number: its kind, bounds and units."""
    words = f"{kind}{rule.bounds()}"
    if not rule.unit:
        return words
    units, example = SPELLINGS[rule.unit], f"`{EXAMPLES[rule.unit]}`"
    if len(units) == 1:
        return f"{words}, alone or as {example}"
    return f"{words}, in {rule.unit} or as {example} ({', '.join(units)})"
