"""Base class of the kinds of resources: each verb of `edl` is a method."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from ...coordinator.ops.options import mesh_context
from ...runtime.errors import UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ...coordinator.contexts import MeshContext


@dataclass(frozen=True, slots=True)
class ResourceList:
    """Resources for `edl get`.

    Attributes:
        body: resources as JSON values; the key of their list is the plural of the kind.
        table: table with a row for each resource.
    """

    body: dict[str, Any]
    table: RenderableType


class ResourceKind(ABC):
    """A kind of resource of one mesh; its methods are verbs.

    A verb that a kind does not have raises UsageError, with a hint what to use instead. All verbs
    raise UnavailableError if the mesh does not answer, and AccessError if it denies access.

    Args:
        named: values of the option that names the mesh.
    """

    #: Name of the kind, singular.
    name: ClassVar[str]
    #: What to use instead of a verb that this kind does not have, by verb.
    alternatives: ClassVar[dict[str, str]] = {}

    def __init__(self, named: Sequence[str] | None = None) -> None:
        self._named = named

    @cached_property
    def mesh(self) -> MeshContext:
        """Address and settings of the mesh."""
        return mesh_context(self._named)

    @abstractmethod
    def get(self, name: str, service: str) -> ResourceList:
        """Return resources.

        Args:
            name: name of a resource; empty: all.
            service: service of the resources; empty: all services.

        Raises:
            UsageError: there is no resource of this name.
        """

    def describe(self, name: str) -> RenderableType:
        """Return all known facts of a resource."""
        self._refuse("describe")

    def logs(self, name: str, follow: bool) -> Iterator[str]:
        """Yield the output of a resource; with `follow`, continue until the resource ends."""
        self._refuse("logs")

    def scale(self, name: str, size: str) -> str:
        """Set the size of a resource; return a line about what happens now."""
        self._refuse("scale")

    def drain(self, name: str, service: str) -> list[str]:
        """Let teachers finish their requests and leave; return a line for each."""
        self._refuse("drain")

    def delete(self, name: str, wait_s: float) -> str:
        """Remove a resource; return a line about what happens now.

        Args:
            name: name of the resource.
            wait_s: seconds to wait for its end; 0: do not wait.
        """
        self._refuse("delete")

    def _refuse(self, verb: str) -> NoReturn:
        why = self.alternatives.get(verb, "")
        raise UsageError(f"'edl {verb}' is not for a {self.name}{why and ': '}{why}")

    def not_found(self, name: str, known: Iterable[str]) -> UsageError:
        """Return the error about an unknown name; it suggests similar names."""
        similar = difflib.get_close_matches(name, list(known))
        hint = (
            f"did you mean {', '.join(similar)}?"
            if similar
            else f"'edl get {self.name}s' shows all"
        )
        return UsageError(f"there is no {self.name} {name!r}: {hint}")


def facts_table(facts: dict[str, Any]) -> RenderableType:
    """Return a table with a row for each fact that is not empty."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts.items():
        if value not in (None, "", [], (), {}):
            table.add_row(name.replace("_", " "), Text(_text(value)))
    return table


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_text(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
