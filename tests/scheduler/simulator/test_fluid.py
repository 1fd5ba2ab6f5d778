"""The fluid plane of the simulator, compared with the exact one and with results by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.scheduler.simulator import Change, Fault, Link, Result, Scenario, simulate
from edl.scheduler.simulator.fluid.jobs import slowest_of
from edl.scheduler.simulator.fluid.turns import TURN_S
from edl.scheduler.simulator.result import PlaneName

from .meshes import FREE, STEP_S, WORK_S, kinds, students, teachers

#: Batches per second that a student can train, and a teacher label.
STEPS, LABELS = 1 / STEP_S, 1 / WORK_S
NARROW = Link(bandwidth_bytes_per_s=8 * 150_528 * 5.0, latency_s=0.001)  # 5 batches per second
PLANES: tuple[PlaneName, ...] = ("exact", "fluid")
CHURN = teachers(6, jitter=0.1, leave_per_minute=0.2, back_after_s=5.0, start_s=5.0)

MESHES = st.builds(
    lambda student, teacher, **settings: Scenario(
        (student,), (teacher,), duration_s=60.0, **settings
    ),
    st.builds(
        students,
        st.integers(1, 4),
        source_s=st.sampled_from([0.0, 0.05, 0.4]),
        upper=st.sampled_from([3.0, 16.0]),
        lower=st.sampled_from([0.0, 2.0]),
        batches=st.sampled_from([None, 1, 40]),
        together=st.booleans(),
        join_every_s=st.sampled_from([0.0, 7.0]),
        leave_s=st.sampled_from([None, 45.0]),
    ),
    st.builds(
        teachers,
        st.integers(0, 6),
        lanes=st.integers(1, 2),
        leave_per_minute=st.sampled_from([0.0, 0.5]),
        leaves_by=st.sampled_from(["crash", "hang", "drain"]),
        back_after_s=st.sampled_from([None, 3.0]),
        start_s=st.just(2.0),
    ),
    seed=st.integers(0, 100),
    faults=st.sampled_from(
        [
            (),
            (Fault(20, "t", "hang", 2, for_s=15.0), Fault(25, "t", "slow", 2, for_s=5.0)),
            (Fault(20, "s", "crash"), Fault(30, "t", "drain", 9)),
        ]
    ),
)


def play(*groups: Any, plane: PlaneName = "fluid", **changed: Any) -> Result:
    """Five virtual minutes, measured after the first half minute."""
    known: dict[str, Any] = {"duration_s": 300.0, "warm_up_s": 30.0, "link": FREE} | changed
    student_groups = tuple(group for group in groups if hasattr(group, "t_s_s"))
    teacher_groups = tuple(group for group in groups if hasattr(group, "t_t_s"))
    return simulate(Scenario(student_groups, teacher_groups, **known), random.Random, plane)


class TestFluid:
    def test_where_the_time_goes(self) -> None:
        for student in play(students(2), teachers(8)).students:
            assert student.starved_s < 5
            assert student.blocked_s > 10
            assert student.most_volume <= 16 + 2 * student.want + 1
        result = play(students(), teachers(1))
        (student,), (group,) = result.students, result.teachers
        assert student.batches_per_s == pytest.approx(LABELS, rel=0.02)
        assert student.starved_s / 300 == pytest.approx(1 - LABELS / STEPS, rel=0.02)
        assert student.training_s + student.starved_s == pytest.approx(300, abs=1)
        assert group.utilization == pytest.approx(1, abs=0.01)
        (student,) = play(students(source_s=0.4), teachers(8)).students
        assert student.source_wait_s > 200

    def test_slowest_of_several_draws(self) -> None:
        drawn, jitter = random.Random(1), 0.1
        times = [max(drawn.gauss(1, jitter) for _ in range(4)) for _ in range(5000)]
        assert slowest_of(4, jitter) == pytest.approx(sum(times) / len(times), rel=0.01)
        assert slowest_of(1, jitter) == slowest_of(4, 0.0) == 1.0

    def test_small_batches_cost_no_more_events(self) -> None:
        slow = play(students(), teachers(8), duration_s=60.0)
        fast = play(
            students(t_s_s=STEP_S / 800, upper=1600.0, lower=800.0),
            teachers(8, t_t_s=WORK_S / 800),
            duration_s=60.0,
        )
        assert fast.students[0].batches > 90 * slow.students[0].batches
        assert fast.events < 2 * slow.events

    @pytest.mark.parametrize(
        ("group", "serving", "want", "faults"),
        [
            (students(2), teachers(8), 3, ()),
            (students(3, jitter=0.05), teachers(12, jitter=0.1), None, ()),
            (students(3, jitter=0.05), teachers(6, jitter=0.1), None, ()),
            (students(3), teachers(1), None, ()),
            (students(), teachers(1, lanes=2), None, ()),
            (students(2, upper=4.0, lower=1.0), teachers(8), None, ()),
            (students(source_s=0.4), teachers(8), 1, ()),
            (students(link=NARROW), teachers(8), None, ()),
            (students(needs_labels=False), None, 0, ()),
            (students(changes=(Change(60, STEP_S / 8 / 2),)), teachers(12), 5, ()),
            (students(3, together=True), teachers(20), None, (Fault(10, "s", "slow"),)),
            (students(4, t_s_s=STEP_S / 4, jitter=0.05), CHURN, None, ()),
            (students(), teachers(3), None, (Fault(60, "t", "crash"),)),
            (students(), teachers(4), None, (Fault(60, "t", "drain"),)),
            (students(), teachers(2), None, (Fault(60, "t", "hang", for_s=30.0),)),
        ],
        ids=["calm", "plenty", "too few", "shared", "two lanes", "small buffer", "slow source",
             "slow link", "no labels", "faster student", "slow rank", "churn", "crash", "drain",
             "hang"],
    )  # fmt: skip
    def test_both_planes_agree_within_three_percent(
        self, group: Any, serving: Any, want: int | None, faults: tuple[Fault, ...]
    ) -> None:
        exact, fluid = (
            play(group, serving, plane=plane, duration_s=120.0, seed=3, faults=faults)
            for plane in PLANES
        )
        assert fluid.samples_per_s == pytest.approx(exact.samples_per_s, rel=0.03)
        for one, other in zip(fluid.students, exact.students, strict=True):
            assert want in (None, one.want)
            if not kinds(exact, "wake"):  # the exact plane hedges what a hanging one has
                assert one.resends == other.resends
        shares = [
            sum(one.starved_s for one in result.students) / (120 * len(result.students))
            for result in (exact, fluid)
        ]
        assert shares[1] == pytest.approx(shares[0], abs=0.05)
        for kind in ("lost", "leave"):
            assert len(kinds(fluid, kind)) == len(kinds(exact, kind))

    @given(MESHES)
    @example(  # the student dies while its former teacher finishes
        Scenario(
            (students(source_s=0.4),),
            (teachers(1, leave_per_minute=0.5, leaves_by="drain", start_s=2.0),),
            duration_s=60.0,
            seed=90,
            faults=(Fault(20, "s", "crash"),),
        )
    )
    @example(  # the other rank's labels run out and come back within one event
        Scenario(
            (students(2, source_s=0.05, upper=3.0, lower=0.0, together=True),),
            (teachers(3, lanes=2, leave_per_minute=0.5, back_after_s=3.0, start_s=2.0),),
            duration_s=60.0,
            seed=17,
            faults=(Fault(20, "t", "hang", 2, for_s=15.0), Fault(25, "t", "slow", 2, for_s=5.0)),
        )
    )
    def test_nothing_is_made_or_lost(self, scenario: Scenario) -> None:
        result = simulate(scenario, random.Random, "fluid")
        (group,) = scenario.students
        labelled = sum(teacher.batches for teacher in result.teachers)
        trained = sum(student.batches for student in result.students)
        buffered = sum((student.most_volume + 1) for student in result.students)
        assert trained - 0.01 <= labelled <= trained + buffered
        for student in result.students:
            there_s = student.ended_s - student.began_s
            assert student.batches <= (group.batches or 10**9)
            spent_s = student.training_s + student.starved_s + student.source_wait_s
            assert spent_s <= there_s + TURN_S / 2  # waits and work alternate within a turn
            assert student.batches <= there_s / STEP_S + 1
        for teacher in result.teachers:
            lanes = scenario.teachers[0].lanes
            assert teacher.busy_s <= teacher.there_s * lanes * 1.02 + 2 * WORK_S
        assert simulate(replace(scenario), random.Random, "fluid") == result
