"""A YAML file as a tree of nodes with line numbers; what could harm the reader is refused before.

Nothing is constructed: tags are only compared, so no file can name a class of ours. Anchors are
refused, as a few lines of them can stand for gigabytes; so is what is nested deeper than any
description is.
"""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from ...errors import UsageError
from .blame import Place, shown

MAX_BYTES = 1 << 20
MAX_DEPTH = 32
_TAG = "tag:yaml.org,2002:"


def load(path: str | os.PathLike[str]) -> str:
    """The text of a file.

    Raises:
        UsageError: there is no such file, it is none, it is above `MAX_BYTES`, or it is not text.
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
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name} is larger than {MAX_BYTES >> 20} MiB: that is no description")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{name}:{line}: not text: expects YAML in UTF-8") from error


def compose(text: str, name: str) -> yaml.MappingNode:
    """The tree of the one document that the text holds.

    Args:
        text: YAML.
        name: of the file, for errors.

    Raises:
        UsageError: it is not YAML, is empty, holds several documents, anchors or tags of its own,
            is nested too deep, or is not a mapping.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        _check(text, name, loader)
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        raise UsageError(_complaint(error, text, name)) from error
    if root is None or root.tag == f"{_TAG}null":
        raise UsageError(f"{name} is empty: expects a mapping, `key: value` a line")
    if not isinstance(root, yaml.MappingNode):
        Place(name).blame(root, f"expects a mapping, `key: value` a line, got {shown(root)}")
    return root


def _check(text: str, name: str, loader: type[yaml.SafeLoader]) -> None:
    depth = documents = 0
    for event in yaml.parse(text, Loader=loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        documents += isinstance(event, yaml.DocumentStartEvent)
        if depth > MAX_DEPTH:
            raise UsageError(f"{name}:{line}: nested deeper than {MAX_DEPTH}: no description is")
        if documents > 1:
            raise UsageError(f"{name}:{line}: a second document: expects one, without `---` inside")
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise UsageError(f"{name}:{line}: anchors (& and *) are not read: write it out")
        tag = getattr(event, "tag", None)
        if tag and tag not in ("!", *(_TAG + known for known in ("str", "int", "float", "bool"))):
            raise UsageError(f"{name}:{line}: the tag {tag!r} is not read: leave it out")


def _complaint(error: yaml.YAMLError, text: str, name: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "broken"
    # A character that no YAML has is named by its place in the text, in bytes or in characters.
    line = text.count("\n", 0, getattr(error, "position", 0)) if mark is None else mark.line
    return f"{name}:{line + 1}: not YAML: {problem}"
