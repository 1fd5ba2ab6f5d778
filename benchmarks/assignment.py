"""CPU time that the assignment rule takes for one change, and for a rebuild from nothing."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Sequence
from typing import Final

from ..scheduler import assignment as rule
from .report import BenchmarkReport, Estimate, Goal, Row, interleaved

FULL_TEACHERS, FULL_STUDENTS = 10_000, 1_000
LIMIT_CHANGE_S: Final = 0.05
LIMIT_REBUILD_S: Final = 1.0
#: Samples per second of the kinds of teachers in the pool.
SPEEDS: Final = (20.0, 20.0, 80.0)
#: Ranks of one job.
RANKS: Final = 4
#: Changes that are timed together in one round.
CHANGES: Final = 10
#: Demand as a multiple of the pool's speed: above 1, so that each change alters assignments.
OVERBOOKED: Final = 1.5


def run(
    quick: bool, teachers: int = FULL_TEACHERS, students: int = FULL_STUDENTS
) -> BenchmarkReport:
    """Time a joining teacher, a lost teacher, a changed demand, and a rebuild.

    Args:
        quick: use a tenth of the members.
        teachers: number of teachers.
        students: number of students.
    """
    if quick:
        teachers, students = max(teachers // 10, 10), max(students // 10, 1)
    service = Service(teachers, students)
    cases: dict[str, Callable[[], float]] = {
        "a teacher comes": service.join_s,
        "a teacher is lost": service.loss_s,
        "a student wants another number": service.want_s,
        "rebuild": service.rebuild_s,
    }
    samples = interleaved(*cases.values())
    rows: list[Row] = []
    goals = []
    for case, cpu_s in zip(cases, samples, strict=True):
        estimate = Estimate.of(cpu_s)
        rows.append(
            {
                "case": case,
                "teachers": teachers,
                "students": students,
                **estimate.columns("cpu_s"),
            }
        )
        limit = LIMIT_REBUILD_S if case == "rebuild" else LIMIT_CHANGE_S
        goals.append(Goal.judge_speed(f"CPU seconds, {case}", estimate, "<=", limit))
    return BenchmarkReport(rows, goals)


class Service:
    """The assignment state of a service, to which single changes are applied and timed.

    Methods ending in `_s` return CPU seconds: `rebuild_s` of one rebuild, the others the mean of
    `CHANGES` changes.

    Attributes:
        state: the state after the latest change.
    """

    def __init__(self, teachers: int, students: int) -> None:
        self._rng = random.Random(0)
        self._now = 0.0
        self._names = [f"teacher-{number}" for number in range(teachers)]
        self._new_names = (f"new-{number}" for number in itertools.count())
        slow_teachers = teachers * sum(SPEEDS) / len(SPEEDS) / min(SPEEDS)
        self._want = max(round(OVERBOOKED * slow_teachers / students), 1)
        self._students = [f"job-{n // RANKS}/{n % RANKS}" for n in range(students)]
        self._initial_events: list[rule.AssignmentEvent] = [
            self._teacher_up(name) for name in self._names
        ]
        self._initial_events += [rule.StudentReported(name, self._want) for name in self._students]
        self.state = rule.AssignmentState()
        self.rebuild_s()

    def rebuild_s(self) -> float:
        """Time the assignment of all original teachers and students from an empty state."""
        self.state = rule.AssignmentState()
        self._names = [
            event.teacher_id for event in self._initial_events if isinstance(event, rule.TeacherUp)
        ]
        return self._reduce_s([self._initial_events])

    def join_s(self) -> float:
        names = [next(self._new_names) for _ in range(CHANGES)]
        self._names += names
        return self._reduce_s([[self._teacher_up(name)] for name in names])

    def loss_s(self) -> float:
        lost = [self._names.pop(self._rng.randrange(len(self._names))) for _ in range(CHANGES)]
        return self._reduce_s([[rule.TeacherDown(name, lost=True)] for name in lost])

    def want_s(self) -> float:
        names = self._rng.choices(self._students, k=CHANGES)
        wants = [self._rng.randint(1, 2 * self._want) for _ in range(CHANGES)]
        return self._reduce_s(
            [
                [rule.StudentReported(name, want, urgent=True)]
                for name, want in zip(names, wants, strict=True)
            ]
        )

    def _teacher_up(self, name: str) -> rule.TeacherUp:
        return rule.TeacherUp(name, 1, speed=self._rng.choice(SPEEDS), content_id="c")

    def _reduce_s(self, batches: Sequence[Sequence[rule.AssignmentEvent]]) -> float:
        """Apply batches of events; return the mean CPU seconds of a batch."""
        began = time.process_time()
        for events in batches:
            self._now += 0.05
            self.state, _ = rule.reduce(self.state, events, self._now)
        return (time.process_time() - began) / len(batches)
