"""`edl bench plan` predicts meshes before it runs them, and says how far off that was."""

from __future__ import annotations

import statistics

import pytest

from edl.benchmarks.pacing import ROWS
from edl.benchmarks.planning import paced
from edl.benchmarks.planning.judging import error_of
from edl.benchmarks.report import Estimate, Goal


def test_what_is_exact_is_off_by_nothing() -> None:
    error = error_of(Estimate(1.0, 0.98, 1.03))
    assert (error.value, error.low, error.high) == pytest.approx((0.0, 0.0, 3.0))


@pytest.mark.parametrize("ratio", [0.8, 1.2])
def test_too_little_and_too_much_are_off_by_as_much(ratio: float) -> None:
    error = error_of(Estimate(ratio, ratio - 0.05, ratio + 0.05))
    assert (error.value, error.low, error.high) == pytest.approx((20.0, 15.0, 25.0))
    assert not Goal.judge("off", error, "<=", 10).holds
    assert Goal.judge("off", error, "<=", 16).holds


@pytest.mark.parametrize("asked", paced.CONFIGURATIONS, ids=lambda asked: asked.name)
def test_planner_and_simulator_agree_on_a_mesh(asked: paced.Configuration) -> None:
    assert paced.planned(asked) == pytest.approx(paced.simulated(asked), rel=0.05)
    held = asked.students * sum(ROWS / batch_s for batch_s in asked.teachers)
    students = asked.students * ROWS / asked.step_s
    assert paced.planned(asked) <= 1.001 * min(held, students)


@pytest.mark.serial
@pytest.mark.timeout(60)
def test_a_mesh_that_is_run_does_what_was_planned() -> None:
    asked = paced.Configuration("two students", 0.02, (0.03,), students=2)
    ran = statistics.median(paced.ran(asked, window_s=0.06))
    assert ran == pytest.approx(paced.planned(asked), rel=0.25)
