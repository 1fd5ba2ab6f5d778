"""Answers what ranks ask of the shards of an epoch: from the job board, or from this node's memory.

Where all ranks of a world are on one node the queue of shards is in the supervisor's own memory, so
that a Redis that is away holds up nobody. Otherwise a question is asked again until Redis is back.
Questions have numbers: one whose answer was lost on its way is answered by the same shard again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from ...coordinator.jobs import JobBoard
from ...coordinator.store.memory_store import MemoryStore
from ...errors import GenerationSuperseded, UnavailableError
from ...scheduler.students.shards import Shard
from ..words import Ask

log = logging.getLogger(__name__)

_AGAIN_S: Final = 0.5
_OWN: Final = "own"


class Asked(Protocol):
    """Who answers."""

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        """The value for `RankPort.answer`; raises one of our errors for `RankPort.refuse`."""


class Desk:
    """Answers of one generation, until `close`.

    Args:
        board: where the shards are.
        job: its name there.
        generation: in whose name it is asked.
        local: all ranks are on this node: `board` is not asked.
    """

    def __init__(self, board: JobBoard, job: str, generation: int, local: bool) -> None:
        self._board, self._job, self._generation = board, job, generation
        self._closed = threading.Event()
        self._away = ""
        if local:
            self._board = own = JobBoard(MemoryStore())
            fence = own.lead(job, _OWN, 3600.0)
            assert fence is not None  # nobody else has this board
            own.publish(job, fence, generation, {})

    @property
    def waiting(self) -> str:
        """What questions wait for, in words; empty: nothing."""
        if not self._away:
            return ""
        return f"shards, as the job board is away: {self._away}"

    def answer(self, rank: int, ask: Ask, alive: Callable[[], bool]) -> Any:
        """Ask the board, again while it does not answer and the rank is `alive()`.

        Raises:
            GenerationSuperseded: the world has changed, or ended.
        """
        while alive() and not self._closed.is_set():
            try:
                value = self._ask(rank, ask)
            except UnavailableError as error:
                if not self._away:
                    log.warning("ranks go on with the shards they have leased: %s", error)
                self._away = str(error)
                self._closed.wait(_AGAIN_S)
            else:
                self._away = ""
                return value
        raise GenerationSuperseded(f"generation {self._generation} of {self._job} has ended")

    def close(self) -> None:
        """Nothing is answered any more."""
        self._closed.set()

    def _ask(self, rank: int, ask: Ask) -> Any:
        if ask.what == "fill":
            shards = [Shard(start, stop) for start, stop in ask.shards]
            self._board.fill(self._job, self._generation, ask.epoch, shards)
            return None
        if ask.what == "lease":
            shard = self._board.lease(
                self._job, self._generation, ask.epoch, rank, ask.number, ask.most or None
            )
            return None if shard is None else [shard.start, shard.stop]
        self._board.done(self._job, self._generation, ask.epoch, rank, ask.start, ask.stop)
        return None
