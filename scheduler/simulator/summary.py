"""What a run comes to: the figures of its result."""

from __future__ import annotations

from .cast import Student
from .control import Control
from .data_plane import DataPlane
from .result import Result, StudentResult, TeachersResult
from .scenario import TeacherGroup


def summary(control: Control, plane: DataPlane) -> Result:
    """The result of a run that is over."""
    control.points.append(control.point())
    trace = control.trace
    students = tuple(_student(student, control, plane) for student in control.students)
    for student in students:
        trace.hash(student)
    return Result(
        virtual_s=control.clock.now,
        students=students,
        teachers=tuple(_teachers(group, control, plane) for group in control.scenario.teachers),
        points=tuple(control.points),
        happenings=tuple(trace.happenings),
        labelled=tuple(trace.labelled),
        stepped=tuple(trace.stepped),
        trace_hash=trace.digest,
        events=control.clock.events,
    )


def _student(student: Student, control: Control, plane: DataPlane) -> StudentResult:
    group, now = student.group, control.clock.now
    if student.began_s is None:
        nothing = (0.0,) * 6
        return StudentResult(student.name, group.name, 0, 0, now, now, *nothing, 0, 0, 0, 0.0)
    tally = plane.tally(student)
    starved_s, blocked_s, source_wait_s = plane.waits(student)
    ended_s = now if student.ended_s is None else student.ended_s
    is_done = student.batches is not None and tally.batches >= student.batches
    measured_s = (tally.last_s if is_done else ended_s) - max(
        student.began_s, control.scenario.warm_up_s
    )
    rate = tally.measured / measured_s if measured_s > 0 else 0.0
    return StudentResult(
        student.name,
        group.name,
        tally.batches,
        tally.batches * group.batch,
        student.began_s,
        ended_s,
        rate,
        rate * group.batch,
        tally.training_s,
        starved_s,
        blocked_s,
        source_wait_s,
        tally.resends,
        tally.hedges,
        plane.report(student).want if group.needs_labels else 0,
        tally.most_volume,
    )


def _teachers(group: TeacherGroup, control: Control, plane: DataPlane) -> TeachersResult:
    now = control.clock.now
    mine = [one for one in control.teachers.values() if one.group is group]
    there_s = sum(teacher.there_until(now) for teacher in mine)
    works = [plane.work(teacher) for teacher in mine]
    busy_s = sum(work.busy_s for work in works)
    return TeachersResult(
        group.name,
        control.lives.started[group.name],
        control.lives.lost[group.name],
        there_s,
        busy_s,
        busy_s / (there_s * group.lanes) if there_s > 0 else 0.0,
        sum(work.batches for work in works),
        there_s / 3600 * group.price_per_hour,
    )
