"""Small meshes in which everything can be computed by hand, and how they are run."""

from __future__ import annotations

import random
from typing import Any

from edl.scheduler.simulator import (
    NetworkLink,
    Scenario,
    SimulationResult,
    StudentGroup,
    TeacherGroup,
    simulate,
)

#: Seconds of a student's step and of a teacher's request in these meshes, for a batch of 8.
STEP_S, WORK_S = 0.1, 0.25
#: A network that costs nothing.
FREE = NetworkLink(latency_s=0.0)
#: Seconds until a student is told of its first teachers, and can send to them.
LOOK_S, CONNECT_S = 0.05, 0.02
BEGIN_S = LOOK_S + CONNECT_S


def students(count: int = 1, **changed: Any) -> StudentGroup:
    """Students that take `STEP_S` for a batch."""
    usual: dict[str, Any] = {"name": "s", "t_s_s": STEP_S / 8, "batch": 8, "count": count}
    return StudentGroup(**usual | changed)


def teachers(count: int = 1, **changed: Any) -> TeacherGroup:
    """Teachers that take `WORK_S` for a batch."""
    usual: dict[str, Any] = {"name": "t", "t_t_s": WORK_S / 8, "count": count}
    return TeacherGroup(**usual | changed)


def run(
    student: StudentGroup, teacher: TeacherGroup | None, keep_batches: bool = False, **changed: Any
) -> SimulationResult:
    """Run a mesh of one group of each."""
    settings: dict[str, Any] = {"batches": 20, "link": FREE}
    groups = () if teacher is None else (teacher,)
    scenario = Scenario((student,), groups, **settings | changed)
    return simulate(scenario, random.Random, keep_batches=keep_batches)


def kinds(result: SimulationResult, kind: str) -> list[tuple[float, str]]:
    """When something of a kind happened, and to whom."""
    return [(one.at_s, one.subject) for one in result.mesh_events if one.kind == kind]
