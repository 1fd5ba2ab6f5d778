"""One step of assignment: apply events, settle the content of each student, assign, report changes.

Each student gets labels of one content at a time. The content changes between two epochs, or at
once if the operator says so. A new student starts on the next content if a teacher serves it, else
on the current one. A student in the middle of an epoch keeps a content of the plan even if no
teacher serves it, because an epoch has labels of one content. The student is told the next content,
waits between two epochs, and is moved then. It is moved at once if the plan says "now", or if its
content is *forgotten*: neither in the plan nor served. No teacher of that content is to come, so
the stream would wait for ever. A student is only moved to a content that a teacher serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence, Set
from dataclasses import replace
from itertools import chain

from .assignment_table import AssignmentTable, assignment_tables, silent_teachers
from .repair import ROUNDS, repair, repair_without_loss
from .state import (
    AssignmentChange,
    AssignmentEvent,
    AssignmentState,
    ContentPlan,
    StudentEntry,
    pools,
)
from .working_state import WorkingState


def settle_contents(working: WorkingState) -> None:
    """Update the plan, and the content of each student."""
    if not (working.must_assign or working.between_epochs):
        return
    working.plan = _settled_plan(working)
    served = working.pools.keys()
    for name, entry in working.students.items():
        settled = _settled(
            entry, working.plan, served, name in working.between_epochs, working.recovering
        )
        if settled is not entry:
            working.students[name] = settled
            working.must_assign = True


def _settled_plan(working: WorkingState) -> ContentPlan:
    """Without an operator's plan, keep a content that is in use, else take the prevailing one.

    In use: a student has labels of it; or no student has any labels, and a teacher serves it.
    """
    plan = working.plan
    if plan.declared:
        return plan
    found = {entry.content_id for entry in working.students.values() if entry.labelled}
    found = found or {entry.content_id for entry in working.teachers.values()}
    if plan.current in found:
        return plan
    return replace(plan, current=prevailing_content(working)[0] or plan.current)


def prevailing_content(known: AssignmentState | WorkingState) -> tuple[str, int, int]:
    """Return the content of most students, else of most teachers.

    Students come first because they already have labels of it.

    Returns:
        The content ("" if there is none), its number of students, its number of teachers.
    """
    on = Counter(entry.content_id for entry in known.students.values() if entry.labelled)
    serving = Counter({content: len(pool) for content, pool in pools(known.teachers).items()})
    named = [content for content in on or serving if content]
    content = max(named, key=lambda name: (on[name], serving[name]), default="")
    return content, on[content], serving[content]


def _settled(
    entry: StudentEntry,
    plan: ContentPlan,
    served: Container[str],
    between_epochs: bool,
    recovering: bool,
) -> StudentEntry:
    """Return the student with its current content, and the next one that it was told.

    Args:
        entry: the student.
        plan: the contents of the service.
        served: contents that a teacher serves.
        between_epochs: it waits between two epochs and sends nothing until it is answered.
        recovering: only students between epochs move, because a move takes their teachers. If the
            plan is a guess, no student moves: members that would correct it may still return.
    """
    goal, now = plan.next or plan.current, bool(plan.next) and plan.at == "now"
    known = plan.declared or bool(plan.next) or not recovering
    content = entry.content_id
    is_forgotten = content not in served and content not in (plan.current, goal)
    if is_forgotten and goal not in served:
        goal = plan.current
    if not entry.labelled:
        content = goal if goal in served else plan.current
    elif between_epochs or ((now or is_forgotten) and not recovering):
        content = goal if known and goal in served else content
    coming = goal if known and content != goal and goal in served and not now else ""
    upgrading = entry.upgrading or bool(plan.next or coming)
    if (content, coming, upgrading) == (entry.content_id, entry.announced, entry.upgrading):
        return entry
    return replace(entry, content_id=content, announced=coming, upgrading=upgrading)


def plan_is_complete(state: AssignmentState) -> bool:
    """Whether an upgrade is planned, a teacher serves it, and every student is on it."""
    goal = state.plan.next
    if not goal or goal not in pools(state.teachers):
        return False
    return all(entry.content_id == goal for entry in state.students.values())


def _reason(working: WorkingState, name: str, old: StudentEntry | None, new: StudentEntry) -> str:
    """Explain to an operator why a student has its teachers, and whether that is all it wants."""
    why, had = working.why, old.teachers if old else ()
    going = (*had, *old.finishing) if old else ()
    causes = [
        why[teacher]
        for teacher in going
        if teacher in why and (teacher in working.lost or teacher not in new.teachers)
    ]
    if had != new.teachers:
        causes += [why[teacher] for teacher in had if teacher in working.speed_changed]
    if old is None or (not causes and name in why):
        causes.append(why.get(name, f"student {name} wants {new.want}"))
    causes += _about_content(old, new)
    notes = working.notes.get(name, [])
    causes += notes
    told = {word.rstrip(",") for note in notes for word in note.split()}
    for teacher in new.teachers:
        if teacher in had or teacher in told:
            continue
        if working.students_per_teacher[teacher] > 1:
            causes.append(f"shares teacher {teacher}")
        elif old is not None:
            causes.append(why.get(teacher, f"teacher {teacher} was free"))
    if not causes:
        causes.append(f"student {name} begins epoch {new.data_epoch} of its data")
    return f"{'; '.join(list(dict.fromkeys(causes))[:4])}: {_count(working, new)}"


def _count(working: WorkingState, entry: StudentEntry) -> str:
    has = f"{len(entry.teachers)} of {entry.want} wanted"
    if len(entry.teachers) >= entry.want:
        return has
    content = entry.content_id
    serving = len(working.pools.get(content, ()))
    asking = working.asking_per_content[content]
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
    if new.announced and old.announced != new.announced:
        return [f"moves to content {new.announced} with its next epoch"]
    if old.announced and not new.announced and old.content_id == new.content_id:
        return [f"stays with content {new.content_id}"]
    return []


def reduce(
    state: AssignmentState, events: Sequence[AssignmentEvent], now: float
) -> tuple[AssignmentState, tuple[AssignmentChange, ...]]:
    """Apply a batch of events: return the new state, and a change for each student to notify.

    A student is notified when its teachers change, when a teacher that it holds, or that still
    finishes its requests, is lost, when its content or next content changes, when it waits between
    two epochs during an upgrade, and once when it is new. If nothing changes, `state` itself is
    returned.

    Args:
        state: the state before.
        events: what happened, in order. A large batch costs little more than one event.
        now: seconds of any monotonic clock.

    Raises:
        ValueError: a student wants a negative number of teachers.
    """
    working = WorkingState(state, now)
    working.take(events)
    if not working.changed:
        return state, ()
    settle_contents(working)
    if working.must_assign:
        _assign(working)
    changes = tuple(_changes(state, working))
    after = AssignmentState(
        working.teachers, working.students, working.anchor, working.plan, working.recovering
    )
    return after, changes


def next_due(state: AssignmentState) -> float | None:
    """Return when `Ticked` is due because time alone changes something; None: never."""
    demands = (entry.demand.due for entry in state.students.values())
    dues = chain(demands, (entry.speed_class.due for entry in state.teachers.values()))
    return min((due for due in dues if due is not None), default=None)


def _assign(working: WorkingState) -> None:
    new: Set[str] = working.new
    silent = silent_teachers(working.students)
    for _ in range(ROUNDS):
        for table in assignment_tables(
            working.teachers, working.pools, working.students, silent, working.recovering, new
        ):
            if working.recovering:
                repair_without_loss(table)
            else:
                repair(table)
            _read_back(working, table)
        before, silent, new = silent, silent_teachers(working.students), frozenset()
        if silent <= before:
            break  # no further teacher gives labels to none of its students


def _read_back(working: WorkingState, table: AssignmentTable) -> None:
    for student in table.students:
        if student.notes:
            working.notes.setdefault(student.name, []).extend(student.notes)
        entry = working.students[student.name]
        teachers = tuple(student.held)
        if student.set_aside:
            place = {name: index for index, name in enumerate(entry.teachers)}
            both = (*teachers, *student.set_aside)
            teachers = tuple(sorted(both, key=lambda name: place.get(name, len(place))))
        if entry.unavailable:
            unavailable = entry.unavailable.intersection(teachers) - student.released
            entry = working.students[student.name] = replace(entry, unavailable=unavailable)
        if teachers != entry.teachers or entry.finishing or entry.labelled < bool(teachers):
            held = dict.fromkeys((*entry.finishing, *entry.teachers))
            working.students[student.name] = replace(
                entry,
                teachers=teachers,
                finishing=tuple(
                    name for name in held if name in working.teachers and name not in teachers
                ),
                labelled=entry.labelled or bool(teachers),
            )


def _changes(before: AssignmentState, working: WorkingState) -> Iterator[AssignmentChange]:
    for name, entry in working.students.items():
        old = None if name in working.new else before.students.get(name)
        lost = tuple(t for t in (*old.teachers, *old.finishing) if t in working.lost) if old else ()
        answered = entry.upgrading and name in working.between_epochs
        if old is None or lost or answered or _news(old, entry):
            yield AssignmentChange(
                name,
                entry.teachers,
                lost,
                entry.content_id,
                entry.announced,
                entry.data_epoch,
                _reason(working, name, old, entry),
            )


def _news(old: StudentEntry, new: StudentEntry) -> bool:
    was = old.teachers, old.content_id, old.announced
    return old is not new and was != (new.teachers, new.content_id, new.announced)
