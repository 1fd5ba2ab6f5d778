"""The exact plane of the simulator."""

from __future__ import annotations

import random
from math import exp
from statistics import fmean, pstdev
from typing import Any

import pytest

from edl.scheduler.simulator import (
    NetworkLink,
    Scenario,
    ScenarioFault,
    SpeedChange,
    StudentGroup,
    TeacherGroup,
    simulate,
)
from edl.scheduler.simulator.environment import Jitter, lifetime_s
from edl.scheduler.simulator.scenario import FaultKind
from edl.tests.scheduler.simulator.meshes import (
    BEGIN_S,
    FREE,
    STEP_S,
    WORK_S,
    run,
    students,
    teachers,
)


class TestScenario:
    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"students": ()}, "at least one group of students"),
            ({"batches": None}, "would never end"),
            ({"students": (students(batches=3), students(name="o")), "batches": None}, "never end"),
            ({"teachers": (teachers(name="s"),)}, "two groups are called 's'"),
            ({"duration_s": 5.0, "warm_up_s": 5.0}, "warm_up_s < duration_s"),
            (
                {"faults": (ScenarioFault(1.0, "nobody"),)},
                r"faults\[0\]: there is no group 'nobody'",
            ),
            ({"faults": (ScenarioFault(1.0, "s", "hang"),)}, "students cannot hang"),
        ],
    )
    def test_invalid_scenarios_are_refused(self, changed: dict[str, Any], why: str) -> None:
        settings: dict[str, Any] = {
            "students": (students(),), "teachers": (teachers(),), "batches": 5,
        }  # fmt: skip
        Scenario(**settings)
        Scenario((students(batches=3), students(name="o", leave_s=9.0)))
        with pytest.raises(ValueError, match=why):
            Scenario(**settings | changed)

    @pytest.mark.parametrize("kind", ["crash", "drain"])
    def test_faults_that_end_a_member_have_no_duration(self, kind: FaultKind) -> None:
        with pytest.raises(ValueError, match=f"leave it out with kind {kind}"):
            ScenarioFault(1.0, "t", kind, for_s=5.0)

    def test_changes_take_effect_at_their_time(self) -> None:
        changes = (SpeedChange(1.0, 0.5), SpeedChange(2.0, 0.25))
        student = StudentGroup("s", 1.0, changes=changes)
        assert [student.t_s_at(now) for now in (0.0, 1.0, 1.9, 7.0)] == [1.0, 0.5, 0.5, 0.25]


class TestChance:
    def test_jitter_and_lifetimes(self, rng: random.Random) -> None:
        jitter = Jitter(rng, 0.3)
        drawn = [jitter.factor() for _ in range(20_000)]
        assert fmean(drawn) == pytest.approx(1.0, abs=0.02)
        assert pstdev(drawn) == pytest.approx(0.3, abs=0.02)
        assert min(drawn) > 0
        lives = [lifetime_s(rng, 0.2) for _ in range(20_000)]
        assert fmean(life <= 60 for life in lives) == pytest.approx(0.2, abs=0.02)
        assert fmean(life <= 600 for life in lives) == pytest.approx(1 - 0.8**10, abs=0.02)
        assert all(0 <= lifetime_s(rng, 1.0) < 600 / exp(1) for _ in range(100))


#: 0.2 s there and 0.1 s back.
THERE_AND_BACK = NetworkLink(40_000.0, latency_s=0.0)


class TestRates:
    @pytest.mark.parametrize(
        ("student", "teacher", "changed", "virtual_s"),
        [
            ({"needs_labels": False, "overhead_s": 0.03}, None, {}, 20 * (STEP_S + 0.03)),
            ({}, teachers(batch_overhead_s=0.05), {}, BEGIN_S + 20 * (WORK_S + 0.05) + STEP_S),
            # The first teacher that can be sent to gets the first two batches: its window.
            (
                {"teachers_min": 4, "connection_s": 0.005},
                teachers(4),
                {},
                BEGIN_S + 2 * WORK_S + 19 * (STEP_S + 4 * 0.005),
            ),
            ({}, teachers(lanes=2), {}, BEGIN_S + 10 * WORK_S + 2 * STEP_S),
            ({"request_samples": 4}, teachers(), {}, BEGIN_S + 20 * WORK_S + STEP_S),
            ({"teachers_min": 3, "source_s": 0.2}, teachers(3), {}, 20 * 0.2 + WORK_S + STEP_S),
            # Each of the two in the window takes 0.55 s in all; the second follows 0.25 s later.
            (
                {"input_bytes": 1000.0, "label_bytes": 500.0},
                teachers(),
                {"link": THERE_AND_BACK, "window_max": 2},
                BEGIN_S + 10 * 0.55 + 0.25 + STEP_S,
            ),
            (
                {},
                teachers(changes=(SpeedChange(BEGIN_S + 9.5 * WORK_S, 2 * WORK_S / 8),)),
                {},
                BEGIN_S + 30 * WORK_S + STEP_S,
            ),
        ],
    )
    def test_duration_by_hand(
        self, student: Any, teacher: TeacherGroup | None, changed: dict[str, Any], virtual_s: float
    ) -> None:
        result = run(students(**student), teacher, keep_batches=True, **changed)
        assert result.virtual_s == pytest.approx(virtual_s)
        assert {one.rows for one in result.requests} <= {student.get("request_samples", 8)}

    def test_statistics_of_students_and_teachers(self) -> None:
        (student,) = run(students(needs_labels=False), None).students
        assert student.samples_per_s == pytest.approx(8 / STEP_S)
        assert student.training_s == pytest.approx(20 * STEP_S)
        assert (student.batches, student.samples, student.want) == (20, 160, 0)
        assert student.starved_s == 0.0
        result = run(students(), teachers(lanes=2))
        (student,), (group,) = result.students, result.teachers
        assert (group.batches, group.started, group.lost) == (20, 1, 0)
        assert group.busy_s == pytest.approx(20 * WORK_S)
        assert group.utilization == pytest.approx(20 * WORK_S / (2 * result.virtual_s))
        assert student.starved_s == pytest.approx(result.virtual_s - 20 * STEP_S, abs=1e-6)


class TestChanges:
    def test_ranks_of_one_job_step_together(self) -> None:
        result = run(students(3, jitter=0.3, needs_labels=False, together=True), None)
        ends = {student.ended_s for student in result.students}
        assert len(ends) == 1
        alone = run(students(3, jitter=0.3, needs_labels=False), None)
        assert len({student.ended_s for student in alone.students}) == 3
        assert max(student.ended_s for student in alone.students) < ends.pop()

    def test_rates_are_measured_from_warm_up_on(self) -> None:
        change = SpeedChange(2.0 - 1e-6, STEP_S / 2 / 8)
        student = students(needs_labels=False, changes=(change,))
        (measured,) = run(student, None, batches=60, warm_up_s=2.05).students
        assert measured.batches_per_s == pytest.approx(2 / STEP_S, rel=0.03)
        (whole,) = run(student, None, batches=60).students
        assert whole.batches_per_s == pytest.approx(60 / 4.0, rel=0.01)
        student = students(2, needs_labels=False, join_every_s=3.0)
        result = run(student, None, warm_up_s=1.0)  # one for 2 s, then the other from 3 to 5 s
        assert result.samples_per_s == pytest.approx(8 * (11 + 20) / (5.0 - 1.0), rel=0.04)


def test_shares_of_teachers_follow_their_speeds() -> None:
    """Teachers at 1x, 1x and 4x serve in proportion."""
    student = students(t_s_s=1e-4, upper=100.0, lower=50.0, teachers_min=3)
    groups = teachers(2, name="slow"), teachers(1, name="fast", t_t_s=WORK_S / 8 / 4)
    scenario = Scenario((student,), groups, batches=600, link=FREE)
    slow, fast = simulate(scenario, random.Random).teachers
    assert slow.batches == pytest.approx(200, rel=0.1)
    assert fast.batches == pytest.approx(400, rel=0.1)
