"""Which teacher a batch goes to, and when there is none that it could ever go to."""

from __future__ import annotations

from collections.abc import Iterable

from .ledger_state import Batch, Teacher

#: Different teachers that must refuse a batch before the batch is to blame.
POISON_REFUSALS = 3


def soonest(batch: Batch, open_teachers: Iterable[Teacher]) -> Teacher | None:
    """The teacher that would finish `batch` first; of equals, the first to join.

    A teacher works off what it has in flight one by one, so the batch is finished there after
    (in flight + 1) x its seconds per batch. One of unknown speed is taken for an average one.

    Args:
        batch: the batch to place; those that may not have it are passed over.
        open_teachers: teachers with room in their window.
    """
    able = [teacher for teacher in open_teachers if teacher.may_have(batch)]
    if len(able) < 2:
        return able[0] if able else None
    known = [t.seconds_per_batch for t in able if t.seconds_per_batch is not None]
    usual = sum(known) / len(known) if known else 1.0  # nothing known: all alike

    def finish(teacher: Teacher) -> tuple[float, int]:
        seconds = teacher.seconds_per_batch
        ahead = len(teacher.in_flight) + 1
        return ahead * (usual if seconds is None else seconds), teacher.order

    return min(able, key=finish)


def is_poison(batch: Batch, teachers: Iterable[Teacher]) -> bool:
    """Whether enough teachers, or all there are, have refused `batch` (DESIGN promise 5).

    "All there are" leaves out the revoked, who get nothing new, and counts the resting, who will
    be back. With no teacher at all nobody can say: the batch waits for one.
    """
    if len(batch.refusals or ()) >= POISON_REFUSALS:
        return True
    there = [teacher.name for teacher in teachers if not teacher.revoked]
    by_all = bool(there) and not any(batch.may_go_to(name) for name in there)
    return by_all and not batch.holders
