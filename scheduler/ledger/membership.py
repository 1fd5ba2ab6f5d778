"""Teachers join, change, leave or are ejected: what that does to their rows."""

from __future__ import annotations

from .events import (
    Ejected,
    InvalidateTeacher,
    Readmitted,
    RequestSizeChanged,
    Resumed,
    TeacherJoined,
    TeacherLost,
    TeacherRevoked,
    WindowChanged,
)
from .state import POISONED, RELEASED, Teacher
from .tables import Tables

Change = TeacherRevoked | WindowChanged | RequestSizeChanged | Resumed | Ejected | Readmitted


def join(tables: Tables, event: TeacherJoined) -> None:
    """A teacher is there, or has new figures."""
    teacher = tables.teachers.get(event.teacher)
    if teacher is None:
        tables.joined += 1
        teacher = Teacher(event.teacher, tables.joined, event.window, labels=event.has_labelled)
        tables.teachers[teacher.name] = teacher
    teacher.window, teacher.most_rows = event.window, event.most_rows
    teacher.on_trial = event.on_trial
    teacher.revoked = teacher.resting = False
    teacher.refused = 0
    tables.forget_refusals(teacher.name)
    if event.seconds_per_row is not None:
        teacher.seconds_per_row = event.seconds_per_row
    tables.refresh(teacher)


def change(tables: Tables, event: Change) -> None:
    """One thing about a teacher is different now."""
    if (teacher := tables.teachers.get(event.teacher)) is None:
        return
    match event:
        case TeacherRevoked():
            teacher.revoked = True
        case WindowChanged(_, window):
            teacher.window = window
        case RequestSizeChanged(_, most_rows):
            teacher.most_rows = most_rows
        case Resumed():
            teacher.resting = False
        case Ejected():
            teacher.on_trial = True
        case Readmitted():
            teacher.on_trial = False
    tables.refresh(teacher)


def lose(tables: Tables, event: TeacherLost) -> None:
    """A teacher is gone: the rows that nobody else has go to the front."""
    if (teacher := tables.teachers.pop(event.teacher, None)) is not None:
        tables.open.pop(teacher.name, None)
        tables.forget_refusals(teacher.name)
        for request in teacher.in_flight.values():
            tables.give_up(request, teacher)


def invalidate(tables: Tables, event: InvalidateTeacher) -> None:
    """Nothing that a teacher said counts, unless it is released."""
    if (teacher := tables.teachers.get(event.teacher)) is not None:
        teacher.on_trial = True
        tables.refresh(teacher)
        for request in teacher.in_flight.values():
            tables.give_up(request, teacher)
    for batch in tables.batches.values():
        if batch.stage in (POISONED, RELEASED):
            continue
        if doubted := batch.disown(event.teacher):
            tables.unsettle(batch, doubted)
