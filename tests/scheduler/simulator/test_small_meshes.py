"""The exact plane against what can be computed by hand."""

from __future__ import annotations

import pytest

from edl.scheduler.simulator import Change, Link
from edl.tests.scheduler.simulator.meshes import (
    BEGIN_S,
    FREE,
    STEP_S,
    WORK_S,
    run,
    students,
    teachers,
)


class TestRates:
    def test_without_labels_a_student_trains_at_its_own_pace(self) -> None:
        result = run(students(needs_labels=False), None)
        (student,) = result.students
        assert result.virtual_s == pytest.approx(20 * STEP_S)
        assert student.batches_per_s == pytest.approx(1 / STEP_S)
        assert student.samples_per_s == pytest.approx(8 / STEP_S)
        assert student.training_s == pytest.approx(20 * STEP_S)
        assert student.starved_s == 0.0
        assert (student.batches, student.samples, student.want) == (20, 160, 0)

    def test_overheads_are_of_each_step_and_of_each_request(self) -> None:
        (student,) = run(students(needs_labels=False, overhead_s=0.03), None).students
        assert student.batches_per_s == pytest.approx(1 / (STEP_S + 0.03))
        result = run(students(), teachers(batch_overhead_s=0.05))
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * (WORK_S + 0.05) + STEP_S)

    def test_one_teacher_labels_without_a_pause(self) -> None:
        result = run(students(), teachers())
        (student,), (group,) = result.students, result.teachers
        assert result.virtual_s == pytest.approx(BEGIN_S + 20 * WORK_S + STEP_S)
        assert group.busy_s == pytest.approx(20 * WORK_S)
        assert (group.batches, group.started, group.lost) == (20, 1, 0)
        waits_s = result.virtual_s - 20 * STEP_S
        assert student.starved_s == pytest.approx(waits_s, abs=1e-6)

    def test_several_teachers_label_side_by_side(self) -> None:
        result = run(students(teachers_min=2), teachers(2))
        assert result.virtual_s == pytest.approx(BEGIN_S + 10 * WORK_S + 2 * STEP_S)

    def test_with_more_teachers_than_needed_the_student_sets_the_pace(self) -> None:
        result = run(students(teachers_min=4), teachers(4))
        # The first teacher that can be sent to gets the first two batches: both fit its window.
        assert result.virtual_s == pytest.approx(BEGIN_S + 2 * WORK_S + 19 * STEP_S)
        assert result.students[0].blocked_s == 0.0

    def test_each_connection_costs_a_step_its_time(self) -> None:
        student = students(teachers_min=4, connection_s=0.005)
        result = run(student, teachers(4))
        step_s = STEP_S + 4 * 0.005
        assert result.virtual_s == pytest.approx(BEGIN_S + 2 * WORK_S + 19 * step_s)

    def test_lanes_work_side_by_side(self) -> None:
        result = run(students(), teachers(lanes=2))
        assert result.virtual_s == pytest.approx(BEGIN_S + 10 * WORK_S + 2 * STEP_S)
        there_s = result.virtual_s * 2
        assert result.teachers[0].utilization == pytest.approx(20 * WORK_S / there_s)

    def test_students_share_a_teacher(self) -> None:
        result = run(students(2), teachers())
        assert result.teachers[0].busy_s == pytest.approx(40 * WORK_S)
        assert result.virtual_s == pytest.approx(BEGIN_S + 40 * WORK_S + STEP_S)

    def test_a_slow_source_sets_the_pace(self) -> None:
        result = run(students(teachers_min=3, source_s=0.2), teachers(3))
        assert result.virtual_s == pytest.approx(20 * 0.2 + WORK_S + STEP_S)
        (student,) = result.students
        assert student.source_wait_s > 0.5 * (result.virtual_s - 20 * STEP_S)

    def test_the_buffer_is_bounded_by_ut_and_what_is_in_flight(self) -> None:
        student = students(teachers_min=4, upper=5.0, lower=2.0)
        result = run(student, teachers(4), batches=60)
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

    def test_a_students_link_is_shared_a_teachers_is_its_own(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=0.0, teachers_min=4, link=FREE)
        thin = Link(bandwidth_bytes_per_s=40_000.0, latency_s=0.0)  # 0.2 s a batch
        theirs = run(student, teachers(4, link=thin))
        assert theirs.virtual_s == pytest.approx(BEGIN_S + 0.2 + 2 * WORK_S + 19 * STEP_S)

    def test_transfers_are_hidden_behind_work(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=500.0)
        link = Link(bandwidth_bytes_per_s=80_000.0, latency_s=0.0)  # 0.1 s there, 0.05 s back
        result = run(student, teachers(), link=link)
        assert result.virtual_s == pytest.approx(BEGIN_S + 0.1 + 20 * WORK_S + 0.05 + STEP_S)

    def test_two_in_flight_do_not_hide_transfers_that_take_longer_than_the_work(self) -> None:
        student = students(input_bytes=1000.0, label_bytes=500.0)
        link = Link(bandwidth_bytes_per_s=40_000.0, latency_s=0.0)  # 0.2 s there, 0.1 s back
        result = run(student, teachers(), link=link, window_max=2)
        # Each of the two is 0.55 s on its way there and back; the second follows 0.25 s later.
        assert result.virtual_s == pytest.approx(BEGIN_S + 10 * 0.55 + 0.25 + STEP_S)
        wider = run(student, teachers(), link=link, batches=400)
        narrow = run(student, teachers(), link=link, batches=400, window_max=2)
        assert wider.virtual_s < 0.95 * narrow.virtual_s


class TestChanges:
    def test_a_student_speeds_up(self) -> None:
        change = Change(1.0, STEP_S / 2 / 8)
        result = run(students(needs_labels=False, changes=(change,)), None)
        # Steps that begin before are of the old speed: 10 or 11 of them, as 10 x 0.1 may round.
        assert result.virtual_s == pytest.approx(1.5, abs=STEP_S / 2 + 1e-6)

    def test_a_teacher_slows_down(self) -> None:
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

    def test_jitter_makes_nothing_slower_on_average(self) -> None:
        (student,) = run(students(needs_labels=False, jitter=0.5), None, batches=4000).students
        assert student.batches_per_s == pytest.approx(1 / STEP_S, rel=0.05)

    def test_rates_are_measured_from_warm_up_on(self) -> None:
        change = Change(2.0 - 1e-6, STEP_S / 2 / 8)
        student = students(needs_labels=False, changes=(change,))
        (measured,) = run(student, None, batches=60, warm_up_s=2.05).students
        assert measured.batches_per_s == pytest.approx(2 / STEP_S, rel=0.03)
        (whole,) = run(student, None, batches=60).students
        assert whole.batches_per_s == pytest.approx(60 / 4.0, rel=0.01)
