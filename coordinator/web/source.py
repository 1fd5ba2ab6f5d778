"""What the page needs of a mesh: a small protocol, so that a script can stand in for a manager."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...proto import coordinator_pb2 as pb


class Source(Protocol):
    """A mesh to look at. Every method may block for a moment, and is called in other threads."""

    def status(self) -> pb.MeshStatus:
        """Who is alive and who serves whom. Raises EdlError."""
        ...

    def events(self, service: str, after: str, last: int) -> Sequence[pb.Event]:
        """What the log of a service says, oldest first. Raises EdlError.

        Args:
            service: whose log.
            after: id of the latest event that is known; empty: none is.
            last: at most so many, the latest; 0: all.
        """
        ...

    def drain(self, service: str, teacher_id: str) -> None:
        """Ask a teacher to finish what it has and leave. Raises UsageError, EdlError."""
        ...
