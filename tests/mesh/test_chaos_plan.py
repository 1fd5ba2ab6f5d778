"""Plans of chaos: repeatable by their seed, dense, and never too much at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edl.mesh.chaos.faults import BY_NAME, KINDS, Fault, Whom
from edl.mesh.chaos.plan import FIRST_S, Stage, make_plan

seeds = st.integers(0, 1 << 32)


def burden_at(plan: Sequence[Fault], at_s: float) -> int:
    """How many of teachers, manager and Redis are struck, or not settled yet, at a moment."""
    return sum(
        fault.at_s <= at_s < fault.over_s
        and BY_NAME[fault.kind].whom in (Whom.TEACHER, Whom.CONTROL)
        for fault in plan
    )


@st.composite
def stages(draw: st.DrawFn) -> Stage:
    students = draw(st.integers(1, 3))
    teachers = students + draw(st.integers(1, 4))
    return Stage(
        seconds=draw(st.floats(10, 300)),
        teachers=tuple(f"t{number}" for number in range(teachers)),
        guests=tuple(f"g{number}" for number in range(draw(st.integers(0, 2)))),
        students=tuple(f"s{number}" for number in range(students)),
        ttl_s=draw(st.floats(0.5, 6)),
        deceive=draw(st.booleans()),
    )


@given(seeds, stages())
def test_an_equal_seed_gives_an_equal_plan(seed: int, stage: Stage) -> None:
    assert make_plan(seed, stage) == make_plan(seed, stage)


@given(seeds, stages())
def test_faults_come_in_order_within_the_time_and_are_numbered(seed: int, stage: Stage) -> None:
    plan = make_plan(seed, stage)
    assert [fault.number for fault in plan] == list(range(1, len(plan) + 1))
    assert all(a.at_s < b.at_s for a, b in pairwise(plan))
    assert all(FIRST_S <= fault.at_s < stage.seconds for fault in plan)


@given(seeds, stages())
def test_what_is_struck_is_left_alone_until_it_is_over(seed: int, stage: Stage) -> None:
    plan = make_plan(seed, stage)
    for target in {fault.target for fault in plan}:
        own = [fault for fault in plan if fault.target == target]
        assert all(a.rested_s <= b.at_s for a, b in pairwise(own))


@given(seeds, stages())
def test_each_student_is_left_a_healthy_teacher(seed: int, stage: Stage) -> None:
    """Of n teachers no more than n - students are struck at once, manager and Redis counted in."""
    plan = make_plan(seed, stage)
    assert all(burden_at(plan, fault.at_s) <= stage.burden for fault in plan)


def test_engines_die_also_while_the_manager_or_redis_are_away() -> None:
    stage = Stage(600.0, ("t1", "t2", "t3", "t4"), ("g1",), ("s1", "s2"), 2.0)
    plan = make_plan(1, stage)
    away = [fault for fault in plan if BY_NAME[fault.kind].whom is Whom.CONTROL]
    deaths = [fault.at_s for fault in plan if BY_NAME[fault.kind].whom is Whom.STUDENT]
    assert any(one.at_s < at_s < one.at_s + one.lasts_s for one in away for at_s in deaths)


@given(seeds, stages())
def test_leases_run_out_where_they_are_meant_to(seed: int, stage: Stage) -> None:
    for fault in make_plan(seed, stage):
        kind = BY_NAME[fault.kind]
        assert kind.least_s - 0.011 <= fault.lasts_s - stage.ttl_s * kind.outlives_ttl
        assert not kind.outlives_ttl or fault.lasts_s > stage.ttl_s


@given(seeds)
def test_lies_that_nobody_could_find_are_asked_for(seed: int) -> None:
    told = {
        deceive: {fault.kind for fault in make_plan(seed, usual(300.0, deceive=deceive))}
        for deceive in (False, True)
    }
    deceiving = {kind.name for kind in KINDS if kind.deceives}
    assert not deceiving & told[False]
    assert deceiving <= told[True]


@given(seeds)
def test_about_one_fault_in_two_seconds_and_every_kind_again_and_again(seed: int) -> None:
    plan = make_plan(seed, usual(300.0))
    assert 1.3 < 300.0 / len(plan) < 2.7
    counts = Counter(fault.kind for fault in plan)
    assert all(counts[kind.name] >= 2 for kind in KINDS if not kind.deceives), counts


def test_two_seeds_differ() -> None:
    assert make_plan(1, usual(60.0)) != make_plan(2, usual(60.0))


def usual(seconds: float, *, deceive: bool = False) -> Stage:
    """What `edl chaos` has."""
    teachers = ("t1", "t2", "t3", "t4")
    return Stage(seconds, teachers, ("g1", "g2"), ("s1", "s2"), 2.0, deceive)
