"""Which teacher rows go to, and when there is none that a batch could ever go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from .state import Batch, Refusal, Teacher

Verdict = Literal["poison", "again", "wait"]

#: Teachers that must refuse a batch before the batch is to blame. So often must it crash a lone
#: teacher, and so many requests may a teacher refuse that has labelled nothing.
POISON_REFUSALS = 3


def soonest(rows: int, able: Sequence[Teacher]) -> Teacher | None:
    """The teacher that would be through first with what it gets; of equals, the first to join.

    A teacher works off its rows one by one, so it is through after (rows in flight + the rows it
    gets) x its seconds per row. One of unknown speed is taken for an average one.

    Args:
        rows: how many wait; a teacher gets as many of them as a request to it may have.
        able: teachers that may have them and have room.
    """
    if len(able) < 2:
        return able[0] if able else None
    known = [t.seconds_per_row for t in able if t.seconds_per_row is not None]
    usual = sum(known) / len(known) if known else 1.0  # nothing known: all alike

    def through(teacher: Teacher) -> tuple[float, int]:
        seconds = teacher.seconds_per_row
        ahead = teacher.rows_in_flight + teacher.portion(rows)
        return ahead * (usual if seconds is None else seconds), teacher.order

    return min(able, key=through)


def judge(
    batch: Batch, teachers: Iterable[Teacher], awaited: int, queue: Iterable[Batch]
) -> Verdict:
    """What becomes of a batch that was refused.

    It is poison once three teachers that label other batches have refused it, or all of them if
    there are fewer. A refusal by a teacher that has labelled nothing does not count: its settings
    may be wrong. "All" leaves out the revoked, who get nothing new, and those on trial, who may not
    label; it counts the resting, who will be back, and so many who are `awaited`. A batch of which
    nothing waits is in flight with all that it lacks, and may yet be labelled.

    Args:
        batch: refused or not.
        teachers: all that are known.
        awaited: teachers that may join any moment.
        queue: the batches with rows that wait.

    Returns:
        "poison"; "again", where only a teacher that it crashed is left to ask; else "wait".
    """
    refusals = batch.refusals or {}
    counted = sum(refusal.counts for refusal in refusals.values())
    if counted >= POISON_REFUSALS:
        return "poison"
    there = [teacher for teacher in teachers if teacher.there]
    if not there or awaited or not batch.waiting or any(batch.may_go_to(t.name) for t in there):
        return "wait"
    crashed = [teacher for teacher in there if may_recur(refusals[teacher.name])]
    if not crashed:
        return "poison" if counted else "wait"
    waiting = tuple(queue)
    if any(refusals[t.name].counts or _may_retry(batch, t, waiting) for t in crashed):
        return "again"
    return "wait"


def may_recur(refusal: Refusal) -> bool:
    """Whether a teacher may be asked again that a batch has crashed: not yet three times."""
    few = refusal.crashes < POISON_REFUSALS or not refusal.counts
    return refusal.crashes > 0 and few


def _may_retry(batch: Batch, teacher: Teacher, queue: Iterable[Batch]) -> bool:
    """Whether a teacher that has labelled nothing may get a batch again that has crashed it.

    First it gets the batches that it has not tried, then those that crashed it less often. Once it
    labels one of them, its crashes count against the others.
    """
    crashes = (batch.refusals or {})[teacher.name].crashes
    if not teacher.idle:
        return False
    for other in queue:
        if other.may_go_to(teacher.name):
            return False
        if 0 < (other.refusals or {})[teacher.name].crashes < crashes:
            return False
    return True


def is_useless(teacher: Teacher, others: Iterable[Teacher], queue: Iterable[Batch]) -> bool:
    """Whether a teacher that has labelled nothing is to be ejected for what it has refused.

    Three requests are enough where another teacher labels batches. Else it is asked all that waits
    before: the first batches may be to blame.
    """
    if teacher.labels or not teacher.refused:
        return False
    if teacher.refused >= POISON_REFUSALS and any(one.labels and one.usable for one in others):
        return True
    return teacher.idle and not any(batch.may_go_to(teacher.name) for batch in queue)
