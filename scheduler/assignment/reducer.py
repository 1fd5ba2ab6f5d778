"""One step of the rule: events in, the new state and what students must be told out, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain

from .board import Board, boards, silent_teachers
from .events import AssignmentEvent, Change
from .fleet import AssignmentState, StudentEntry
from .intake import Intake, settle_contents
from .repair import ROUNDS, grow, repair


def _reason(facts: Intake, name: str, old: StudentEntry | None, new: StudentEntry) -> str:
    """Why a student has what it has, and whether that is what it wants: for an operator."""
    why, had = facts.why, old.teachers if old else ()
    going = (*had, *old.finishing) if old else ()
    causes = [
        why[teacher]
        for teacher in going
        if teacher in why and (teacher in facts.lost or teacher not in new.teachers)
    ]
    if had != new.teachers:
        causes += [why[teacher] for teacher in had if teacher in facts.turned]
    if old is None or (not causes and name in why):
        causes.append(why.get(name, f"student {name} wants {new.want}"))
    causes += _about_content(old, new)
    notes = facts.notes.get(name, [])
    causes += notes
    told = {word.rstrip(",") for note in notes for word in note.split()}
    for teacher in new.teachers:
        if teacher not in had and teacher not in told and old is not None:
            causes.append(why.get(teacher, f"teacher {teacher} was free"))
    if not causes:
        causes.append(f"student {name} begins epoch {new.data_epoch} of its data")
    return f"{'; '.join(list(dict.fromkeys(causes))[:4])}: {_count(facts, new)}"


def _count(facts: Intake, entry: StudentEntry) -> str:
    has = f"{len(entry.teachers)} of {entry.want} wanted"
    if len(entry.teachers) >= entry.want:
        return has
    content = entry.content_id
    serving, asking = len(facts.pools.get(content, ())), facts.asking[content]
    if not serving:
        return f"{has}, as no teacher serves{f' {content}' if content else ''}"
    teachers = "1 teacher serves" if serving == 1 else f"{serving} teachers serve"
    students = "1 student" if asking == 1 else f"{asking} students"
    return f"{has}, as {teachers} {students}"


def _about_content(old: StudentEntry | None, new: StudentEntry) -> list[str]:
    if old is None:
        return []
    if old.content_id != new.content_id and old.labelled:
        return [f"moves from content {old.content_id} to {new.content_id}"]
    if new.next_told and old.next_told != new.next_told:
        return [f"moves to content {new.next_told} with its next epoch"]
    if old.next_told and not new.next_told and old.content_id == new.content_id:
        return [f"stays with content {new.content_id}"]
    return []


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
    settle_contents(facts)
    if facts.moved:
        _assign(facts)
    changes = tuple(_changes(state, facts))
    after = AssignmentState(
        facts.teachers, facts.students, facts.anchor, facts.plan, facts.recovering
    )
    return after, changes


def next_due(state: AssignmentState) -> float | None:
    """When time alone changes something next, so that `Ticked` is due; None: never."""
    wishes = (entry.wish.due for entry in state.students.values())
    dues = chain(wishes, (entry.pace.due for entry in state.teachers.values()))
    return min((due for due in dues if due is not None), default=None)


def content_of(state: AssignmentState, student_id: str) -> str:
    """What a student is labelled with; "" where it is unknown."""
    entry = state.students.get(student_id)
    return entry.content_id if entry else ""


def _assign(facts: Intake) -> None:
    """Let the rule work on each content."""
    new: Set[str] = facts.new
    silent = silent_teachers(facts.students)
    for _ in range(ROUNDS):
        for board in boards(
            facts.teachers, facts.pools, facts.students, silent, facts.recovering, new
        ):
            if facts.recovering:
                grow(board)
            else:
                repair(board)
            _read_back(facts, board)
        before, silent, new = silent, silent_teachers(facts.students), frozenset()
        if silent <= before:
            break  # nobody has left a teacher to those to whom it gives no labels


def _read_back(facts: Intake, board: Board) -> None:
    for seat in board.seats:
        if seat.notes:
            facts.notes.setdefault(seat.name, []).extend(seat.notes)
        entry = facts.students[seat.name]
        teachers = tuple(seat.held)
        if seat.aside:
            place = {name: index for index, name in enumerate(entry.teachers)}
            both = (*teachers, *seat.aside)
            teachers = tuple(sorted(both, key=lambda name: place.get(name, len(place))))
        if entry.unavailable:
            unavailable = entry.unavailable.intersection(teachers) - seat.released
            entry = facts.students[seat.name] = replace(entry, unavailable=unavailable)
        if teachers != entry.teachers or entry.finishing or entry.labelled < bool(teachers):
            held = dict.fromkeys((*entry.finishing, *entry.teachers))
            facts.students[seat.name] = replace(
                entry,
                teachers=teachers,
                finishing=tuple(
                    name for name in held if name in facts.teachers and name not in teachers
                ),
                labelled=entry.labelled or bool(teachers),
            )


def _changes(before: AssignmentState, facts: Intake) -> Iterator[Change]:
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
                _reason(facts, name, old, entry),
            )


def _news(old: StudentEntry, new: StudentEntry) -> bool:
    was = old.teachers, old.content_id, old.next_told
    return old is not new and was != (new.teachers, new.content_id, new.next_told)
