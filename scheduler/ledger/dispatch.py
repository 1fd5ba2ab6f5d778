"""Chooses the teacher and the rows of the next request, and the batch to blame for refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop
from typing import Literal

from .events import Send, Span
from .state import (
    LedgerBatch,
    LedgerRequest,
    LedgerTeacher,
    Refusal,
    Tables,
    count_rows,
    merge_adjacent,
    take_rows,
)

#: See `judge`.
Verdict = Literal["poison", "again", "wait"]

#: A batch is to blame if this many teachers refuse it, or if it crashes a lone teacher this often.
#: A teacher that has labelled nothing is ejected after this many refusals, if another usable
#: teacher has labelled something.
POISON_REFUSALS = 3


def soonest(rows: int, able: Sequence[LedgerTeacher]) -> LedgerTeacher | None:
    """Return the teacher that would finish first; among equals, the first to join.

    A teacher works off its rows in order, so it finishes after (rows in flight + new rows) * its
    seconds per row. A teacher of unknown speed counts as average.

    Args:
        rows: number of waiting rows; a teacher gets as many of them as fit into one request.
        able: teachers with room that may label these rows.

    Returns:
        The teacher; None: `able` is empty.
    """
    if len(able) < 2:
        return able[0] if able else None
    known = [t.seconds_per_row for t in able if t.seconds_per_row is not None]
    average = sum(known) / len(known) if known else 1.0  # no speed is known: all are equal

    def finish_key(teacher: LedgerTeacher) -> tuple[float, int]:
        seconds = teacher.seconds_per_row
        rows_to_do = teacher.rows_in_flight + teacher.portion(rows)
        return rows_to_do * (average if seconds is None else seconds), teacher.order

    return min(able, key=finish_key)


def judge(
    batch: LedgerBatch,
    teachers: Iterable[LedgerTeacher],
    awaited: int,
    queue: Iterable[LedgerBatch],
) -> Verdict:
    """Decide about a batch that was refused.

    The batch is poison once three teachers that label other batches have refused it, or all
    teachers if there are fewer. Refusals by a teacher that has labelled nothing do not count: its
    settings may be wrong. "All" excludes revoked teachers, which get nothing new, and those on
    trial, which may not label. It includes resting teachers, which will return, and `awaited` ones.
    A batch without waiting rows has all unlabelled rows in flight and may still be labelled.

    Args:
        batch: an unlabelled batch.
        teachers: all known teachers.
        awaited: number of teachers that have not joined yet, but may do so at any moment.
        queue: the batches with waiting rows.

    Returns:
        "poison": it will never be labelled; "again": only teachers are left whose predictors it
        crashed, and one of them may get it again; "wait": decide later.
    """
    refusals = batch.refusals or {}
    counted = sum(refusal.blames_batch for refusal in refusals.values())
    if counted >= POISON_REFUSALS:
        return "poison"
    able = [teacher for teacher in teachers if teacher.may_label]
    if not able or awaited or not batch.waiting or any(batch.may_go_to(t.name) for t in able):
        return "wait"
    crashed = [teacher for teacher in able if may_retry_crash(refusals[teacher.name])]
    if not crashed:
        return "poison" if counted else "wait"
    waiting = tuple(queue)
    if any(refusals[t.name].blames_batch or _is_its_turn(batch, t, waiting) for t in crashed):
        return "again"
    return "wait"


def may_retry_crash(refusal: Refusal) -> bool:
    """Whether a teacher may get a batch again that crashed its predictor.

    It may until the third crash, and without a limit while it has labelled nothing.
    """
    is_below_limit = refusal.crashes < POISON_REFUSALS or not refusal.blames_batch
    return refusal.crashes > 0 and is_below_limit


def _is_its_turn(batch: LedgerBatch, teacher: LedgerTeacher, queue: Iterable[LedgerBatch]) -> bool:
    """Whether a teacher that has labelled nothing may now retry a batch that crashed it.

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


def is_useless(
    teacher: LedgerTeacher, others: Iterable[LedgerTeacher], queue: Iterable[LedgerBatch]
) -> bool:
    """Whether to eject a teacher that has labelled nothing, for its refusals.

    Three refused requests suffice if another usable teacher has labelled something. Otherwise the
    teacher first gets all waiting batches, because the first batches may be to blame.
    """
    if teacher.has_labelled or not teacher.refused:
        return False
    if teacher.refused >= POISON_REFUSALS and any(
        other.has_labelled and other.usable for other in others
    ):
        return True
    return teacher.idle and not any(batch.may_go_to(teacher.name) for batch in queue)


def next_request(
    tables: Tables, first: LedgerBatch, teacher: LedgerTeacher, number: int
) -> LedgerRequest:
    """Remove rows from the front of the queue; return a request with them for `teacher`.

    `first` is the batch at the front.
    """
    if len(first.waiting) == 1 and teacher.most_rows is None:  # the usual case
        start, stop, attempts = first.waiting.pop()
        heappop(tables.queue)
        span = Span(first.id, start, stop)
        return LedgerRequest(number, (span,), (first,), stop - start, attempts)
    queue = tables.queue
    spans: list[Span] = []
    owners: list[LedgerBatch] = []
    room = first.rows if teacher.most_rows is None else teacher.most_rows
    rows = attempts = 0
    while queue and rows < room:
        batch = tables.batches[queue[0]]
        if batch is not first and not (first.may_join(batch) and batch.may_go_to(teacher.name)):
            break
        pieces = take_rows(batch.waiting, room - rows)
        if not batch.waiting:
            heappop(queue)
        for start, stop in merge_adjacent(pieces):
            spans.append(Span(batch.id, start, stop))
            owners.append(batch)
            rows += stop - start
        attempts = max(attempts, *(sent for _, _, sent in pieces))
        if teacher.most_rows is None:
            break
    return LedgerRequest(number, tuple(spans), tuple(owners), rows, attempts)


def best_for(batch: LedgerBatch, with_room: dict[str, LedgerTeacher]) -> LedgerTeacher | None:
    """Return the teacher for the batch's waiting rows; None: all those `with_room` refused it."""
    able: Iterable[LedgerTeacher] = with_room.values()
    if batch.refusals is not None:
        able = [teacher for teacher in able if batch.may_go_to(teacher.name)]
    elif len(with_room) == 1:
        return next(iter(able))
    return soonest(count_rows(batch.waiting), [*able])


def put_in_flight(tables: Tables, request: LedgerRequest, teacher: LedgerTeacher) -> Send:
    """Put the request into the teacher's window; return the instruction to send it."""
    request.attempt += 1
    if not teacher.on_trial:
        request.holders.add(teacher.name)
    teacher.in_flight[request.id] = request
    teacher.rows_in_flight += request.rows
    if len(teacher.in_flight) >= teacher.window:
        tables.with_room.pop(teacher.name, None)
    return Send(request.id, teacher.name, request.spans, request.attempt)
