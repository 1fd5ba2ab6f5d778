"""Choice of the teacher for waiting rows, and of the batch to blame for refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Literal

from .events import Instruction, Send, Span
from .state import LedgerBatch, LedgerRequest, LedgerTeacher, Refusal, Tables, count, cut, runs

Verdict = Literal["poison", "again", "wait"]

#: A batch is to blame if this many teachers refuse it, or if it crashes a lone teacher this often.
#: A teacher that has labelled nothing may refuse this many requests.
POISON_REFUSALS = 3


def soonest(rows: int, able: Sequence[LedgerTeacher]) -> LedgerTeacher | None:
    """Return the teacher that would finish first; among equals, the first to join.

    A teacher works off its rows in order, so it finishes after (rows in flight + new rows) * its
    seconds per row. A teacher of unknown speed counts as average.

    Args:
        rows: waiting rows; a teacher gets as many of them as one request to it may have.
        able: teachers that may have them and have room.
    """
    if len(able) < 2:
        return able[0] if able else None
    known = [t.seconds_per_row for t in able if t.seconds_per_row is not None]
    usual = sum(known) / len(known) if known else 1.0  # no speed is known: all are equal

    def through(teacher: LedgerTeacher) -> tuple[float, int]:
        seconds = teacher.seconds_per_row
        ahead = teacher.rows_in_flight + teacher.portion(rows)
        return ahead * (usual if seconds is None else seconds), teacher.order

    return min(able, key=through)


def judge(
    batch: LedgerBatch,
    teachers: Iterable[LedgerTeacher],
    awaited: int,
    queue: Iterable[LedgerBatch],
) -> Verdict:
    """Decide about a batch that was refused.

    It is poison once three teachers that label other batches have refused it, or all teachers if
    there are fewer. Refusals by a teacher that has labelled nothing do not count: its settings may
    be wrong. "All" excludes revoked teachers, which get nothing new, and those on trial, which may
    not label. It includes resting teachers, which will return, and those that are `awaited`. A
    batch without waiting rows has all missing rows in flight and may still be labelled.

    Args:
        batch: refused or not.
        teachers: all known teachers.
        awaited: number of teachers that may join at any moment.
        queue: the batches with waiting rows.

    Returns:
        "poison"; "again" if only a teacher that it crashed is left; else "wait".
    """
    refusals = batch.refusals or {}
    counted = sum(refusal.counts for refusal in refusals.values())
    if counted >= POISON_REFUSALS:
        return "poison"
    there = [teacher for teacher in teachers if teacher.may_label]
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
    """Whether a teacher that a batch crashed may get it again: until the third crash."""
    few = refusal.crashes < POISON_REFUSALS or not refusal.counts
    return refusal.crashes > 0 and few


def _may_retry(batch: LedgerBatch, teacher: LedgerTeacher, queue: Iterable[LedgerBatch]) -> bool:
    """Whether a teacher without labels may get a batch again that crashed it.

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

    Three refused requests suffice if another teacher labels batches. Otherwise it first gets
    everything that waits, because the first batches may be to blame.
    """
    if teacher.has_labelled or not teacher.refused:
        return False
    if teacher.refused >= POISON_REFUSALS and any(
        one.has_labelled and one.usable for one in others
    ):
        return True
    return teacher.idle and not any(batch.may_go_to(teacher.name) for batch in queue)


class Dispatcher:
    """Makes, numbers and counts requests; all other state is in the tables.

    Attributes:
        sent: requests sent so far, without copies.
        resends: those of them with rows that had been sent before.
        hedges: copies sent to any free teacher.
        probes: copies sent to a named teacher.
    """

    def __init__(self) -> None:
        self.sent = self.resends = self.hedges = self.probes = 0

    def send_what_waits(self, tables: Tables, out: list[Instruction]) -> None:
        """Send rows, the lowest batch first, while a suitable teacher has room.

        A free place in a window is filled at once, even with few rows.
        """
        queue, batches = tables.queue, tables.batches
        kept = []  # refused by every open teacher; few, because the caller bounds the queue
        while queue and tables.open:
            batch = batches[queue[0]]
            if (teacher := _best_for(batch, tables.open)) is None:
                kept.append(heappop(queue))
            else:
                out.append(self._send(tables, batch, teacher))
        for batch_id in kept:
            heappush(queue, batch_id)

    def send_copies(self, tables: Tables, out: list[Instruction]) -> None:
        """Send the requested copies as far as there is room, and drop those that lapsed."""
        pending, tables.hedges = tables.hedges, []
        for request, name in pending:
            if not request.may_be_copied:
                continue
            if name is None:
                able = [t for t in tables.open.values() if t.may_copy(request)]
                teacher = soonest(request.rows, able)
                self.hedges += teacher is not None
            else:
                teacher = tables.teachers.get(name)
                if teacher is None or teacher.revoked or not teacher.may_copy(request):
                    continue
                if not teacher.room:
                    teacher = None
                self.probes += teacher is not None
            if teacher is None:
                tables.hedges.append((request, name))
                continue
            out.append(_start(tables, request, teacher))

    def _send(self, tables: Tables, first: LedgerBatch, teacher: LedgerTeacher) -> Send:
        """Make a request of the front of the queue, where `first` is."""
        if len(first.waiting) == 1 and teacher.most_rows is None:  # as nearly always
            start, stop, attempts = first.waiting.pop()
            heappop(tables.queue)
            spans: tuple[Span, ...] = (Span(first.id, start, stop),)
            owners: tuple[LedgerBatch, ...] = (first,)
            rows = stop - start
        else:
            spans, owners, rows, attempts = _gather(tables, first, teacher)
        self.sent += 1
        if attempts:
            self.resends += 1
        return _start(tables, LedgerRequest(self.sent, spans, owners, rows, attempts), teacher)


def _gather(
    tables: Tables, first: LedgerBatch, teacher: LedgerTeacher
) -> tuple[tuple[Span, ...], tuple[LedgerBatch, ...], int, int]:
    """Take rows for one request from the front of the queue: spans, batches, rows, attempts."""
    queue = tables.queue
    spans: list[Span] = []
    owners: list[LedgerBatch] = []
    room = first.rows if teacher.most_rows is None else teacher.most_rows
    rows = attempts = 0
    while queue and rows < room:
        batch = tables.batches[queue[0]]
        if batch is not first and not (first.may_join(batch) and batch.may_go_to(teacher.name)):
            break
        pieces = cut(batch.waiting, room - rows)
        if not batch.waiting:
            heappop(queue)
        for start, stop in runs(pieces):
            spans.append(Span(batch.id, start, stop))
            owners.append(batch)
            rows += stop - start
        attempts = max(attempts, *(sent for _, _, sent in pieces))
        if teacher.most_rows is None:
            break
    return tuple(spans), tuple(owners), rows, attempts


def _best_for(batch: LedgerBatch, open_teachers: dict[str, LedgerTeacher]) -> LedgerTeacher | None:
    able: Iterable[LedgerTeacher] = open_teachers.values()
    if batch.refusals is not None:
        able = [teacher for teacher in able if batch.may_go_to(teacher.name)]
    elif len(open_teachers) == 1:
        return next(iter(able))
    return soonest(count(batch.waiting), [*able])


def _start(tables: Tables, request: LedgerRequest, teacher: LedgerTeacher) -> Send:
    """Put the request into the teacher's window."""
    request.attempt += 1
    if not teacher.on_trial:
        request.holders.add(teacher.name)
    teacher.in_flight[request.id] = request
    teacher.rows_in_flight += request.rows
    if len(teacher.in_flight) >= teacher.window:
        tables.open.pop(teacher.name, None)
    return Send(request.id, teacher.name, request.spans, request.attempt)
