"""Elastic trainings: which nodes are alive, which world they form, who trains which shard.

`board.py` is the contract; `open_board` gives the one in Redis, or its twin in this process.
"""

from __future__ import annotations

from .board import Facts, GenerationRecord, JobBoard, JobEvent, Node, RankReport

__all__ = [
    "Facts",
    "GenerationRecord",
    "JobBoard",
    "JobEvent",
    "Node",
    "RankReport",
    "open_board",
]


def open_board(url: str | None, timeout_s: float = 1.0) -> JobBoard:
    """The board of the Redis at `url`; None: one in this process, for a job of one node.

    Args:
        url: any that a registry takes: redis://, rediss://, redis+sentinel://, unix://.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: the URL is none.
    """
    if url is None:
        from .memory_board import MemoryBoard

        return MemoryBoard()
    from .redis_board import RedisBoard

    return RedisBoard(url, timeout_s)
