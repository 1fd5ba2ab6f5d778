"""Which content each student is on: one at a time, changed between epochs or at an operator's word.

A student that begins goes to the content that is to come, if a teacher serves it, and else to the
one that is. One that is on its way through an epoch stays, even while no teacher serves its
content: labels of two models are never mixed. It is told what comes, waits for its move between two
epochs, and is moved then, or at once where the plan says "now"; and only to what a teacher serves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace

from .fleet import Fleet
from .state import AssignmentState, Plan, StudentEntry


def target(plan: Plan) -> str:
    """What students are to be on in the end."""
    return plan.next or plan.current


def settle_plan(plan: Plan, teachers: Fleet, students: Mapping[str, StudentEntry]) -> Plan:
    """Without an operator's word, the service has what its students or else its teachers have."""
    if plan.declared:
        return plan
    found = {entry.content_id for entry in students.values() if entry.labelled}
    found = found or {entry.content_id for entry in teachers.values()}
    if plan.current in found:
        return plan
    return replace(plan, current=prevailing(teachers, students)[0] or plan.current)


def prevailing(teachers: Fleet, students: Mapping[str, StudentEntry]) -> tuple[str, int, int]:
    """What most students are on, else what most teachers serve: students have labels of it already.

    Returns:
        The content ("": there is none), how many students are on it, how many teachers serve it.
    """
    on = Counter(entry.content_id for entry in students.values() if entry.labelled)
    serving = Counter({content: len(pool.power) for content, pool in teachers.pools.items()})
    named = [content for content in on or serving if content]
    content = max(named, key=lambda name: (on[name], serving[name]), default="")
    return content, on[content], serving[content]


def settle(
    entry: StudentEntry, plan: Plan, served: Container[str], between: bool, recovering: bool
) -> StudentEntry:
    """The student on the content that it is to have now, and told which comes next.

    Args:
        entry: what is known of it.
        plan: the content of the service.
        served: contents that a teacher serves.
        between: whether it stands between two epochs, and sends nothing until it is answered.
        recovering: nobody else is moved, as that would take its teachers; and nobody at all where
            the plan is a guess, as those that would tell it better have yet to come back.
    """
    goal, now = target(plan), bool(plan.next) and plan.at == "now"
    known = plan.declared or bool(plan.next) or not recovering
    content = entry.content_id
    if not entry.labelled:
        content = goal if goal in served else plan.current
    elif known and content != goal and goal in served:
        forgotten = content not in served and content != plan.current
        if between or ((now or forgotten) and not recovering):
            content = goal
    coming = goal if known and content != goal and goal in served and not now else ""
    upgrading = entry.upgrading or bool(plan.next or coming)
    if (content, coming, upgrading) == (entry.content_id, entry.next_told, entry.upgrading):
        return entry
    return replace(entry, content_id=content, next_told=coming, upgrading=upgrading)


def is_complete(state: AssignmentState) -> bool:
    """Whether an upgrade is on, can be had, and no student is on another content any more."""
    goal = state.plan.next
    return bool(goal) and goal in state.teachers.pools and _all_on(state.students.values(), goal)


def _all_on(students: Iterable[StudentEntry], content: str) -> bool:
    return all(entry.content_id == content for entry in students)
