"""Who serves whom: a reducer (state, event) -> (state, changes) over one service.

The first rule: students are served in order of arrival, each with as many teachers as it wants.
Nobody goes without while another has two; no teacher serves two students unless students outnumber
teachers, and then all are shared as evenly as can be. Whoever holds a teacher keeps it if the
counts allow: a set changes only where it must. What is not wanted any more is free for others.

Assignments are advice for balance, never a lock, and any manager computes the same ones from the
same events. A richer rule (fair over jobs, aware of speeds) takes the place of `_assign` behind the
same face.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heapreplace
from itertools import islice
from typing import TypeVar, assert_never

from .assignment_events import (
    AssignmentEvent,
    AssignmentState,
    Change,
    StudentEntry,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherEntry,
    TeacherUp,
)

__all__ = [
    "AssignmentEvent",
    "AssignmentState",
    "Change",
    "StudentEntry",
    "StudentGone",
    "StudentReported",
    "TeacherDown",
    "TeacherDraining",
    "TeacherEntry",
    "TeacherUp",
    "reduce",
]


_Entry = TypeVar("_Entry")


def reduce(
    state: AssignmentState, event: AssignmentEvent
) -> tuple[AssignmentState, tuple[Change, ...]]:
    """Take one event in: the new state, and a change for each student that must be told.

    A student is told when its teachers change, when one that it holds is lost, and once when it is
    new. Events that say nothing new return `state` itself.

    Raises:
        ValueError: a student wants less than nothing.
    """
    after, cause, lost = _apply(state, event)
    if after is state:
        return state, ()
    after = AssignmentState(after.teachers, _assign(after))
    return after, tuple(_changes(state, after, cause, lost))


def _apply(
    state: AssignmentState, event: AssignmentEvent
) -> tuple[AssignmentState, str, frozenset[str]]:
    """The facts of the event, before anyone is assigned: (state, cause in words, teachers lost)."""
    teachers, students = state.teachers, state.students
    lost: frozenset[str] = frozenset()
    match event:
        case TeacherUp(name, incarnation):
            known = teachers.get(name)
            entry = TeacherEntry(incarnation)
            if entry == known:
                return state, "", lost
            cause = f"teacher {name} serves"
            if known is not None and known.incarnation != incarnation:
                lost = frozenset([name])
                cause = f"teacher {name} was started anew"
            teachers = {**teachers, name: entry}
        case TeacherDraining(name):
            if name not in teachers or teachers[name].draining:
                return state, "", lost
            cause = f"teacher {name} drains"
            teachers = {**teachers, name: replace(teachers[name], draining=True)}
        case TeacherDown(name, is_lost):
            if name not in teachers:
                return state, "", lost
            cause = f"teacher {name} was lost" if is_lost else f"teacher {name} has left"
            lost = frozenset([name] if is_lost else [])
            teachers = _without(teachers, name)
        case StudentReported(name, want, holding):
            if want < 0:
                raise ValueError(f"student {name} cannot want {want} teachers")
            student = students.get(name)
            if student is not None and student.want == want:
                return state, "", lost
            cause = f"student {name} wants {want}"
            if student is None:
                student = StudentEntry(want, tuple(dict.fromkeys(holding)))
            students = {**students, name: replace(student, want=want)}
        case StudentGone(name):
            if name not in students:
                return state, "", lost
            cause = f"student {name} is gone"
            students = _without(students, name)
        case _:
            assert_never(event)
    return AssignmentState(teachers, students), cause, lost


def _assign(state: AssignmentState) -> dict[str, StudentEntry]:
    """The rule: every student with the teachers that it is to have."""
    serving = state.serving
    asking = {name: entry for name, entry in state.students.items() if entry.want > 0}
    sets = _apart(asking, serving) if len(asking) <= len(serving) else _shared(asking, serving)
    return {
        name: _with_teachers(entry, tuple(sets.get(name, ())), state.teachers)
        for name, entry in state.students.items()
    }


def _apart(asking: Mapping[str, StudentEntry], serving: Sequence[str]) -> dict[str, list[str]]:
    """Enough teachers: one for each student, then in order of arrival up to what each wants."""
    spare = len(serving) - len(asking)
    free = dict.fromkeys(serving)
    counts: dict[str, int] = {}
    sets: dict[str, list[str]] = {}
    for name, entry in asking.items():
        counts[name] = 1 + min(entry.want - 1, spare)
        spare -= counts[name] - 1
        sets[name] = [teacher for teacher in entry.teachers if teacher in free][: counts[name]]
        for teacher in sets[name]:
            del free[teacher]
    unheld = iter(free)  # by now nobody's: no filling takes what a later student holds
    for name, teachers in sets.items():
        teachers.extend(islice(unheld, counts[name] - len(teachers)))
    return sets


def _shared(asking: Mapping[str, StudentEntry], serving: Sequence[str]) -> dict[str, list[str]]:
    """More students than teachers: one for each student, and each teacher with as many as another.

    So `fuller` teachers have one student more than the rest, and who holds a place keeps it.
    """
    if not serving:
        return {}
    least, fuller = divmod(len(asking), len(serving))
    load = dict.fromkeys(serving, 0)
    sets: dict[str, list[str]] = {}
    for name, entry in asking.items():
        for teacher in entry.teachers:
            if load.get(teacher, least + 1) < least + (fuller > 0):
                fuller -= load[teacher] == least
                load[teacher] += 1
                sets[name] = [teacher]
                break
    heap = [(count, order, teacher) for order, (teacher, count) in enumerate(load.items())]
    heapify(heap)
    for name in asking:
        if name not in sets:
            count, order, teacher = heap[0]
            heapreplace(heap, (count + 1, order, teacher))
            sets[name] = [teacher]
    return sets


def _with_teachers(
    entry: StudentEntry, teachers: tuple[str, ...], known: Mapping[str, TeacherEntry]
) -> StudentEntry:
    held = dict.fromkeys((*entry.finishing, *entry.teachers))
    finishing = tuple(name for name in held if name in known and name not in teachers)
    if (teachers, finishing) == (entry.teachers, entry.finishing):
        return entry
    return replace(entry, teachers=teachers, finishing=finishing)


def _changes(
    before: AssignmentState, after: AssignmentState, cause: str, lost: frozenset[str]
) -> Iterator[Change]:
    for name, entry in after.students.items():
        old = before.students.get(name)
        affected = tuple(t for t in (*old.teachers, *old.finishing) if t in lost) if old else ()
        if old is None or affected or old.teachers != entry.teachers:
            yield Change(name, entry.teachers, affected, f"{cause}: {_in_words(entry, after)}")


def _in_words(entry: StudentEntry, state: AssignmentState) -> str:
    words = f"{len(entry.teachers)} of {entry.want} wanted"
    if len(entry.teachers) >= entry.want:
        return words
    asking = sum(student.want > 0 for student in state.students.values())
    return f"{words}, as there are {len(state.serving)} teachers for {asking} students"


def _without(entries: Mapping[str, _Entry], name: str) -> dict[str, _Entry]:
    return {key: entry for key, entry in entries.items() if key != name}
