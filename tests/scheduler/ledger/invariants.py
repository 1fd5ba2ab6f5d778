"""Invariants of the ledger's tables: some facts are kept twice, for speed, and must agree."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger.dispatch import judge
from edl.scheduler.ledger.state import (
    LABELLED,
    RELEASED,
    UNLABELLED,
    LedgerBatch,
    LedgerRequest,
    Tables,
)


def check(ledger: Ledger) -> None:
    """Raise AssertionError if the ledger contradicts itself; the message names the invariant."""
    check_tables(ledger._tables)  # noqa: SLF001 - no public method returns the tables


def check_tables(tables: Tables) -> None:
    """Raise AssertionError if the tables are inconsistent. Slow: goes through all their rows."""
    for find in (_in_rows, _in_counts, _in_requests, _in_teachers, _in_queue):
        for broken in find(tables):
            raise AssertionError(broken)


def _in_rows(tables: Tables) -> Iterator[str]:
    sent: defaultdict[LedgerBatch, list[tuple[int, int]]] = defaultdict(list)
    for request in _requests(tables):
        if request.holders:
            for span, batch in zip(request.spans, request.batches, strict=True):
                sent[batch].append(span[1:])
    for batch in tables.batches.values():
        waiting, in_flight = _rows(batch.waiting), _rows(sent[batch])
        labelled = _rows(span[1:] for span, _ in batch.labels)
        rows = sorted([*waiting, *in_flight, *labelled])
        lacking = len(waiting) + len(in_flight)
        if batch.id in tables.withheld:
            if rows or batch.stage is not UNLABELLED:
                yield f"batch {batch.id} is withheld, but {batch.stage.value} with rows {rows}"
            lacking = batch.rows
        if batch.stage is not UNLABELLED and waiting:
            yield f"batch {batch.id} is {batch.stage.value}, and rows of it wait"
        if batch.waiting != sorted(batch.waiting):
            yield f"batch {batch.id} has rows that wait out of order"
        if batch.stage is UNLABELLED:
            if rows != sorted(set(rows) & set(range(batch.rows))):
                yield f"batch {batch.id} of {batch.rows} rows has rows twice or too many: {rows}"
            if batch.unlabelled_rows != lacking:
                yield f"batch {batch.id} lacks {lacking} rows, counted are {batch.unlabelled_rows}"
            if not lacking:
                yield f"batch {batch.id} is unlabelled, but no row waits or is in flight"


def _rows(pieces: Iterable[tuple[int, ...]]) -> list[int]:
    return [row for start, stop, *_ in pieces for row in range(start, stop)]


def _in_counts(tables: Tables) -> Iterator[str]:
    batches = tables.batches.values()
    if [*tables.batches] != sorted(tables.batches):
        yield f"batches are listed out of order: {[*tables.batches]}"
    if tables.batch_instructions:
        yield f"instructions were not returned: {tables.batch_instructions}"
    queued = sorted(b.id for b in batches if b.waiting)
    if sorted(tables.queue) != queued:
        yield f"the queue is {sorted(tables.queue)}, batches with rows that wait are {queued}"
    refused = {b.id for b in batches if b.refusals and b.stage is UNLABELLED}
    if set(tables.refused) != refused:
        yield f"refused are {refused}, listed are {set(tables.refused)}"
    unlabelled = sum(b.stage is UNLABELLED for b in batches)
    if tables.unlabelled != unlabelled:
        yield f"{unlabelled} batches are unlabelled, counted are {tables.unlabelled}"
    calls = sum(b.stage is UNLABELLED and b.is_call for b in batches)
    if tables.unlabelled_calls != calls:
        yield f"{calls} calls are unlabelled, counted are {tables.unlabelled_calls}"
    held = [b for b in batches if b.stage in (LABELLED, RELEASED) and not b.is_call]
    volume_bytes = sum(b.nbytes for b in held)
    if tables.volume_bytes != volume_bytes:
        yield f"the volume is {volume_bytes} bytes, counted are {tables.volume_bytes}"


def _in_requests(tables: Tables) -> Iterator[str]:
    for teacher in tables.teachers.values():
        rows = sum(request.rows for request in teacher.in_flight.values())
        if teacher.rows_in_flight != rows:
            yield f"{rows} rows are in flight at {teacher.name}, not {teacher.rows_in_flight}"
    for request in _requests(tables):
        at = {t.name for t in tables.teachers.values() if t.in_flight.get(request.id) is request}
        if not request.holders <= at:
            yield f"request {request.id} is in flight at {at}, but names {request.holders}"


def _in_teachers(tables: Tables) -> Iterator[str]:
    for teacher in tables.teachers.values():
        if teacher.revoked and not teacher.in_flight:
            yield f"teacher {teacher.name} is revoked and done, and still listed"
        if teacher.usable is (teacher.revoked or teacher.resting or teacher.on_trial):
            yield f"teacher {teacher.name} is usable: {teacher.usable}, which its state contradicts"
    with_room = {t.name for t in tables.teachers.values() if t.usable and t.room}
    if set(tables.with_room) != with_room:
        yield f"teachers {with_room} have room, listed are {set(tables.with_room)}"
    for request, name in tables.hedges:
        able = [t for t in with_room if tables.teachers[t].may_copy(request)]
        if able and name is None:
            yield f"request {request.id} waits to be hedged while {able} could take it"


def _in_queue(tables: Tables) -> Iterator[str]:
    for batch_id in tables.queue:
        batch = tables.batches[batch_id]
        able = [name for name in tables.with_room if batch.may_go_to(name)]
        if able:
            yield f"batch {batch_id} is queued while {able} could take it"
        if judge(batch, tables.teachers.values(), tables.awaited, tables.waiting()) != "wait":
            yield f"batch {batch_id} was refused by all teachers but is not poison"


def _requests(tables: Tables) -> list[LedgerRequest]:
    """Return all requests in flight, each once."""
    found = {r.id: r for t in tables.teachers.values() for r in t.in_flight.values()}
    return list(found.values())
