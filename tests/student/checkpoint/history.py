"""A training for tests of its history: nodes that save, and a leader that begins generations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import fsspec
import numpy as np

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.scheduler.students.saving import CheckpointHistory
from edl.student.checkpoint import Checkpoint, Contents, Repository
from edl.student.checkpoint.repository import HistoryFence
from edl.tests.stores import of_job

JOB = "digits"
NUMBERS = itertools.count()


def contents(step: int, by: int = 0) -> Contents:
    return Contents(step, 1, {"model/w": np.array([step, by])}, {})


class Training:
    """A job at its board and the place of its checkpoints; the leader is `begin`."""

    def __init__(self, url: str, keep: int = 2) -> None:
        self.url, self.keep = url, keep
        self.board = JobBoard(MemoryStore())
        self.generation = 0

    def repository(self) -> Repository:
        return Repository(self.url, self.keep)

    def fence(self, after: str = "") -> HistoryFence:
        return HistoryFence(self.board, JOB, self.generation, after)

    def look(self) -> tuple[CheckpointHistory, Checkpoint | None]:
        """What the leader of the next generation sees."""
        record = self.board.generation(JOB)
        history = record.checkpoint_history() if record else CheckpointHistory()
        number = record.number if record else None
        return history, self.repository().newest_for_next_generation(history, number)

    def publish(self, history: CheckpointHistory, newest: Checkpoint | None) -> HistoryFence | None:
        """Begin a generation with what was seen; None: the board did not let it."""
        self.board.join(JOB, "leader", {}, 3600.0)
        assert self.board.lead(JOB, "leader", 3600.0)
        following = CheckpointHistory(newest.entry if newest else None)
        histories = history.to_json(), following.to_json()
        if not self.board.publish(
            JOB, of_job(self.board, JOB, "leader"), self.generation + 1, {}, histories
        ):
            return None
        self.generation += 1
        if newest is not None:  # as its nodes do
            self.repository().mark(newest.entry)
        return self.fence(newest.name if newest else "")

    def begin(self) -> HistoryFence:
        fence = self.publish(*self.look())
        assert fence is not None
        return fence

    def save(self, fence: HistoryFence, *steps: int) -> Checkpoint:
        """Save these steps; the last checkpoint."""
        repository = self.repository()
        for step in steps:
            joined = repository.join(repository.write(contents(step), fence), fence)
            assert joined is not None
            newest = joined
        return newest

    def newest(self) -> int:
        """The step that a start without a board would go on from."""
        found = self.repository().newest_valid()
        return 0 if found is None else found.step

    def counting(self) -> list[int]:
        """Steps of the checkpoints of the history, the newest first."""
        return [one.step for one in self.repository().list() if one.eligible]

    def outside(self) -> list[int]:
        return [one.step for one in self.repository().list() if not one.eligible]


def memory_url() -> str:
    return f"memory://history-{next(NUMBERS)}"


def clear_memory() -> None:
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]  # the root


class Stopped(Repository):
    """Its process is stopped before it looks for old checkpoints, and removes them."""

    _stopped: tuple[Checkpoint, Callable[[], Sequence[str]]] | None = None

    def _remove_old(self, saved: Checkpoint, find_old: Callable[[], Sequence[str]]) -> None:
        self._stopped = saved, find_old

    def remove(self) -> None:
        """It goes on, if it was stopped."""
        if (stopped := self._stopped) is not None:
            super()._remove_old(*stopped)
