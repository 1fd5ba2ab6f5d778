"""Flow control and late teachers in simulated meshes, for minutes of virtual time."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby, pairwise
from math import ceil, exp, floor

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from edl.scheduler.debounce import DRIFT_S, FALL_S, RISE_S
from edl.scheduler.reader_core import hedging
from edl.scheduler.reader_core.hedging import Straggling
from edl.scheduler.reader_core.request_pacing import Turnarounds, began
from edl.scheduler.simulator import (
    NetworkLink,
    Scenario,
    ScenarioFault,
    SimulationResult,
    SpeedChange,
    StudentGroup,
    TeacherGroup,
    simulate,
)

pytestmark = pytest.mark.system  # seconds of CPU for each

few = settings(max_examples=max(2, settings().max_examples // 50))  # each is minutes of a mesh
seeds = st.integers(0, 2**32 - 1)
ROWS, ROW_BYTES = 32, 100.0
FREE = NetworkLink(latency_s=0.0)


def student(step_s: float = 0.1, **changed: float | None) -> StudentGroup:
    known = {"upper": 20.0, "lower": 10.0, "input_bytes": ROW_BYTES, "label_bytes": 4.0}
    return StudentGroup("s", step_s / ROWS, batch=ROWS, **known | changed)  # type: ignore[arg-type]


def teachers(
    count: int,
    batch_s: float,
    *,
    told: float = 1.0,
    changes: tuple[SpeedChange, ...] = (),
    **more: float,
) -> TeacherGroup:
    """Teachers that need `batch_s` for a batch; `told`: the part of it that is device time.

    The rest is what their network takes.
    """
    link = FREE if told == 1.0 else NetworkLink(ROWS * ROW_BYTES / batch_s, latency_s=0.0)
    group = TeacherGroup("t", told * batch_s / ROWS, count=count, link=link, changes=changes)
    return replace(group, **more)  # type: ignore[arg-type]


def play(
    group: StudentGroup, pool: TeacherGroup, duration_s: float, seed: int = 0, **more: object
) -> SimulationResult:
    known = {"duration_s": duration_s, "seed": seed, "link": FREE, "sample_s": 0.5, "ttl_s": 60.0}
    scenario = Scenario((group,), (pool,), **known | more)  # type: ignore[arg-type]
    return simulate(scenario, random.Random, keep_batches=True)


def wants(result: SimulationResult, since_s: float = 0.0) -> list[int]:
    """The numbers of teachers that were wanted, one after another."""
    return [want for want, _ in groupby(p.wanted for p in result.points if p.at_s >= since_s)]


def rate(result: SimulationResult, since_s: float, until_s: float) -> float:
    """Batches per second of the student between two moments."""
    spans = [
        (later.at_s - point.at_s, later.samples_per_s)
        for point, later in pairwise(result.points)
        if since_s < later.at_s <= until_s
    ]
    return sum(span_s * speed for span_s, speed in spans) / sum(s for s, _ in spans) / ROWS


@few
@given(
    upper=st.integers(1, 30),
    per_request=st.sampled_from([None, 8, 48, 100]),
    count=st.integers(1, 4),
    batch_s=st.sampled_from([0.01, 0.05, 0.2]),
    step_s=st.floats(0.02, 0.5),
    seed=seeds,
)
def test_the_volume_is_bounded_whatever_the_sizes(
    upper: int, per_request: int | None, count: int, batch_s: float, step_s: float, seed: int
) -> None:
    group = student(
        step_s, upper=upper, lower=upper / 2, teachers_min=count, request_samples=per_request
    )
    result = play(group, teachers(count, batch_s, jitter=0.3), 20.0, seed, window_max=4)
    (found,) = result.students
    windows = count * 4 * (per_request or ROWS) / ROWS  # in batches
    assert found.most_volume <= upper + max(windows, 1)
    assert found.batches > 20


@few
@given(n=st.integers(3, 6), beyond=st.floats(0.5, 0.7), told=st.floats(0.2, 0.8), seed=seeds)
@example(n=5, beyond=0.8, told=0.88, seed=0)
def test_two_short_of_n_it_asks_for_one_more_twice(
    n: int, beyond: float, told: float, seed: int
) -> None:
    """Teachers tell less time than they need: by their word n - 2 are enough, and n are.

    `beyond`: how much more than n - 1 teachers are needed; `told`: more than n - 3 by their word.
    """
    needed = n - 1 + beyond
    pool = teachers(n + 3, 0.1 * needed, told=(n - 3 + told) / needed)
    # The buffer never fills: pauses in pulling would cost a network this slow its pace.
    result = play(student(upper=500.0, lower=250.0), pool, 210.0, seed)
    assert wants(result)[-3:] == [n - 2, n - 1, n]
    assert wants(result, since_s=90.0) == [n], "and stays there"
    assert rate(result, 90.0, 210.0) == pytest.approx(10.0, rel=0.03), "as fast as it can train"


@few
@given(n=st.integers(2, 8), less=st.floats(0.3, 0.8), seed=seeds)
@example(n=5, less=0.0, seed=0)
@example(n=4, less=0.3, seed=156834)  # the want falls in two steps, the second by a tenth only
def test_with_teachers_twice_as_fast_fewer_are_assigned(n: int, less: float, seed: int) -> None:
    """Of n teachers all are needed; `less`: how much of the last one is idle.

    The demand may take effect in three steps, of which each has to last: a rise while teachers are
    not yet known to be faster, a clear fall, and one by less than a tenth.
    """
    ratio = n - less
    batch_s = 0.1 * ratio
    faster = (SpeedChange(120.0, batch_s / 2 / ROWS),)
    settled_s = 120.0 + RISE_S + FALL_S + DRIFT_S + 20.0  # 20 s: until the new speed is measured
    result = play(student(), teachers(12, batch_s, changes=faster), settled_s + 60.0, seed)
    assert wants(result, since_s=60.0)[0] == n
    assert wants(result, since_s=settled_s) == [ceil(ratio / 2)]
    assert {p.assigned for p in result.points if p.at_s >= settled_s} == {ceil(ratio / 2)}
    before, after = rate(result, 60.0, 120.0), rate(result, settled_s, settled_s + 60.0)
    assert after == pytest.approx(before, rel=0.02)


@few
@given(
    step_s=st.floats(0.02, 0.2),
    slower=st.floats(1.5, 20.0),
    # n teachers that are busy for nearly all of the time keep one more: what waits since the start
    # is labelled slowly. With little more than n, either n or n + 1 is right.
    ratio=st.floats(1.2, 6.0).filter(lambda r: 1.05 * floor(r) < r < 0.9 * ceil(r)),
    seed=seeds,
)
@example(step_s=0.1, slower=3.0, ratio=1.6, seed=0)
@example(step_s=0.0313, slower=11.58, ratio=4.493, seed=0)
def test_a_slow_source_does_not_move_the_want(
    step_s: float, slower: float, ratio: float, seed: int
) -> None:
    """`slower` than the student; `ratio`: of a teacher's time to the source's.

    While nothing is labelled yet the student may starve, and ask for one teacher too many, which it
    keeps for some 60 batches of the source, at least for 30 s.
    """
    source_s = step_s * slower
    group = student(step_s, source_s=source_s)
    begins_s = 50.0 + 70 * source_s
    result = play(group, teachers(12, ratio * source_s), begins_s + 300.0, seed)
    assert wants(result, begins_s) == [ceil(ratio)], "as many as keep up with the source"
    assert result.students[0].source_wait_s > 0.2 * 300.0 * (1 - 1 / slower)


def named_at(result: SimulationResult) -> dict[str, float]:
    """When which teachers are called stragglers, by the times of their answers."""
    answers = sorted(result.requests, key=lambda one: one.answered_s)
    times, seen, found, last = Turnarounds(), Straggling(), dict[str, float](), dict[str, float]()
    for one in answers:
        taken_s = one.answered_s - began(one.sent_s, last.get(one.teacher, 0.0))
        last[one.teacher] = one.answered_s
        times.answered(one.teacher, one.rows, taken_s)
        known = {name: times.get(name) for name in last}
        speeds = {name: of.seconds_per_row for name, of in known.items() if of is not None}
        seen = hedging.name_stragglers(speeds, frozenset(), seen, one.answered_s)
        for name in seen.named:
            found.setdefault(name, one.answered_s)
    return found


@few
@given(
    seed=seeds,
    batch_s=st.floats(0.02, 0.3),
    others=st.integers(2, 5),
    slower=st.floats(4.0, 20.0),
    jitter=st.sampled_from([0.0, 0.2]),
)
@example(seed=0, batch_s=0.1, others=3, slower=10.0, jitter=0.0)
def test_a_slow_teacher_adds_what_it_can_and_is_named(
    seed: int, batch_s: float, others: int, slower: float, jitter: float
) -> None:
    since_s, slow_batch_s = 100 * batch_s, slower * batch_s
    # It has to be slow for a while after several of its answers.
    known_s = since_s + 30.0 + 3 * slow_batch_s
    # Batches are delivered in order, so in bursts with the slow one's: over many of those.
    end_s = known_s + 60 * slow_batch_s
    group = student(0.001, upper=300.0, lower=150.0, teachers_min=others + 1)
    pool = teachers(others + 1, batch_s, jitter=jitter)
    fault = ScenarioFault(since_s, "t", "slow", factor=slower)
    result = play(group, pool, end_s, seed, faults=(fault,))
    ((slow, named_s),) = named_at(result).items()
    assert slow in next(one.subject for one in result.mesh_events if one.kind == "slow")
    assert since_s < named_s < known_s
    sum_of_rates = (others + 1 / slower) / (batch_s * exp(jitter**2 / 2))  # of lognormal times
    assert rate(result, known_s, end_s) >= 0.95 * sum_of_rates
    assert result.students[0].hedges <= 0.05 * len(result.requests)
    assert result.students[0].resends == 0
