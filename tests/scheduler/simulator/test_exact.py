"""The exact plane of the simulator."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import pairwise
from math import exp
from statistics import fmean, pstdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.autoscale import AutoscaleConfig
from edl.scheduler.simulator import (
    Change,
    Fault,
    Link,
    Result,
    Scenario,
    StudentGroup,
    TeacherGroup,
    simulate,
)
from edl.scheduler.simulator.chance import Jitter, lifetime_s
from edl.tests.scheduler.simulator.meshes import (
    BEGIN_S,
    FREE,
    STEP_S,
    WORK_S,
    kinds,
    run,
    students,
    teachers,
)


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
    def test_invalid_scenarios_are_refused(self, changed: dict[str, Any], why: str) -> None:
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
    def test_invalid_groups_are_refused(self, changed: dict[str, Any], why: str) -> None:
        with pytest.raises(ValueError, match=why):
            students(**changed)

    def test_any_group_may_say_when_it_ends(self) -> None:
        Scenario((students(batches=3), students(name="other", leave_s=9.0)))
        with pytest.raises(ValueError, match="it would never end"):
            Scenario((students(batches=3), students(name="other")))

    def test_changes_take_effect_at_their_time(self) -> None:
        changes = (Change(1.0, 0.5), Change(2.0, 0.25))
        student = StudentGroup(
            "s", 1.0, batch=2, overhead_s=0.1, connection_s=0.01, changes=changes
        )
        assert [student.t_s_at(now) for now in (0.0, 1.0, 1.9, 7.0)] == [1.0, 0.5, 0.5, 0.25]
        assert student.step_s(1.0, 3) == pytest.approx(0.1 + 0.03 + 1.0)
        teacher = TeacherGroup("t", 1.0, batch_overhead_s=0.1, changes=changes)
        assert teacher.device_s(2.0, 4) == pytest.approx(1.1)


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

    def test_without_jitter_nothing_is_drawn(self) -> None:
        rng = random.Random(1)
        assert [Jitter(rng, 0.0).factor() for _ in range(3)] == [1.0] * 3
        assert rng.random() == random.Random(1).random()


class TestRates:
    def test_student_without_labels(self) -> None:
        result = run(students(needs_labels=False), None)
        (student,) = result.students
        assert result.virtual_s == pytest.approx(20 * STEP_S)
        assert student.batches_per_s == pytest.approx(1 / STEP_S)
        assert student.samples_per_s == pytest.approx(8 / STEP_S)
        assert student.training_s == pytest.approx(20 * STEP_S)
        assert student.starved_s == 0.0
        assert (student.batches, student.samples, student.want) == (20, 160, 0)

    def test_overheads_and_connections(self) -> None:
        (student,) = run(students(needs_labels=False, overhead_s=0.03), None).students
        assert student.batches_per_s == pytest.approx(1 / (STEP_S + 0.03))
        result = run(students(), teachers(batch_overhead_s=0.05))
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * (WORK_S + 0.05) + STEP_S)
        group = students(teachers_min=4, connection_s=0.005)
        result = run(group, teachers(4))
        step_s = STEP_S + 4 * 0.005
        assert result.virtual_s == pytest.approx(BEGIN_S + 2 * WORK_S + 19 * step_s)

    def test_one_teacher_labels_without_a_pause(self) -> None:
        result = run(students(), teachers())
        (student,), (group,) = result.students, result.teachers
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * WORK_S + STEP_S)
        assert group.busy_s == pytest.approx(20 * WORK_S)
        assert (group.batches, group.started, group.lost) == (20, 1, 0)
        waits_s = result.virtual_s - 20 * STEP_S
        assert student.starved_s == pytest.approx(waits_s, abs=1e-6)

    def test_student_sets_the_pace(self) -> None:
        result = run(students(teachers_min=4), teachers(4))
        # The first teacher that can be sent to gets the first two batches: both fit its window.
        assert result.virtual_s == pytest.approx(BEGIN_S + 2 * WORK_S + 19 * STEP_S)
        assert result.students[0].blocked_s == 0.0

    def test_lanes_work_side_by_side(self) -> None:
        result = run(students(), teachers(lanes=2))
        assert result.virtual_s == pytest.approx(BEGIN_S + 10 * WORK_S + 2 * STEP_S)
        there_s = result.virtual_s * 2
        assert result.teachers[0].utilization == pytest.approx(20 * WORK_S / there_s)

    def test_buffer_and_source_bound_the_pace(self) -> None:
        result = run(students(teachers_min=3, source_s=0.2), teachers(3))
        assert result.virtual_s == pytest.approx(20 * 0.2 + WORK_S + STEP_S)
        (student,) = result.students
        assert student.source_wait_s > 0.5 * (result.virtual_s - 20 * STEP_S)
        slow = students(teachers_min=4, upper=5.0, lower=2.0)
        result = run(slow, teachers(4), batches=60)
        assert 5 < result.students[0].most_volume <= 5 + 4 * 2
        assert result.students[0].blocked_s > 0

    def test_requests_are_cut_and_joined(self) -> None:
        result = run(students(request_samples=4), teachers(), keep_batches=True)
        assert {one.rows for one in result.labelled} == {4}
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * WORK_S + STEP_S)
        assert result.teachers[0].batches == 20


class TestLinks:
    def test_latency_delays_the_first_batch_alone(self) -> None:
        result = run(students(), teachers(), link=Link(latency_s=0.01))
        # Told, asked and answered: the windows hide all that follows.
        assert result.virtual_s == pytest.approx(BEGIN_S + 3 * 0.01 + 20 * WORK_S + STEP_S)

    def test_a_thin_link_sets_the_pace(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=0.0, teachers_min=3)
        link = Link(bandwidth_bytes_per_s=20_000.0, latency_s=0.0)  # 0.4 s a batch
        result = run(student, teachers(3, link=FREE), link=link)
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * 0.4 + WORK_S + STEP_S)

    def test_own_links_of_teachers(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=0.0, teachers_min=4, link=FREE)
        thin = Link(bandwidth_bytes_per_s=40_000.0, latency_s=0.0)  # 0.2 s a batch
        theirs = run(student, teachers(4, link=thin))
        assert theirs.virtual_s == pytest.approx(BEGIN_S + 0.2 + 2 * WORK_S + 19 * STEP_S)

    def test_window_of_two_does_not_hide_slow_links(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=500.0)
        link = Link(bandwidth_bytes_per_s=40_000.0, latency_s=0.0)  # 0.2 s there, 0.1 s back
        result = run(student, teachers(), link=link, window_max=2)
        # Each of the two is 0.55 s on its way there and back; the second follows 0.25 s later.
        assert result.virtual_s == pytest.approx(BEGIN_S + 10 * 0.55 + 0.25 + STEP_S)
        wider = run(student, teachers(), link=link, batches=150)
        narrow = run(student, teachers(), link=link, batches=150, window_max=2)
        assert wider.virtual_s < 0.95 * narrow.virtual_s


class TestChanges:
    def test_changed_speeds(self) -> None:
        change = Change(1.0, STEP_S / 2 / 8)
        result = run(students(needs_labels=False, changes=(change,)), None)
        # Steps that begin before are of the old speed: 10 or 11 of them, as 10 x 0.1 may round.
        assert result.virtual_s == pytest.approx(1.5, abs=STEP_S / 2 + 1e-6)
        change = Change(BEGIN_S + 9.5 * WORK_S, 2 * WORK_S / 8)
        result = run(students(), teachers(changes=(change,)))
        assert result.virtual_s == pytest.approx(BEGIN_S + 30 * WORK_S + STEP_S)

    def test_ranks_of_one_job_step_together(self) -> None:
        result = run(students(3, jitter=0.3, needs_labels=False, together=True), None)
        ends = {student.ended_s for student in result.students}
        assert len(ends) == 1
        alone = run(students(3, jitter=0.3, needs_labels=False), None)
        assert len({student.ended_s for student in alone.students}) == 3
        assert max(student.ended_s for student in alone.students) < ends.pop()

    def test_rates_are_measured_from_warm_up_on(self) -> None:
        change = Change(2.0 - 1e-6, STEP_S / 2 / 8)
        student = students(needs_labels=False, changes=(change,))
        (measured,) = run(student, None, batches=60, warm_up_s=2.05).students
        assert measured.batches_per_s == pytest.approx(2 / STEP_S, rel=0.03)
        (whole,) = run(student, None, batches=60).students
        assert whole.batches_per_s == pytest.approx(60 / 4.0, rel=0.01)


FAULTS = st.builds(
    lambda at_s, group, kind, count, for_s: Fault(
        at_s, group, "crash" if (group, kind) == ("s", "hang") else kind, count, for_s
    ),
    st.sampled_from([0.0, 0.3, 1.0, 2.5, 4.0]),
    st.sampled_from(["t", "t", "s"]),
    st.sampled_from(["crash", "hang", "drain", "slow"]),
    st.integers(1, 3),
    st.sampled_from([None, 0.5, 3.0]),
)


MESHES = st.builds(
    lambda student, teacher, **settings: Scenario(
        (student,), (teacher,), duration_s=10.0, ttl_s=1.0, **settings
    ),
    st.builds(
        students,
        st.integers(1, 3),
        t_s_s=st.sampled_from([0.001, 0.02]),
        overhead_s=st.sampled_from([0.03, 0.1]),
        jitter=st.sampled_from([0.0, 0.5]),
        source_s=st.sampled_from([0.0, 0.2]),
        request_samples=st.sampled_from([None, 3, 20]),
        upper=st.sampled_from([0.5, 4.0]),
        lower=st.just(0.2),
        batches=st.sampled_from([None, 1, 20]),
        together=st.booleans(),
        join_every_s=st.sampled_from([0.0, 1.0]),
        leave_s=st.sampled_from([None, 6.0]),
    ),
    st.builds(
        teachers,
        st.sampled_from([0, 1, 2, 5]),
        t_t_s=st.sampled_from([1e-9, 0.01, 0.1]),
        lanes=st.integers(1, 2),
        jitter=st.sampled_from([0.0, 0.5]),
        leave_per_minute=st.sampled_from([0.0, 1.0]),
        leaves_by=st.sampled_from(["crash", "hang", "drain"]),
        back_after_s=st.sampled_from([None, 0.0]),
        start_s=st.sampled_from([0.0, 1.0]),
    ),
    seed=st.integers(0, 100),
    link=st.sampled_from([FREE, Link(1e7, 0.01, 0.5)]),
    autoscale=st.sampled_from([None, AutoscaleConfig(max=3, freeze_s=2.0, idle_to_zero_s=1.0)]),
    faults=st.lists(FAULTS, max_size=4).map(tuple),
)


def _keeps_to_its_settings(result: Result, config: AutoscaleConfig) -> None:
    assert all(point.desired is None or point.desired <= config.max for point in result.points)
    _, *changed = (at for at, _ in kinds(result, "desired"))  # the first says what there is
    assert all(later - earlier >= config.freeze_s for earlier, later in pairwise(changed))


class TestLaws:
    @given(MESHES)
    def test_each_batch_is_trained_once_in_order(self, scenario: Scenario) -> None:
        result = simulate(scenario, random.Random, keep_batches=True)

        assert result.virtual_s == 10.0
        steps, rows = defaultdict(list), Counter[str]()
        for step in result.stepped:
            steps[step.student].append(step.batch)
        for answer in result.labelled:
            rows[answer.student] += answer.rows * answer.used
        for student in result.students:
            assert steps[student.name] == list(range(student.batches))
            pulled = scenario.students[0].batches or 10**9
            assert student.samples <= rows[student.name] <= pulled * scenario.students[0].batch
            there_s = student.ended_s - student.began_s
            assert student.training_s + student.starved_s <= there_s + 1e-6
        (group,) = result.teachers
        assert 0 <= group.busy_s <= group.there_s * scenario.teachers[0].lanes + 1e-6
        if scenario.autoscale is not None:
            _keeps_to_its_settings(result, scenario.autoscale)
