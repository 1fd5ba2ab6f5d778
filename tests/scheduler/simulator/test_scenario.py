"""What a scenario refuses, and what it computes of itself; what is drawn."""

from __future__ import annotations

import random
from math import exp
from statistics import fmean, pstdev
from typing import Any

import pytest

from edl.scheduler.simulator import Change, Fault, Scenario, StudentGroup, TeacherGroup
from edl.scheduler.simulator.chance import Jitter, lifetime_s
from edl.tests.scheduler.simulator.meshes import students, teachers


class TestScenario:
    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"students": ()}, "at least one group of students"),
            ({"batches": None}, "it would never end"),
            ({"teachers": (teachers(name="s"),)}, "two groups are called 's'"),
            ({"duration_s": 5.0, "warm_up_s": 5.0}, "warm_up_s < duration_s"),
            ({"faults": (Fault(1.0, "nobody"),)}, r"faults\[0\]: there is no group 'nobody'"),
            ({"faults": (Fault(1.0, "s", "hang"),)}, "none hangs"),
        ],
    )
    def test_what_makes_no_sense_is_refused(self, changed: dict[str, Any], why: str) -> None:
        settings: dict[str, Any] = {
            "students": (students(),), "teachers": (teachers(),), "batches": 5,
        }  # fmt: skip
        Scenario(**settings)
        with pytest.raises(ValueError, match=why):
            Scenario(**settings | changed)

    @pytest.mark.parametrize(
        ("changed", "why"),
        [
            ({"name": "a/b"}, "without '/'"),
            ({"lower": 16.0}, "lower < upper"),
            ({"teachers_min": 5, "teachers_max": 4}, "teachers_min <= teachers_max"),
            ({"join_s": 5.0, "leave_s": 4.0}, "leaves at 4 s, joins at 5 s"),
            ({"changes": (Change(2.0, 1.0), Change(1.0, 1.0))}, "in the order"),
        ],
    )
    def test_so_it_is_of_a_group(self, changed: dict[str, Any], why: str) -> None:
        with pytest.raises(ValueError, match=why):
            students(**changed)

    def test_any_group_may_say_when_it_ends(self) -> None:
        Scenario((students(batches=3), students(name="other", leave_s=9.0)))
        with pytest.raises(ValueError, match="it would never end"):
            Scenario((students(batches=3), students(name="other")))

    def test_changes_hold_from_their_moment_on(self) -> None:
        changes = (Change(1.0, 0.5), Change(2.0, 0.25))
        student = StudentGroup(
            "s", 1.0, batch=2, overhead_s=0.1, connection_s=0.01, changes=changes
        )
        assert [student.t_s_at(now) for now in (0.0, 1.0, 1.9, 7.0)] == [1.0, 0.5, 0.5, 0.25]
        assert student.step_s(1.0, 3) == pytest.approx(0.1 + 0.03 + 1.0)
        teacher = TeacherGroup("t", 1.0, batch_overhead_s=0.1, changes=changes)
        assert teacher.device_s(2.0, 4) == pytest.approx(1.1)


class TestChance:
    def test_jitter_has_the_mean_1_and_the_deviation_asked_for(self, rng: random.Random) -> None:
        jitter = Jitter(rng, 0.3)
        drawn = [jitter.factor() for _ in range(20_000)]
        assert fmean(drawn) == pytest.approx(1.0, abs=0.02)
        assert pstdev(drawn) == pytest.approx(0.3, abs=0.02)
        assert min(drawn) > 0

    def test_without_jitter_nothing_is_drawn(self) -> None:
        rng = random.Random(1)
        assert [Jitter(rng, 0.0).factor() for _ in range(3)] == [1.0] * 3
        assert rng.random() == random.Random(1).random()

    def test_so_many_leave_in_a_minute(self, rng: random.Random) -> None:
        lives = [lifetime_s(rng, 0.2) for _ in range(20_000)]
        assert fmean(life <= 60 for life in lives) == pytest.approx(0.2, abs=0.02)
        assert fmean(life <= 600 for life in lives) == pytest.approx(1 - 0.8**10, abs=0.02)
        assert all(0 <= lifetime_s(rng, 1.0) < 600 / exp(1) for _ in range(100))
