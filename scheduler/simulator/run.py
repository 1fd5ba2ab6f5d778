"""One run of the simulator: its clock turns until the end; then its result is put together."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from .clock import Clock, Seeding
from .control import Control
from .environment import Environment
from .result import Result, StudentResult, TeachersResult
from .scenario import Scenario, TeacherGroup
from .student import Student
from .trace import Trace


def _summary(control: Control) -> Result:
    """The result of a run that is over."""
    control.points.append(control.point())
    trace = control.trace
    students = tuple(_student(student, control) for student in control.students)
    for student in students:
        trace.hash(student)
    return Result(
        virtual_s=control.clock.now,
        students=students,
        teachers=tuple(_teachers(group, control) for group in control.scenario.teachers),
        points=tuple(control.points),
        happenings=tuple(trace.happenings),
        labelled=tuple(trace.labelled),
        stepped=tuple(trace.stepped),
        trace_hash=trace.digest,
        events=control.clock.events,
    )


def _student(student: Student, control: Control) -> StudentResult:
    group, reader, now = student.group, student.reader, control.clock.now
    has_come = student.began_s is not None
    began_s = now if student.began_s is None else student.began_s
    ended_s = student.ended_s if has_come and student.ended_s is not None else now
    is_done = student.limit is not None and student.batches >= student.limit
    until_s = student.last_s if is_done else ended_s
    measured_s = until_s - max(began_s, control.scenario.warm_up_s)
    rate = student.measured / measured_s if measured_s > 0 else 0.0
    memory = reader.core.memory
    return StudentResult(
        student.name,
        group.name,
        student.batches,
        student.batches * group.batch,
        began_s,
        ended_s,
        rate,
        rate * group.batch,
        student.training_s,
        memory.starved_s,
        memory.blocked_s,
        memory.source_wait_s,
        reader.ledger.resends,
        reader.ledger.hedges,
        reader.core.decision.want if has_come and group.needs_labels else 0,
        reader.most_volume / group.batch_bytes,
    )


def _teachers(group: TeacherGroup, control: Control) -> TeachersResult:
    mine = [one for one in control.lives.teachers.values() if one.group is group]
    there_s = sum(teacher.there_until_now_s for teacher in mine)
    busy_s = sum(teacher.busy_s for teacher in mine)
    return TeachersResult(
        group.name,
        control.lives.started[group.name],
        control.lives.lost[group.name],
        there_s,
        busy_s,
        busy_s / (there_s * group.lanes) if there_s > 0 else 0.0,
        sum(teacher.batches for teacher in mine),
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
    control = Control(Environment(scenario, seeding, clock, Trace(clock, keep_batches)))
    control.begin()
    end_s = inf if scenario.duration_s is None else scenario.duration_s
    while clock.next_at <= end_s and not (control.is_over and end_s == inf):
        clock.step()
        if on_progress is not None and clock.events % PROGRESS_EVERY == 0:
            on_progress(clock.now, control.progress)
    if end_s < inf:
        clock.now = end_s
    return _summary(control)
