"""One run of the simulator: its clock turns until the end; then its result is put together."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .cast import Student
from .clock import Clock, Seeding
from .control import Control
from .data_plane import DataPlane
from .result import Result, StudentResult, TeachersResult
from .scenario import Scenario, TeacherGroup
from .trace import Trace


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


#: Events between two calls of `on_progress`.
PROGRESS_EVERY = 5_000


def simulate(
    scenario: Scenario,
    seeding: Seeding,
    on_progress: Callable[[float, float | None], None] | None = None,
    keep_batches: bool = False,
) -> Result:
    """Run a scenario.

    Args:
        scenario: what to run.
        seeding: makes a generator from a text that alone determines what it draws: pass the class
            `random.Random` (decisions have no randomness of their own, so it is given to them).
        on_progress: called now and then with the virtual seconds that have passed, and the share
            of the run that is done (0 to 1; None: not known).
        keep_batches: keep every request and step in the result.

    Returns:
        The same for the same scenario and seed, to the last bit.
    """
    clock = Clock()
    trace = Trace(clock, keep_batches)
    data = DataPlane()
    control = Control(scenario, seeding, clock, trace, data)
    control.begin()
    end_s = inf if scenario.duration_s is None else scenario.duration_s
    while clock.next_at <= end_s and not (control.is_over and end_s == inf):
        clock.step()
        if on_progress is not None and clock.events % PROGRESS_EVERY == 0:
            on_progress(clock.now, control.progress)
    if end_s < inf:
        clock.now = end_s
    return summary(control, data)
