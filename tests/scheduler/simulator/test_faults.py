"""Faults, leaving students and autoscaling in simulated meshes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest

from edl.scheduler.autoscale import AutoscaleConfig
from edl.scheduler.simulator import Scenario, ScenarioFault, SimulationResult, SpeedChange, simulate
from edl.tests.waiting import DEADLINE_S

from .meshes import FREE, LOOK_S, STEP_S, WORK_S, kinds, run, students, teachers

PROGRAM = """
import random
from edl.scheduler.simulator import ScenarioFault, Scenario, StudentGroup, TeacherGroup, simulate
kinds = ("crash", "hang", "drain")
faults = tuple(ScenarioFault(1.0 + n, "t", kind, 2) for n, kind in enumerate(kinds))
teachers = TeacherGroup("t", 0.05, count=8, jitter=0.5, back_after_s=1.0, start_s=1.0)
students = StudentGroup("s", 0.02, batch=4, count=3, jitter=0.3)
scenario = Scenario((students,), (teachers,), batches=100, faults=faults)
print(simulate(scenario, random.Random).trace_hash)
"""
TTL_S = 6.0
BEAT_S = TTL_S / 2.5


def with_fault(
    kind: Any, count: int = 1, there: int = 5, for_s: float | None = None
) -> SimulationResult:
    """A run of 20 s in which something happens to teachers after 5 s."""
    fault = ScenarioFault(5.0, "t", kind, count, for_s=for_s)
    return run(students(), teachers(there), batches=200, faults=(fault,))


class TestTeachers:
    def test_students_notice_a_crash_at_once_and_the_registry_after_a_ttl(self) -> None:
        result = with_fault("crash", 2)
        crashed = kinds(result, "crash")
        lost = {name: at for at, name in kinds(result, "lost")}
        assert [at for at, _ in crashed] == [5.0, 5.0]
        assert set(lost) == {name for _, name in crashed}
        assert all(5 + TTL_S - BEAT_S <= at <= 5 + TTL_S for at in lost.values())
        # The student lost what was in flight, and had other teachers long before.
        assert result.students[0].resends == 4
        replaced_at = min(at for at, _ in kinds(result, "assign") if at > 5)
        assert replaced_at == pytest.approx(5 + LOOK_S, abs=0.01)
        assert result.students[0].starved_s < 1.0
        assert result.teachers[0].lost == 2

    def test_hanging_teachers_are_hedged_replaced_and_lost_after_a_ttl(self) -> None:
        result = with_fault("hang", 2, for_s=3.0)
        (student,) = result.students
        assert (student.batches, student.resends) == (200, 0)
        assert student.hedges >= 2
        assert not kinds(result, "lost")  # it beat again before its lease was over
        assert [at for at, _ in kinds(result, "wake")] == [8.0, 8.0]
        assert any(5 < at < 8 for at, _ in kinds(result, "assign"))
        result = with_fault("hang")
        assert len(kinds(result, "lost")) == 1
        assert result.students[0].batches == 200
        result = with_fault("hang", 1, there=1, for_s=20.0)  # it wakes, and registers anew
        ((lost_at, _),), ((woke_at, _),) = kinds(result, "lost"), kinds(result, "wake")
        assert lost_at < woke_at == 25.0
        assert result.students[0].batches == 200
        there_s = result.virtual_s - (woke_at - lost_at)
        assert result.teachers[0].there_s == pytest.approx(there_s)

    def test_draining_costs_nothing(self) -> None:
        result, calm = with_fault("drain", 2), with_fault("slow", for_s=0.001)
        assert (result.students[0].resends, result.students[0].hedges) == (0, 0)
        assert result.virtual_s == pytest.approx(calm.virtual_s, abs=WORK_S)
        left = [at for at, _ in kinds(result, "leave")]
        assert len(left) == 2
        assert all(5 < at < 5 + LOOK_S + 2 * WORK_S + 0.01 for at in left)

    def test_slow_teacher_is_slow_for_its_time(self) -> None:
        result = with_fault("slow", 1, there=1, for_s=10.0)
        # It labels half as much for 10 s, but for the request that it works on at the beginning.
        lost_s = result.virtual_s - (200 * WORK_S + STEP_S)
        assert lost_s == pytest.approx(5.0, abs=2 * WORK_S)

    def test_teachers_leave_at_random_and_others_come(self) -> None:
        teacher = teachers(6, leave_per_minute=0.5, back_after_s=1.0, start_s=2.0)
        result = run(students(teachers_max=6), teacher, batches=None, duration_s=150.0)
        crashes = kinds(result, "crash")
        assert 4 <= len(crashes) <= 20  # about ln 2 x 6 a minute
        assert result.teachers[0].started == 6 + sum(at + 3 <= 150 for at, _ in crashes)
        assert result.students[0].batches_per_s > 0.8 / STEP_S
        teacher = teachers(20, leave_per_minute=0.99)
        hang = ScenarioFault(1.0, "t", "hang", 20, for_s=200.0)
        result = run(students(), teacher, batches=None, duration_s=300.0, faults=(hang,))
        assert [result.points[at].serving for at in (0, -1)] == [20, 0]

    def test_slow_runs_are_awaited_and_hopeless_ones_end(self) -> None:
        with pytest.raises(ValueError, match="no student has trained anything"):
            with_fault("crash", 1, there=1)
        step = run(students(t_s_s=10.0, needs_labels=False), None, batches=1)
        label = run(students(), teachers(t_t_s=10.0), batches=1)
        crash = ScenarioFault(0.1, "t")
        back = run(students(), teachers(back_after_s=700.0), batches=1, faults=(crash,))
        assert [one.students[0].batches for one in (step, label, back)] == [1, 1, 1]


class TestStudents:
    @pytest.mark.parametrize(("kind", "after_s"), [("drain", 0.0), ("crash", TTL_S)])
    def test_teachers_of_a_student_that_is_gone(self, kind: Any, after_s: float) -> None:
        faults = (ScenarioFault(5.0, "s", kind),)
        result = run(students(2), teachers(4), batches=200, faults=faults)
        ((at, gone),) = kinds(result, kind)
        assert at == 5.0
        (other,) = (one for one in result.students if one.name != gone)
        assert other.batches == 200
        more_at = min(at for at, name in kinds(result, "assign") if name == other.name and at > 5)
        assert more_at == pytest.approx(5 + after_s + LOOK_S, abs=0.01)

    def test_slow_student_is_slow_for_its_time(self) -> None:
        slow = ScenarioFault(2.0, "s", "slow", for_s=4.0)
        result = run(students(needs_labels=False), None, batches=100, faults=(slow,))
        assert result.virtual_s == pytest.approx(100 * STEP_S + 4.0 / 2, abs=2 * STEP_S)

    def test_ranks_do_not_wait_for_a_crashed_one(self) -> None:
        student = students(3, needs_labels=False, together=True)
        result = run(student, None, batches=100, faults=(ScenarioFault(5.01, "s", "crash"),))
        assert sorted(one.batches for one in result.students) == [50, 100, 100]
        assert result.virtual_s == pytest.approx(100 * STEP_S)

    def test_students_join_one_by_one_and_leave(self) -> None:
        student = students(3, needs_labels=False, join_s=1.0, join_every_s=2.0, leave_s=4.55)
        result = run(student, None, batches=None)
        assert [one.began_s for one in result.students] == [1.0, 3.0, 5.0 - 0.45]
        assert [one.batches for one in result.students] == [35, 15, 0]
        assert result.virtual_s == 4.55

    def test_priorities_and_services(self) -> None:
        low = students(name="low", teachers_max=3)
        high = students(name="high", teachers_max=3, priority=1, join_s=2.0)
        scenario = Scenario((low, high), (teachers(4),), batches=100, link=FREE)
        result = simulate(scenario, random.Random)
        # Each needs three of the four teachers; one is left to the other, its job's least.
        (low_s,), (high_s,) = result.group("low"), result.group("high")
        # A reader waits 0.5 s for a first answer before it knows that its teachers can be reached.
        assert high_s.batches_per_s > 0.85 / STEP_S
        assert low_s.starved_s > 3 * high_s.starved_s
        one, other = students(name="one"), students(name="other", service="b")
        groups = (teachers(4), teachers(1, name="slow", service="b"))
        result = simulate(Scenario((one, other), groups, batches=40, link=FREE), random.Random)
        assert [group.batches for group in result.teachers] == [40, 40]


class TestAutoscale:
    CONFIG = AutoscaleConfig(max=6, freeze_s=10.0, idle_to_zero_s=30.0)

    def test_teachers_are_started_and_drained(self) -> None:
        student = students(leave_s=100.0, changes=(SpeedChange(30.0, STEP_S / 2 / 8),))
        teacher = teachers(0, start_s=5.0, price_per_hour=3.6)
        result = run(student, teacher, batches=None, duration_s=200.0, autoscale=self.CONFIG)
        changed = [at for at, _ in kinds(result, "desired")]
        assert all(later - earlier >= 10.0 for earlier, later in pairwise(changed))
        assert max(point.serving for point in result.points) <= 6
        first_at = min(at for at, _ in kinds(result, "serve"))
        assert first_at == pytest.approx(changed[0] + 5.0)
        before = [p.serving for p in result.points if 25 <= p.at_s < 30]
        after = [p.serving for p in result.points if 60 <= p.at_s < 100]
        assert set(before) == {3}  # n = ceil(0.25 / 0.1)
        assert min(after) >= 5  # and ceil(0.25 / 0.05)
        assert (result.points[-1].serving, result.points[-1].desired) == (0, 0)
        assert result.teachers[0].cost == pytest.approx(result.teachers[0].there_s / 1000)

    @pytest.mark.parametrize(
        ("kind", "from_s", "to_s"),
        [("crash", 31.0, 31.0), ("hang", 30.1 + TTL_S - BEAT_S, 31.1 + TTL_S)],
    )
    def test_lost_teachers_are_replaced(self, kind: Any, from_s: float, to_s: float) -> None:
        """A crash at once, a hang when the lease is over."""
        teacher, fault = teachers(3, start_s=1.0, back_after_s=10.0), ScenarioFault(30.1, "t", kind)
        changed: dict[str, Any] = {"autoscale": AutoscaleConfig(max=3), "faults": (fault,)}
        result = run(students(), teacher, batches=None, duration_s=50.0, **changed)
        assert {point.desired for point in result.points[2:]} == {3}
        assert result.points[-1].serving == 3
        ordered_s = min(at for at, _ in kinds(result, "serve") if at > 30) - 1.0
        assert from_s - 1e-6 <= ordered_s <= to_s + 1e-6
        assert not kinds(result, "drain")  # autoscaling alone ordered a replacement

    def test_a_student_that_is_cut_off_scales_nothing(self) -> None:
        """As in a live mesh: it wants replacements, and more teachers may be unreachable too."""
        config = AutoscaleConfig(max=12, freeze_s=1.0, up_after_s=1.0)
        teacher, fault = teachers(3, start_s=5.0), ScenarioFault(20.0, "t", "crash", 3)
        changed: dict[str, Any] = {"autoscale": config, "faults": (fault,)}
        result = run(students(), teacher, batches=None, duration_s=40.0, **changed)
        served_s = min(at for at, _ in kinds(result, "serve") if at > 20)
        assert {point.desired for point in result.points if 10 <= point.at_s < served_s} == {3}

    def test_starting_teachers_are_cancelled_first(self) -> None:
        student, teacher = students(leave_s=20.0), teachers(1, start_s=1000.0)
        result = run(student, teacher, batches=None, duration_s=100.0, autoscale=self.CONFIG)
        assert result.teachers[0].started == 1
        assert [name for _, name in kinds(result, "leave")] == ["s/0", "t/0"]


class TestSeeds:
    def test_seed_decides_the_run(self) -> None:
        def hashed(seed: int, keep: bool = False) -> str:
            student, teacher = students(2, jitter=0.2), teachers(6, jitter=0.3)
            faults = (ScenarioFault(3.0, "t", "crash"), ScenarioFault(4.0, "t", "hang"))
            result = run(student, teacher, keep, batches=50, seed=seed, faults=faults)
            assert bool(result.requests) is keep is bool(result.steps)
            return result.trace_hash

        assert hashed(1) == hashed(1, keep=True) != hashed(2)

    @pytest.mark.system
    def test_another_process_runs_the_same(self) -> None:
        """A simulation does not depend on the order of names in a set."""
        hashes = {
            subprocess.run(
                [sys.executable, "-P", "-c", PROGRAM],
                env=os.environ | {"PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                timeout=DEADLINE_S,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        (trace_hash,) = hashes
        assert len(trace_hash.strip()) == 16

    def test_another_teacher_changes_nothing_that_the_others_draw(self) -> None:
        def work(count: int) -> list[float]:
            student = students(teachers_max=1)
            result = run(student, teachers(count, jitter=0.3), True, batches=20)
            return [one.ended_s - one.began_s for one in result.requests if one.teacher == "t/0"]

        assert work(1) == pytest.approx(work(2))
