"""CPU seconds of simulated meshes: many batches, and many machines."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass, replace
from typing import Final

from ..scheduler.simulator import Scenario, SimulationResult, StudentGroup, TeacherGroup, simulate
from .report import BenchmarkReport, Goal, Row, on_one_core

log = logging.getLogger(__name__)

LIMIT_S: Final = 30.0
LIMIT_LARGE_S: Final = 600.0
BATCH: Final = 32

#: 8 students with 2,000 batches each, 56 teachers.
SMALL: Final = Scenario(
    name="8 x 56 x 2,000",
    batches=2_000,
    students=(StudentGroup("student", t_s_s=0.005, count=8, jitter=0.05),),
    teachers=(TeacherGroup("teacher", t_t_s=0.032, count=56, jitter=0.1),),
)
#: 1,000 students and 10,000 teachers for ten minutes; 1 % of the teachers leave per minute and are
#: not replaced. The same as examples/scenarios/large-mesh.yaml.
LARGE: Final = Scenario(
    name="1,000 x 10,000",
    seed=1,
    duration_s=600.0,
    warm_up_s=60.0,
    look_s=0.25,
    sample_s=5.0,
    students=(
        # A step takes a second.
        StudentGroup("student", t_s_s=1 / BATCH, count=1_000, batch=BATCH, jitter=0.05),
    ),
    teachers=(
        TeacherGroup(
            "teacher",
            t_t_s=0.29,
            count=10_000,
            jitter=0.1,
            leave_per_minute=0.01,
            price_per_hour=0.21,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class TimedRun:
    """A simulation and its cost.

    Attributes:
        result: result of the simulation.
        cpu_s: CPU seconds of this process, which computes in one thread.
    """

    result: SimulationResult
    cpu_s: float


def run(quick: bool) -> BenchmarkReport:
    """Measure both scenarios, and check that a second run of a seed gives the same result.

    Args:
        quick: use a tenth of the batches in the small scenario; a tenth of the members, for two
            minutes, in the large one.
    """
    small, large = SMALL, LARGE
    if quick:
        small = replace(small, name="8 x 56 x 200", batches=200)
        large = replace(
            large,
            name="100 x 1,000",
            duration_s=120.0,
            students=(replace(large.students[0], count=100),),
            teachers=(replace(large.teachers[0], count=1_000),),
        )
    rows: list[Row] = []
    with on_one_core():
        small_run, large_run = _timed(small, rows), _timed(large, rows)
        differs = time_run(small).result.trace_hash != small_run.result.trace_hash
    goals = [
        Goal.judge_speed(f"CPU seconds, {small.name}", small_run.cpu_s, "<=", LIMIT_S),
        Goal.judge_speed(f"CPU seconds, {large.name}", large_run.cpu_s, "<=", LIMIT_LARGE_S),
        Goal.judge("repeated runs of a seed with another hash", int(differs), "==", 0),
    ]
    return BenchmarkReport(rows, goals)


def _timed(scenario: Scenario, rows: list[Row]) -> TimedRun:
    """Simulate a scenario, and append its row."""
    log.info("%s", scenario.name)
    timed = time_run(scenario)
    result = timed.result
    rows.append(
        {
            "scenario": scenario.name,
            "virtual_s": result.virtual_s,
            "batches": sum(student.batches for student in result.students),
            "events": result.events,
            "cpu_s": timed.cpu_s,
            "samples_per_s": result.samples_per_s,
            "starved": _starved(result),
            "hash": result.trace_hash,
        }
    )
    return timed


def time_run(scenario: Scenario) -> TimedRun:
    """Simulate a scenario once and measure the CPU time."""
    began = time.process_time()
    result = simulate(scenario, random.Random)
    return TimedRun(result, time.process_time() - began)


def _starved(result: SimulationResult) -> float:
    """Return the share of the students' time in which they starved."""
    present_s = sum(student.ended_s - student.began_s for student in result.students)
    return sum(student.starved_s for student in result.students) / present_s
