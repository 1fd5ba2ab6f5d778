"""Elastic trainings: which nodes are alive, which world they form, who trains which shard."""

from __future__ import annotations

from ..store import open_store
from ..store.facts import Facts
from .board import JobBoard
from .records import (
    Generation,
    GenerationRecord,
    JobEvent,
    Node,
    NodeEndpoints,
    NodeInfo,
    RankReport,
)

__all__ = [
    "Facts",
    "Generation",
    "GenerationRecord",
    "JobBoard",
    "JobEvent",
    "Node",
    "NodeEndpoints",
    "NodeInfo",
    "RankReport",
    "open_board",
]


def open_board(url: str | None, timeout_s: float = 1.0) -> JobBoard:
    """The board of the store at `url`; None: one in this process, for a job of one node.

    Args:
        url: any that a registry takes: redis://, rediss://, redis+sentinel://, unix://, memory://.
        timeout_s: seconds for a connection, and for each answer.

    Raises:
        UsageError: the URL is none.
    """
    if url is None:
        from ..store.memory_store import MemoryStore

        return JobBoard(MemoryStore())
    return JobBoard(open_store(url, timeout_s))
