"""What is wrong with a file, and where: `cluster.yaml:12: devices[1].prise: unknown key; ...`."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import NoReturn

import yaml

from ...errors import UsageError


class Place:
    """A place in a file: the file's name and the key, as `devices[1].price_per_hour`."""

    __slots__ = ("key", "name")

    def __init__(self, name: str, key: str = "") -> None:
        self.name = name
        self.key = key

    def of(self, key: str) -> Place:
        """The place of a key of the mapping that is here."""
        key = key if key and key.isprintable() and len(key) <= 60 else repr(key[:60])
        return Place(self.name, f"{self.key}.{key}" if self.key else key)

    def at(self, index: int) -> Place:
        """The place of an item of the list that is here."""
        return Place(self.name, f"{self.key}[{index}]")

    def blame(self, node: yaml.Node, what: str) -> NoReturn:
        """Raises the error that says `what` is wrong here.

        Raises:
            UsageError: always.
        """
        line = node.start_mark.line + 1
        raise UsageError(f"{self.name}:{line}: {self.key}{': ' if self.key else ''}{what}")


def unknown_key(key: str, known: Collection[str]) -> str:
    """What is said of a key that nobody knows: the nearest one that there is, or all of them."""
    near = difflib.get_close_matches(key, known, 1) or [
        name for name in known if difflib.get_close_matches(key, name.split("_"), 1)
    ]
    if near:
        return f"unknown key; did you mean {near[0]!r}?"
    return f"unknown key; there are: {', '.join(known)}"


def shown(node: yaml.Node) -> str:
    """What stands there, short enough for a line."""
    if isinstance(node, yaml.MappingNode):
        return "a mapping"
    if isinstance(node, yaml.SequenceNode):
        return "a list"
    text = str(node.value)
    if not text and node.tag == "tag:yaml.org,2002:null":
        return "nothing"
    return repr(text if len(text) <= 40 else text[:37] + "...")
