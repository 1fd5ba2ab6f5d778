"""What a student may count on, whatever its teachers do: told in minutes of virtual time."""

from __future__ import annotations

import random
from math import ceil, exp

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.scheduler import request_size, windows
from edl.tests.properties.paced_mesh import PacedMesh, Teacher, holds

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

few = settings(max_examples=max(4, settings().max_examples // 25))  # each is minutes of a mesh


def pool(mesh: PacedMesh, batch_s: float = 0.1) -> None:
    """Four equal teachers."""
    for name in "abcd":
        mesh.join(name, batch_s)


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    batch_s=st.floats(0.02, 0.3),
    others=st.integers(2, 5),
    slower=st.floats(4.0, 20.0),
    jitter=st.sampled_from([0.0, 0.2]),
)
@example(seed=0, batch_s=0.1, others=3, slower=10.0, jitter=0.0)
def test_a_slow_teacher_adds_what_it_can_and_is_named(
    seed: int, batch_s: float, others: int, slower: float, jitter: float
) -> None:
    mesh = PacedMesh(holds(300), random.Random(seed), step_s=0.001)
    for index in range(others):
        mesh.join(f"t{index}", batch_s).jitter = jitter
    slow = mesh.join("slow", batch_s)
    slow.jitter = jitter
    mesh.run(100 * batch_s)
    assert not mesh.named_at
    slow.batch_s *= slower
    since = mesh.now
    mesh.run(30.0)
    assert set(mesh.named_at) == {"slow"}
    assert mesh.named_at["slow"] - since < 30.0
    assert mesh.straggling.named == {"slow"}, "not only while it seemed to be silent"
    sum_of_rates = (others + 1 / slower) / (batch_s * exp(jitter**2 / 2))  # of lognormal times
    # Batches are delivered in order, so in bursts with the slow one's: over many of those.
    assert mesh.rate(60 * slower * batch_s) >= 0.95 * sum_of_rates
    assert not slow.standing.ejected
    assert mesh.ledger.hedges <= 0.05 * mesh.ledger.sent


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    batch_s=st.floats(0.02, 0.3),
    teachers=st.integers(2, 5),
    spare=st.floats(1.0, 2.5),
    stopped_s=st.floats(0.2, 12.0),
)
@example(seed=0, batch_s=0.02, teachers=4, spare=1.1, stopped_s=8.0)
@example(seed=0, batch_s=0.1, teachers=4, spare=1.0, stopped_s=8.0)
@example(seed=0, batch_s=0.3, teachers=4, spare=1.1, stopped_s=8.0)
@example(seed=0, batch_s=0.3, teachers=4, spare=2.0, stopped_s=8.0)
def test_a_stopped_teacher_is_hardly_noticed_with_two_seconds_of_volume(
    seed: int, batch_s: float, teachers: int, spare: float, stopped_s: float
) -> None:
    """`spare`: what the teachers could do in times of what the student takes, before one stops."""
    step_s = batch_s / teachers * spare
    mesh = PacedMesh(holds(ceil(2.0 / step_s)), random.Random(seed), step_s=step_s)
    names = [f"t{index}" for index in range(teachers)]
    for name in names:
        mesh.join(name, batch_s)
    mesh.run(20.0)
    before, since = mesh.ledger.hedges, mesh.now
    mesh.stop("t0")
    mesh.run(stopped_s)
    stopped = mesh.teachers["t0"]
    if stopped_s > 6.0:
        assert stopped.standing.ejected
        assert mesh.named_at["t0"] - since < 5.0
        assert mesh.ledger.hedges - before in (1, 2), "all that it had, and nothing else"
    mesh.go_on("t0")
    mesh.run(10.0)
    assert mesh.longest_pause(since) <= 1.5
    if stopped_s <= 8.0:  # the longer it was away, the more rarely it is probed
        assert not stopped.standing.ejected
        labelled = stopped.labelled
        mesh.run(3.0)
        assert stopped.labelled > labelled, "it has its share again"


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    turns=st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.01, 8.0)), min_size=1, max_size=12
    ),
)
def test_teachers_that_stop_and_go_on_lose_nothing(
    seed: int, turns: list[tuple[str, float]]
) -> None:
    """While "d" is healthy no pause is long, and in the end all have their share again."""
    mesh = PacedMesh(holds(40), random.Random(seed), step_s=0.05)
    pool(mesh)
    mesh.run(20.0)
    start = mesh.now
    for name, after_s in turns:
        (mesh.go_on if mesh.teachers[name].stopped else mesh.stop)(name)
        mesh.run(after_s)
    assert mesh.longest_pause(start) <= 1.5
    for name in "abc":
        mesh.go_on(name)
    mesh.run(200.0)  # every probe has been answered by then
    assert not any(teacher.standing.ejected for teacher in mesh.teachers.values())
    assert mesh.rate(30.0) == pytest.approx(20.0, rel=0.02)
    mesh.ledger.validate()


@few
@given(
    seed=st.integers(0, 2**32 - 1),
    times=st.lists(st.floats(0.02, 0.6), min_size=2, max_size=5),
    jitter=st.sampled_from([0.0, 0.1, 0.3]),
    step_s=st.sampled_from([0.001, 0.1]),
)
def test_in_calm_weather_hedges_are_few_and_nobody_is_ejected(
    seed: int, times: list[float], jitter: float, step_s: float
) -> None:
    mesh = PacedMesh(holds(60), random.Random(seed), step_s=step_s)
    for index, seconds in enumerate(times):
        mesh.join(f"t{index}", seconds).jitter = jitter
    mesh.run(30.0)
    newcomers = 2 * len(times)  # nobody knows their speeds before they have answered
    assert mesh.ledger.hedges <= 0.05 * mesh.ledger.sent + newcomers
    before, sent = mesh.ledger.hedges, mesh.ledger.sent
    mesh.run(30.0)
    assert mesh.ledger.hedges - before <= 0.05 * (mesh.ledger.sent - sent) + mesh.hedge.burst
    assert all(teacher.standing.ejections == 0 for teacher in mesh.teachers.values())


def far(mesh: PacedMesh, travel_s: float) -> Teacher:
    return mesh.join("far", 0.05, travel_s)


def test_a_far_teacher_gets_a_wider_window_and_is_just_busy() -> None:
    mesh = PacedMesh(holds(60), random.Random(0), step_s=0.001)
    teacher = far(mesh, travel_s=0.14)
    mesh.run(60.0)
    assert windows.size(teacher.window, mesh.window) == 4
    assert mesh.rate(60.0) >= 0.97 * 20.0


def test_a_near_one_keeps_two() -> None:
    mesh = PacedMesh(holds(60), random.Random(0), step_s=0.001)
    teacher = far(mesh, travel_s=0.01)
    mesh.run(120.0)
    assert windows.size(teacher.window, mesh.window) == 2
    assert mesh.rate(60.0) >= 0.99 * 20.0


def test_a_teacher_that_is_slow_to_begin_gets_larger_requests() -> None:
    """20 ms for a request and 1 ms for each row: 615 rows/s by 32, 927 by 256."""
    mesh = PacedMesh(holds(200), random.Random(0), 0.001, auto=request_size.SizeConfig())
    for name in "ab":
        mesh.join(name, 0.032).request_s = 0.02
    mesh.run(30.0)
    assert {mesh.rows_for(teacher) for teacher in mesh.teachers.values()} == {256}
    assert mesh.rate(30.0) * 32 >= 0.98 * 2 * 927.5
    assert mesh.ledger.hedges <= 4
