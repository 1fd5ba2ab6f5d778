"""What the verbs of `edl` ask of a kind of resource, and how each kind is named."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
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
    """The resources that a command asked for.

    Attributes:
        body: as JSON values; the list of them has the plural of the kind as its key.
        table: a row for each.
    """

    body: dict[str, Any]
    table: RenderableType


class ResourceKind(ABC):
    """A kind of resource of one mesh; each method is a verb.

    A verb that a kind does not have raises UsageError, and the message says what to use instead.
    All raise UnavailableError where the mesh does not answer, and AccessError where it refuses.

    Args:
        context: name of a context; empty: the current one.
        redis: Redis URL of the mesh, in place of a context.
    """

    name: ClassVar[str]
    #: Why a verb does not exist, and what to use instead.
    missing: ClassVar[dict[str, str]] = {}

    def __init__(self, context: str = "", redis: str = "") -> None:
        self._context, self._redis = context, redis

    @cached_property
    def mesh(self) -> MeshContext:
        """How to reach the mesh."""
        return mesh_context(self._context, self._redis)

    @abstractmethod
    def get(self, name: str, service: str) -> ResourceList:
        """Return all resources, or those of a name, or those of a service.

        Raises:
            UsageError: there is none of this name.
        """

    def describe(self, name: str) -> RenderableType:
        """Return all that is known of one resource."""
        self._refuse("describe")

    def logs(self, name: str, follow: bool) -> Iterator[str]:
        """Yield what it printed; with `follow` until it ends."""
        self._refuse("logs")

    def scale(self, name: str, size: str) -> str:
        """Set its size; return what happens now."""
        self._refuse("scale")

    def drain(self, name: str, service: str) -> list[str]:
        """Let teachers finish their requests and leave; return a line for each."""
        self._refuse("drain")

    def delete(self, name: str, wait_s: float) -> str:
        """Remove it; return what happens now.

        Args:
            name: its name.
            wait_s: seconds to wait for its end; 0: do not wait.
        """
        self._refuse("delete")

    def _refuse(self, verb: str) -> NoReturn:
        why = self.missing.get(verb, "")
        raise UsageError(f"'edl {verb}' is not for a {self.name}{why and ': '}{why}")

    def not_found(self, name: str, known: Iterable[str]) -> UsageError:
        """Return the error about a name that does not exist, with similar names."""
        near = difflib.get_close_matches(name, list(known))
        hint = f"did you mean {', '.join(near)}?" if near else f"'edl get {self.name}s' shows all"
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
        return ", ".join(f"{key}: {_text(one)}" for key, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
