"""Jobs that share a fleet: what was submitted, what became of it, who keeps slots for a service."""

from __future__ import annotations

from ..store import open_store
from .board import QueueBoard
from .records import DesiredJobState, Entry, JobProgress, QueuedJob, Reservation, Runner

__all__ = [
    "DesiredJobState",
    "Entry",
    "JobProgress",
    "QueueBoard",
    "QueuedJob",
    "Reservation",
    "Runner",
    "open_queue",
]


def open_queue(url: str, queue: str = "main", timeout_s: float = 1.0) -> QueueBoard:
    """A queue of the store at `url`.

    Args:
        url: any that a registry takes: redis://, rediss://, redis+sentinel://, unix://, memory://.
        queue: its name.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: the URL is none, or the name cannot be one.
    """
    return QueueBoard(open_store(url, timeout_s), queue)
