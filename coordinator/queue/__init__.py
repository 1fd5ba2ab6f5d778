"""The queue of a fleet: submitted jobs, their progress, and slots reserved for services."""

from __future__ import annotations

from ..store import open_store
from .board import QueueBoard
from .schema import DesiredJobState, JobProgress, QueuedJob, Reservation, Runner

__all__ = [
    "DesiredJobState",
    "JobProgress",
    "QueueBoard",
    "QueuedJob",
    "Reservation",
    "Runner",
    "open_queue",
]


def open_queue(url: str, queue: str = "main", timeout_s: float = 1.0) -> QueueBoard:
    """Return a queue of the store at `url`.

    Args:
        url: URL of a store: redis://, rediss://, redis+sentinel://, unix:// or memory://.
        queue: name of the queue.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Raises:
        UsageError: the URL or the name is invalid.
    """
    return QueueBoard(open_store(url, timeout_s), queue)
