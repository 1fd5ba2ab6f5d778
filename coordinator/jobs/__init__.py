"""Elastic trainings: their live nodes, their worlds, and the shards of their ranks."""

from __future__ import annotations

from ..store import open_store
from ..store.records import Facts as Facts
from .board import JobBoard as JobBoard
from .schema import Generation as Generation
from .schema import GenerationRecord as GenerationRecord
from .schema import Node as Node
from .schema import NodeEndpoints as NodeEndpoints
from .schema import NodeInfo as NodeInfo
from .schema import RankReport as RankReport


def open_job_board(url: str | None, timeout_s: float = 1.0) -> JobBoard:
    """Return the job board of the store at `url`; None: a store in this process, for one node.

    Args:
        url: URL of a store: redis://, rediss://, redis+sentinel://, unix:// or memory://.
        timeout_s: timeout of a connection and of each answer, in seconds.

    Raises:
        UsageError: the URL is invalid.
    """
    if url is None:
        from ..store.memory_store import MemoryStore

        return JobBoard(MemoryStore())
    return JobBoard(open_store(url, timeout_s))
