"""One step of the rule: events in, the new state and what students must be told out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain

from . import contents
from .board import Board, boards, silent_teachers
from .events import AssignmentEvent, Change
from .intake import Intake
from .repair import ROUNDS, grow, repair
from .state import AssignmentState, StudentEntry
from .words import Words


def reduce(
    state: AssignmentState, events: Sequence[AssignmentEvent], now: float
) -> tuple[AssignmentState, tuple[Change, ...]]:
    """Take a batch of events in: the new state, and a change for each student that must be told.

    A student is told when its teachers change, when one that it holds or still finishes with is
    lost, when its content or the one to come changes, when it waits between two epochs while there
    is an upgrade, and once when it is new. Events that say nothing new return `state` itself.

    Args:
        state: what was known.
        events: what has happened, in order; many at once cost little more than one.
        now: seconds of any monotonic clock.

    Raises:
        ValueError: a student wants less than nothing.
    """
    facts = Intake(state, now)
    facts.take(events)
    if not facts.changed:
        return state, ()
    _settle_contents(facts)
    notes = _assign(facts) if facts.moved else {}
    changes = tuple(_changes(state, facts, Words(facts, notes)))
    after = AssignmentState(
        facts.teachers, facts.students, facts.anchor, facts.plan, facts.recovering
    )
    return after, changes


def next_due(state: AssignmentState) -> float | None:
    """When time alone changes something next, so that `Ticked` is due; None: never."""
    wishes = (entry.steady.due for entry in state.students.values())
    dues = chain(wishes, state.teachers.doubted.values())
    return min((due for due in dues if due is not None), default=None)


def content_of(state: AssignmentState, student_id: str) -> str:
    """What a student is labelled with; "" where it is unknown."""
    entry = state.students.get(student_id)
    return entry.content_id if entry else ""


def prevailing_content(state: AssignmentState) -> tuple[str, int, int]:
    """What most students are on, else what most teachers serve; and how many of each that are."""
    return contents.prevailing(state.teachers, state.students)


def plan_is_complete(state: AssignmentState) -> bool:
    """Whether an upgrade is on, and no student is on another content any more."""
    return contents.is_complete(state)


def _settle_contents(facts: Intake) -> None:
    if not (facts.moved or facts.between):
        return
    facts.plan = contents.settle_plan(facts.plan, facts.teachers, facts.students)
    served = facts.teachers.pools.keys()
    for name, entry in facts.students.items():
        settled = contents.settle(
            entry, facts.plan, served, name in facts.between, facts.recovering
        )
        if settled is not entry:
            facts.students[name] = settled
            facts.moved = True


def _assign(facts: Intake) -> dict[str, list[str]]:
    """Let the rule work on each content; returns what it did to whom."""
    notes: dict[str, list[str]] = {}
    new: Set[str] = facts.new
    silent = silent_teachers(facts.students)
    for _ in range(ROUNDS):
        for board in boards(facts.teachers, facts.students, silent, facts.recovering, new):
            if facts.recovering:
                grow(board)
            else:
                repair(board)
            _read_back(facts, board, notes)
        before, silent, new = silent, silent_teachers(facts.students), frozenset()
        if silent <= before:
            break  # nobody has left a teacher to those to whom it gives no labels
    return notes


def _read_back(facts: Intake, board: Board, notes: dict[str, list[str]]) -> None:
    for seat in board.seats:
        entry = facts.students[seat.name]
        teachers = tuple(seat.held)
        if seat.aside:
            place = {name: index for index, name in enumerate(entry.teachers)}
            both = (*teachers, *seat.aside)
            teachers = tuple(sorted(both, key=lambda name: place.get(name, len(place))))
        if entry.unavailable:
            unavailable = entry.unavailable.intersection(teachers) - seat.released
            entry = facts.students[seat.name] = replace(entry, unavailable=unavailable)
        if teachers == entry.teachers and not entry.finishing and entry.labelled >= bool(teachers):
            if seat.notes:
                notes.setdefault(seat.name, []).extend(seat.notes)
            continue
        held = dict.fromkeys((*entry.finishing, *entry.teachers))
        finishing = tuple(name for name in held if name in facts.teachers and name not in teachers)
        if (teachers, finishing) != (entry.teachers, entry.finishing):
            labelled = entry.labelled or bool(teachers)
            facts.students[seat.name] = replace(
                entry, teachers=teachers, finishing=finishing, labelled=labelled
            )
        elif teachers and not entry.labelled:
            facts.students[seat.name] = replace(entry, labelled=True)
        if seat.notes:
            notes.setdefault(seat.name, []).extend(seat.notes)


def _changes(before: AssignmentState, facts: Intake, words: Words) -> Iterator[Change]:
    for name, entry in facts.students.items():
        old = None if name in facts.new else before.students.get(name)
        lost = tuple(t for t in (*old.teachers, *old.finishing) if t in facts.lost) if old else ()
        answered = entry.upgrading and name in facts.between
        if old is None or lost or answered or _news(old, entry):
            yield Change(
                name,
                entry.teachers,
                lost,
                entry.content_id,
                entry.next_told,
                entry.data_epoch,
                words.about(name, old, entry),
            )


def _news(old: StudentEntry, new: StudentEntry) -> bool:
    was = old.teachers, old.content_id, old.next_told
    return old is not new and was != (new.teachers, new.content_id, new.next_told)
