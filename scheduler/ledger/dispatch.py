"""From rows that wait to requests: the front first, cut and joined to the size a teacher takes."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from .instructions import Instruction, Send, Span
from .pieces import count, cut, runs
from .placement import soonest
from .state import Batch, Request, Teacher
from .tables import Tables


class Dispatcher:
    """Makes requests, numbers them and counts them; all else it finds in the tables.

    Attributes:
        sent: requests sent so far, copies not counted.
        resends: how many of them had rows that had been sent before.
        hedges: copies sent to whichever teacher was free.
        probes: copies sent to a teacher that was named.
    """

    def __init__(self) -> None:
        self.sent = self.resends = self.hedges = self.probes = 0

    def send_what_waits(self, tables: Tables, out: list[Instruction]) -> None:
        """Send rows, those of the lowest batch first, while a teacher that may have them is open.

        A window that is free is filled at once with what there is, however little that may be.
        """
        queue, batches = tables.queue, tables.batches
        kept = []  # refused by every teacher that is open; few, as the caller bounds the queue
        while queue and tables.open:
            batch = batches[queue[0]]
            if (teacher := _best_for(batch, tables.open)) is None:
                kept.append(heappop(queue))
            else:
                out.append(self._send(tables, batch, teacher))
        for batch_id in kept:
            heappush(queue, batch_id)

    def send_copies(self, tables: Tables, out: list[Instruction]) -> None:
        """Send the copies that are asked for, as far as there is room; drop those that lapsed."""
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

    def _send(self, tables: Tables, first: Batch, teacher: Teacher) -> Send:
        """Make a request to `teacher` of the front of the queue, where `first` is."""
        if len(first.waiting) == 1 and teacher.most_rows is None:  # as nearly always
            start, stop, attempts = first.waiting.pop()
            heappop(tables.queue)
            spans: tuple[Span, ...] = (Span(first.id, start, stop),)
            owners: tuple[Batch, ...] = (first,)
            rows = stop - start
        else:
            spans, owners, rows, attempts = _gather(tables, first, teacher)
        self.sent += 1
        if attempts:
            self.resends += 1
        return _start(tables, Request(self.sent, spans, owners, rows, attempts), teacher)


def _gather(
    tables: Tables, first: Batch, teacher: Teacher
) -> tuple[tuple[Span, ...], tuple[Batch, ...], int, int]:
    """Take rows from the front of the queue, for one request: their spans, batches, number, age."""
    queue = tables.queue
    spans: list[Span] = []
    owners: list[Batch] = []
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


def _best_for(batch: Batch, open_teachers: dict[str, Teacher]) -> Teacher | None:
    able: Iterable[Teacher] = open_teachers.values()
    if batch.refusals is not None:
        able = [teacher for teacher in able if batch.may_go_to(teacher.name)]
    elif len(open_teachers) == 1:
        return next(iter(able))
    return soonest(count(batch.waiting), [*able])


def _start(tables: Tables, request: Request, teacher: Teacher) -> Send:
    """Put the request into the teacher's window."""
    request.attempt += 1
    if not teacher.on_trial:
        request.holders.add(teacher.name)
    teacher.in_flight[request.id] = request
    teacher.rows_in_flight += request.rows
    if len(teacher.in_flight) >= teacher.window:
        tables.open.pop(teacher.name, None)
    return Send(request.id, teacher.name, request.spans, request.attempt)
