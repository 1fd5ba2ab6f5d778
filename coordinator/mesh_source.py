"""The mesh as the web page looks at it: a manager's overview, the log, and the order to drain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..proto import coordinator_pb2 as pb
from . import operations
from .manager.messages import event_message
from .registry import Registry
from .service.calls import Overview

#: Teachers and students of each service on the page; more would be no picture.
_MEMBERS: Final = 1000


class MeshSource:
    """A `web.source.Source` over one manager and its registry.

    Args:
        overview: the manager.
        registry: where the log is read and orders are written.
    """

    def __init__(self, overview: Overview, registry: Registry) -> None:
        self._overview = overview
        self._registry = registry

    def status(self) -> pb.MeshStatus:
        """Who is alive and who serves whom. Raises RegistryUnavailable."""
        return self._overview.status(max_members=_MEMBERS)

    def events(self, service: str, after: str, last: int) -> Sequence[pb.Event]:
        """What the log of a service says, oldest first. Raises RegistryUnavailable."""
        return [event_message(service, e) for e in self._registry.events(service, after, last)]

    def drain(self, service: str, teacher_id: str) -> None:
        """Ask a teacher to finish what it has and leave. Raises UsageError, RegistryUnavailable."""
        operations.drain(self._registry, service=service, teacher_id=teacher_id)
