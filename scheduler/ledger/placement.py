"""Which teacher rows go to, and when there is none that a batch could ever go to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .state import Batch, Teacher

#: Different teachers that must refuse a batch before the batch is to blame.
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


def is_poison(batch: Batch, teachers: Iterable[Teacher], awaited: int) -> bool:
    """Whether enough teachers, or all there are, have refused `batch`.

    "All there are" leaves out the revoked, who get nothing new, and those on trial, who may not
    label; it counts the resting, who will be back, and so many who are `awaited`. With no teacher
    at all nobody can say: the batch waits for one. A batch of which nothing waits is in flight with
    all that it lacks, and may yet be labelled.
    """
    if len(batch.refusals or ()) >= POISON_REFUSALS:
        return True
    there = [teacher.name for teacher in teachers if teacher.there]
    by_all = bool(there) and not awaited and not any(batch.may_go_to(name) for name in there)
    return by_all and bool(batch.waiting)
