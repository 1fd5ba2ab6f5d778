"""Jobs that share a fleet: what was submitted, what became of it, who keeps slots for a service.

`board.py` is the contract; `open_queue` gives the one in Redis, `memory_board.py` has its twin.
"""

from __future__ import annotations

from .board import Entry, Progress, QueueBoard, QueuedJob, Reservation, Runner, Wish

__all__ = [
    "Entry",
    "Progress",
    "QueueBoard",
    "QueuedJob",
    "Reservation",
    "Runner",
    "Wish",
    "open_queue",
]


def open_queue(url: str, queue: str = "main", timeout_s: float = 1.0) -> QueueBoard:
    """A queue of the Redis at `url`.

    Args:
        url: any that a registry takes: redis://, rediss://, redis+sentinel://, unix://.
        queue: its name.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: the URL is none, or the name cannot be one.
    """
    from .redis_board import RedisQueue

    return RedisQueue(url, queue, timeout_s)
