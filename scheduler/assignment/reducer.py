"""One step of assignment: apply events, settle the content of each student, assign, report changes.

Each student gets labels of one content at a time. A new student starts on the plan's next content
if a teacher serves it, else on the current one. A student in the middle of an epoch keeps a content
of the plan even if no teacher serves it, because an epoch has labels of one content. The student is
notified of the next content, waits at the end of its epoch, and is moved then. It is moved at once
if the plan says "now", or if its content is *forgotten*: neither in the plan nor served. No teacher
of a forgotten content is expected, so the student would wait for ever. A student is only moved to a
content that a teacher serves.
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
    """Return the plan. If no user declared it, replace a current content that is not in use.

    A content is in use if a student has labels of it. If no student has any labels, a content is in
    use if a teacher serves it.
    """
    plan = working.plan
    if plan.declared:
        return plan
    in_use = {entry.content_id for entry in working.students.values() if entry.labelled}
    in_use = in_use or {entry.content_id for entry in working.teachers.values()}
    if plan.current in in_use:
        return plan
    return replace(plan, current=prevailing_content(working)[0] or plan.current)


def prevailing_content(known: AssignmentState | WorkingState) -> tuple[str, int, int]:
    """Return the content of most students; if no student has labels yet, of most teachers.

    Returns:
        The content ("" if there is none), its number of students, its number of teachers.
    """
    students = Counter(entry.content_id for entry in known.students.values() if entry.labelled)
    teachers = Counter({content: len(pool) for content, pool in pools(known.teachers).items()})
    candidates = [content for content in students or teachers if content]
    content = max(candidates, key=lambda name: (students[name], teachers[name]), default="")
    return content, students[content], teachers[content]


def _settled(
    entry: StudentEntry,
    plan: ContentPlan,
    served: Container[str],
    between_epochs: bool,
    recovering: bool,
) -> StudentEntry:
    """Return the student with its content, and the next content that is announced to it.

    Args:
        entry: the student.
        plan: the contents of the service.
        served: contents that a teacher serves.
        between_epochs: it waits between two epochs, and sends nothing until it gets an answer.
        recovering: a recovery is under way. A move takes a student's teachers away, so a student
            with labels then moves only between epochs. If no user made the plan, such a student
            does not move at all: members that return may still change the prevailing content.
    """
    goal, at_once = plan.next or plan.current, bool(plan.next) and plan.at == "now"
    is_certain = plan.declared or bool(plan.next) or not recovering
    content = entry.content_id
    is_forgotten = content not in served and content not in (plan.current, goal)
    if is_forgotten and goal not in served:
        goal = plan.current
    if not entry.labelled:
        content = goal if goal in served else plan.current
    elif between_epochs or ((at_once or is_forgotten) and not recovering):
        content = goal if is_certain and goal in served else content
    announced = goal if is_certain and content != goal and goal in served and not at_once else ""
    upgrading = entry.upgrading or bool(plan.next or announced)
    if (content, announced, upgrading) == (entry.content_id, entry.announced, entry.upgrading):
        return entry
    return replace(entry, content_id=content, announced=announced, upgrading=upgrading)


def plan_is_complete(state: AssignmentState) -> bool:
    """Whether an upgrade is planned, a teacher serves it, and every student is on it."""
    goal = state.plan.next
    if not goal or goal not in pools(state.teachers):
        return False
    return all(entry.content_id == goal for entry in state.students.values())


def _reason(working: WorkingState, name: str, old: StudentEntry | None, new: StudentEntry) -> str:
    """Explain to users why a student has its teachers, and how many it lacks."""
    why, before = working.why, old.teachers if old else ()
    used = (*before, *old.finishing) if old else ()
    causes = [
        why[teacher]
        for teacher in used
        if teacher in why and (teacher in working.lost or teacher not in new.teachers)
    ]
    if before != new.teachers:
        causes += [why[teacher] for teacher in before if teacher in working.speed_changed]
    if old is None or (not causes and name in why):
        causes.append(why.get(name, f"student {name} wants {new.want}"))
    causes += _describe_content_change(old, new)
    notes = working.notes.get(name, [])
    causes += [note.text for note in notes]
    mentioned = {teacher for note in notes for teacher in note.teachers}
    for teacher in new.teachers:
        if teacher in before or teacher in mentioned:
            continue
        if working.students_per_teacher[teacher] > 1:
            causes.append(f"shares teacher {teacher}")
        elif old is not None:
            causes.append(why.get(teacher, f"teacher {teacher} was free"))
    if not causes:
        causes.append(f"student {name} begins epoch {new.data_epoch} of its data")
    return f"{'; '.join(list(dict.fromkeys(causes))[:4])}; has {_describe_count(working, new)}"


def _describe_count(working: WorkingState, entry: StudentEntry) -> str:
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


def _describe_content_change(old: StudentEntry | None, new: StudentEntry) -> list[str]:
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

    A student is notified when its teachers, its content or its next content change; when a teacher
    is lost that it has or that still finishes its requests; when it begins to wait between two
    epochs, if an upgrade was planned since it came; and once when it is new. If nothing changes,
    `state` itself is returned.

    Args:
        state: the state before.
        events: what happened, in order. A large batch costs little more than one event.
        now: seconds of any monotonic clock.

    Raises:
        ValueError: a student wants a negative number of teachers.
    """
    working = WorkingState(state, now)
    working.apply(events)
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
    """Return the time at which `Ticked` changes something without any other event; None: never."""
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
            break  # no other teacher became silent by these moves


def _read_back(working: WorkingState, table: AssignmentTable) -> None:
    for student in table.students:
        if student.notes:
            working.notes.setdefault(student.name, []).extend(student.notes)
        entry = working.students[student.name]
        teachers = tuple(student.held)
        if student.set_aside:
            position = {name: index for index, name in enumerate(entry.teachers)}
            both = (*teachers, *student.set_aside)
            teachers = tuple(sorted(both, key=lambda name: position.get(name, len(position))))
        if entry.unavailable:
            unavailable = entry.unavailable.intersection(teachers) - student.released
            entry = working.students[student.name] = replace(entry, unavailable=unavailable)
        if teachers != entry.teachers or entry.finishing or entry.labelled < bool(teachers):
            before = dict.fromkeys((*entry.finishing, *entry.teachers))
            working.students[student.name] = replace(
                entry,
                teachers=teachers,
                finishing=tuple(
                    name for name in before if name in working.teachers and name not in teachers
                ),
                labelled=entry.labelled or bool(teachers),
            )


def _changes(before: AssignmentState, working: WorkingState) -> Iterator[AssignmentChange]:
    for name, entry in working.students.items():
        old = None if name in working.new else before.students.get(name)
        lost = tuple(t for t in (*old.teachers, *old.finishing) if t in working.lost) if old else ()
        waits = entry.upgrading and name in working.between_epochs
        if old is None or lost or waits or _must_notify(old, entry):
            yield AssignmentChange(
                name,
                entry.teachers,
                lost,
                entry.content_id,
                entry.announced,
                entry.data_epoch,
                _reason(working, name, old, entry),
            )


def _must_notify(old: StudentEntry, new: StudentEntry) -> bool:
    before = old.teachers, old.content_id, old.announced
    return old is not new and before != (new.teachers, new.content_id, new.announced)
