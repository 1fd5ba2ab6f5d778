"""CPU seconds of simulated meshes, batch by batch and as a fluid, and how far the two agree."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, replace
from typing import Final

from ..scheduler.simulator import Result, Scenario, StudentGroup, TeacherGroup, simulate
from ..scheduler.simulator.result import PlaneName
from .report import Goal, Report, Row, pinned

log = logging.getLogger(__name__)

LIMIT_EXACT_S: Final = 30.0
LIMIT_FLUID_S: Final = 120.0
LIMIT_ERROR: Final = 0.03
#: Seconds of a batch of the larger scenarios: of a student's step, and of a teacher.
STEP_S: Final = 0.7
BATCH: Final = 32

_STUDENT: Final = StudentGroup("student", t_s_s=0.01, jitter=0.05)
_TEACHER: Final = TeacherGroup("teacher", t_t_s=0.043, jitter=0.1)

#: 8 students, 56 teachers, 2,000 batches each.
EXACT: Final = Scenario(
    name="8 x 56 x 2,000",
    batches=2_000,
    students=(replace(_STUDENT, count=8, t_s_s=0.005),),
    teachers=(replace(_TEACHER, count=56, t_t_s=0.032),),
)
#: A thousand students, ten thousand teachers, 1 % of which leave per minute, ten minutes: as
#: examples/scenarios/large-mesh.yaml has it; nobody comes in the place of those that leave.
FLUID: Final = Scenario(
    name="1,000 x 10,000",
    seed=1,
    duration_s=600.0,
    warm_up_s=60.0,
    look_s=0.25,
    sample_s=5.0,
    students=(StudentGroup("student", STEP_S / BATCH, count=1_000, batch=BATCH, jitter=0.05),),
    teachers=(
        TeacherGroup(
            "teacher",
            0.197,
            count=10_000,
            jitter=0.1,
            leave_per_minute=0.01,
            price_per_hour=0.21,
        ),
    ),
)
#: Small enough for both planes; the first is a hundredth of the large one.
BOTH: Final[tuple[Scenario, ...]] = (
    Scenario(
        name="10 x 100",
        duration_s=600.0,
        look_s=0.25,
        students=(replace(FLUID.students[0], count=10),),
        teachers=(replace(FLUID.teachers[0], count=100),),
    ),
    Scenario(
        name="plenty",
        duration_s=300.0,
        students=(replace(_STUDENT, count=4),),
        teachers=(replace(_TEACHER, count=24),),
    ),
    Scenario(
        name="a third missing",
        duration_s=300.0,
        students=(replace(_STUDENT, count=4),),
        teachers=(replace(_TEACHER, count=12),),
    ),
    Scenario(
        name="crashes",
        duration_s=600.0,
        students=(replace(_STUDENT, count=6, t_s_s=0.02),),
        teachers=(
            replace(_TEACHER, count=15, leave_per_minute=0.1, back_after_s=10.0, start_s=10.0),
        ),
    ),
    Scenario(
        name="drains",
        duration_s=600.0,
        students=(replace(_STUDENT, count=6, t_s_s=0.02),),
        teachers=(
            replace(
                _TEACHER,
                count=15,
                leave_per_minute=0.1,
                leaves_by="drain",
                back_after_s=10.0,
                start_s=10.0,
            ),
        ),
    ),
    Scenario(
        name="slow source",
        duration_s=300.0,
        students=(replace(_STUDENT, count=4, source_s=0.5),),
        teachers=(replace(_TEACHER, count=16),),
    ),
)


@dataclass(frozen=True, slots=True)
class Run:
    """A run, and what it took.

    Attributes:
        result: what came of it.
        cpu_s: of this process, which has one thread at work.
    """

    result: Result
    cpu_s: float


def run(quick: bool) -> Report:
    """Both speeds, the agreement of the planes, and that a seed gives the same run again."""
    exact, fluid, both = EXACT, FLUID, BOTH
    if quick:
        exact = replace(exact, name="8 x 56 x 200", batches=200)
        fluid = replace(
            fluid,
            name="100 x 1,000",
            duration_s=120.0,
            students=(replace(fluid.students[0], count=100),),
            teachers=(replace(fluid.teachers[0], count=1_000),),
        )
        both = both[1:3]
    rows: list[Row] = []
    goals: list[Goal] = []
    with pinned():
        followed, flowed = _played(exact, "exact", rows), _played(fluid, "fluid", rows)
        goals.append(_speed(exact, followed, LIMIT_EXACT_S))
        goals.append(_speed(fluid, flowed, LIMIT_FLUID_S))
        repeated = 0
        for scenario in both:
            pair = [_played(scenario, plane, rows) for plane in ("exact", "fluid")]
            error = pair[1].result.samples_per_s / pair[0].result.samples_per_s - 1
            goals.append(
                Goal.judge(f"error of the fluid, {scenario.name}", abs(error), "<=", LIMIT_ERROR)
            )
            repeated += _differs(scenario, "exact", pair[0]) + _differs(scenario, "fluid", pair[1])
    goals.append(Goal.judge("runs whose hash another one of the seed lacks", repeated, "==", 0))
    return Report(rows, goals)


def _played(scenario: Scenario, plane: PlaneName, rows: list[Row]) -> Run:
    log.info("%s, %s", scenario.name, plane)
    played = play(scenario, plane)
    result = played.result
    rows.append(
        {
            "scenario": scenario.name,
            "plane": plane,
            "virtual_s": result.virtual_s,
            "batches": sum(student.batches for student in result.students),
            "events": result.events,
            "cpu_s": played.cpu_s,
            "samples_per_s": result.samples_per_s,
            "starved": _starved(result),
            "hash": result.trace_hash,
        }
    )
    return played


def play(scenario: Scenario, plane: PlaneName) -> Run:
    """One run."""
    began = time.process_time()
    result = simulate(scenario, random.Random, plane)
    return Run(result, time.process_time() - began)


def _speed(scenario: Scenario, played: Run, limit_s: float) -> Goal:
    return Goal.judge(f"CPU seconds, {scenario.name}", played.cpu_s, "<=", limit_s)


def _differs(scenario: Scenario, plane: PlaneName, before: Run) -> bool:
    return play(scenario, plane).result.trace_hash != before.result.trace_hash


def _starved(result: Result) -> float:
    """Share of the students' time."""
    there_s = sum(student.ended_s - student.began_s for student in result.students)
    return sum(student.starved_s for student in result.students) / there_s
