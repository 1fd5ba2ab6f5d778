"""Repeated teacher churn: throughout a run, one teacher after another is killed and replaced."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...distill_reader import ReaderStats
from ...mesh.demo.teacher_churn import TeacherChurn
from ...mesh.local import LocalMesh, TeacherSpec


class RepeatedChurn:
    """Runs rounds of `TeacherChurn`: in each, a teacher is killed and a new one joins.

    A round lasts for `steps` batches, or until the new teacher has joined, if that is later. So at
    most one teacher is missing at any time.

    Args:
        mesh: mesh with the teachers.
        spec: specification of new teachers.
        steps: batches of a round.
        batches: batches of the run; a round starts only if the run has enough batches left.
        say: called with a line of text for each event.
        clock: seconds.
    """

    def __init__(
        self,
        mesh: LocalMesh,
        spec: TeacherSpec,
        *,
        steps: int,
        batches: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._mesh = mesh
        self._spec = spec
        self._steps = steps
        self._batches = batches
        self._say = say
        self._clock = clock
        self._rounds: list[TeacherChurn] = []
        self._began = 0
        self._begin(0)

    def look(self, batch: int, stats: ReaderStats) -> None:
        """Take the steps that are due; start the next round if the current one is over.

        Args:
            batch: batches trained so far.
            stats: statistics of the reader.
        """
        over = self._count("join") == len(self._rounds) and batch >= self._began + self._steps
        if over and batch + self._steps <= self._batches:
            self._begin(batch)
        self._rounds[-1].update(batch - self._began, stats)

    @property
    def killed(self) -> int:
        """Teachers that were killed."""
        return self._count("kill")

    @property
    def joined(self) -> int:
        """New teachers that the student got."""
        return self._count("join")

    @property
    def awaits_newcomer(self) -> bool:
        """Whether a new teacher was started but has not joined yet."""
        return self._rounds[-1].replacement_pending

    def _begin(self, batch: int) -> None:
        self._began = batch
        self._rounds.append(
            TeacherChurn(
                suspend=self._mesh.suspend,
                resume=self._mesh.resume,
                kill=self._mesh.kill,
                start=self._start,
                replacement=f"newcomer-{len(self._rounds) + 1}",
                batches=self._steps,
                say=self._say,
                clock=self._clock,
            )
        )

    def _start(self, teacher_id: str) -> None:
        self._mesh.start_teacher(teacher_id, self._spec)

    def _count(self, kind: str) -> int:
        return sum(event.kind == kind for one in self._rounds for event in one.events)
