"""The ledger's invariants: its tables agree with each other and with its promises."""

from __future__ import annotations

from collections.abc import Iterator

from .ledger_state import UNSETTLED, Stage, Tables


class LedgerInvariant(AssertionError):
    """The ledger contradicts itself; the message names what broke."""


def check(tables: Tables) -> None:
    """Raise LedgerInvariant if the tables contradict each other. Cost: all that they hold."""
    for broken in (*_broken_batches(tables), *_broken_counts(tables), *_broken_teachers(tables)):
        raise LedgerInvariant(broken)


def _broken_batches(tables: Tables) -> Iterator[str]:
    line = list(tables.line)
    if [batch.id for batch in line] != sorted({batch.id for batch in line}):
        yield f"the line is out of order: {[batch.id for batch in line]}"
    if line and line[0].stage not in UNSETTLED:
        yield f"batch {line[0].id} is first in line, {line[0].stage.value}, and not delivered"
    over = (Stage.DELIVERED, Stage.FORGOTTEN)
    undelivered = [b for b in tables.batches.values() if b.stage not in over]
    if undelivered != line:
        yield "the line is not the batches that wait to be delivered, in order"
    for batch in tables.batches.values():
        holders = {t.name for t in tables.teachers.values() if t.in_flight.get(batch.id) is batch}
        if holders != batch.holders:
            yield f"batch {batch.id} is in flight at {holders}, but names {batch.holders}"
        if batch.stage is Stage.FORGOTTEN:
            yield f"batch {batch.id} is forgotten and still listed"
        if batch.stage is Stage.QUEUED and holders:
            yield f"batch {batch.id} is queued and in flight at {holders}"
        if batch.stage is Stage.IN_FLIGHT and not holders:
            yield f"batch {batch.id} is in flight at nobody"
        if batch.stage is Stage.DELIVERED and line and batch.id > line[0].id:
            yield f"batch {batch.id} was delivered before batch {line[0].id}"
        if any(not batch.may_go_to(name) for name in holders):
            yield f"batch {batch.id} is in flight at a teacher that refused it"


def _broken_counts(tables: Tables) -> Iterator[str]:
    batches = tables.batches.values()
    queued = sorted(b.id for b in batches if b.stage is Stage.QUEUED)
    if sorted(tables.queue) != queued:
        yield f"the queue is {sorted(tables.queue)}, the queued batches are {queued}"
    refused = {b.id for b in batches if b.refusals and b.stage in UNSETTLED}
    if set(tables.refused) != refused:
        yield f"refused are {refused}, listed are {set(tables.refused)}"
    unlabelled = sum(b.stage in UNSETTLED for b in batches)
    if tables.unlabelled != unlabelled:
        yield f"{unlabelled} batches are unlabelled, counted are {tables.unlabelled}"
    deliverable = sum(b.stage is Stage.DELIVERED for b in batches)
    if tables.deliverable != deliverable:
        yield f"{deliverable} batches are deliverable, counted are {tables.deliverable}"
    held = (Stage.LABELLED, Stage.DELIVERED)
    volume_bytes = sum(b.nbytes for b in batches if b.stage in held)
    if tables.volume_bytes != volume_bytes:
        yield f"the volume is {volume_bytes} bytes, counted are {tables.volume_bytes}"


def _broken_teachers(tables: Tables) -> Iterator[str]:
    for teacher in tables.teachers.values():
        if teacher.revoked and not teacher.in_flight:
            yield f"teacher {teacher.name} is revoked and done, and still listed"
    free = {teacher.name for teacher in tables.teachers.values() if teacher.free}
    if set(tables.open) != free:
        yield f"teachers {free} are free, listed are {set(tables.open)}"
    for batch_id in tables.queue:
        batch = tables.batches[batch_id]
        able = [name for name in free if tables.teachers[name].may_have(batch)]
        if able:
            yield f"batch {batch_id} is queued while {able} could take it"
    there = [teacher.name for teacher in tables.teachers.values() if not teacher.revoked]
    for batch in tables.refused.values():
        if there and not batch.holders and not any(batch.may_go_to(name) for name in there):
            yield f"batch {batch.id} was refused by all there are and is not poison"
