"""Unequal teachers get batches in proportion to their speeds, whatever their times scatter."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.flow import FlowConfig
from edl.tests.properties.mesh_model import BATCH_BYTES, LABEL_BYTES, Mesh

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

WHOLE = BATCH_BYTES + LABEL_BYTES
#: Holds what the others label while the slowest works off its window: with less, the head of the
#: line is waited for, pulling pauses, and the fast ones get less than they could do.
ROOMY = FlowConfig(upper_bytes=200 * WHOLE, lower_bytes=100 * WHOLE)
SHARE_TOLERANCE = 0.15
few = settings(max_examples=max(5, settings().max_examples // 25))  # each is a minute of a mesh


def answered(mesh: Mesh, seconds: float) -> dict[str, int]:
    """Batches that each teacher labels in so much time, once its speed is known."""
    mesh.run(10 * max(teacher.seconds for teacher in mesh.teachers.values()))
    before = {name: teacher.answered for name, teacher in mesh.teachers.items()}
    mesh.run(seconds)
    return {name: teacher.answered - before[name] for name, teacher in mesh.teachers.items()}


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    jitter=st.sampled_from([0.0, 0.1, 0.3]),
    window=st.integers(1, 3),
    step_s=st.sampled_from([0.001, 0.06, 0.08]),  # faster than the teachers, as fast, slower
)
def test_teachers_at_1x_1x_4x_serve_1_1_4(
    seed: int, jitter: float, window: int, step_s: float
) -> None:
    mesh = Mesh(ROOMY, random.Random(seed), step_s=step_s)
    for name, seconds in (("a", 0.4), ("b", 0.4), ("fast", 0.1)):
        mesh.join(name, seconds, window)
        mesh.teachers[name].jitter = jitter
    counts = answered(mesh, 60.0)
    for name in "ab":
        assert counts["fast"] / counts[name] == pytest.approx(4, rel=SHARE_TOLERANCE)


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    times=st.lists(st.floats(0.05, 0.4), min_size=2, max_size=5),
    window=st.integers(1, 3),
)
def test_shares_follow_speeds(seed: int, times: list[float], window: int) -> None:
    mesh = Mesh(ROOMY, random.Random(seed), step_s=0.001)
    for index, seconds in enumerate(times):
        mesh.join(str(index), seconds, window)
    counts = answered(mesh, 30 * max(times))
    unit = sum(counts.values()) / sum(1 / seconds for seconds in times)
    for index, seconds in enumerate(times):
        assert counts[str(index)] * seconds == pytest.approx(unit, rel=SHARE_TOLERANCE)


def test_a_teacher_that_slows_down_gets_less_from_then_on(rng: random.Random) -> None:
    mesh = Mesh(ROOMY, rng, step_s=0.001)
    for name in "ab":
        mesh.join(name, 0.1)
    counts = answered(mesh, 20.0)
    assert counts["a"] == pytest.approx(counts["b"], rel=SHARE_TOLERANCE)
    mesh.teachers["a"].seconds = 0.4
    counts = answered(mesh, 40.0)
    assert counts["b"] / counts["a"] == pytest.approx(4, rel=SHARE_TOLERANCE)


def test_n_counts_teachers_of_the_average_speed(rng: random.Random) -> None:
    """0.4, 0.4 and 0.1 s are 15 batches a second: three teachers of 0.2 s."""
    mesh = Mesh(ROOMY, rng, step_s=0.1)
    for name, seconds in (("a", 0.4), ("b", 0.4), ("fast", 0.1)):
        mesh.join(name, seconds)
    mesh.run(20.0)
    assert mesh.decision.needed == 2
    starved_s = mesh.memory.starved_s
    mesh.run(60.0)
    assert mesh.memory.starved_s == pytest.approx(starved_s, abs=0.5)
