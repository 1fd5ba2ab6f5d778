"""The ledger's tables and the steps that keep them in agreement.

Redundant for speed: `open`, `queue`, `refused` and the counters could be derived from `batches` and
`teachers`. Each step below changes both sides at once; `check` derives and compares.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappush

from .instructions import Span
from .pieces import Piece, count, put_back
from .state import DELIVERED, LABELLED, POISONED, UNLABELLED, Batch, Request, Stage, Teacher


@dataclass(slots=True)
class Tables:
    """All that a ledger knows.

    Attributes:
        ordered: batches are delivered in the order of their ids.
        teachers: all that are not lost, nor revoked and done.
        open: those that are free.
        batches: all from `Queued` or `Held` to `Taken` or `Poison`, by id.
        line: to be delivered, the first first: all that are not, or, without order, the settled.
        queue: a heap of the ids of those with rows that wait: a lower one is nearer to the front.
        refused: unlabelled ones that somebody refused.
        recalled: delivered ones that the student's side is asked to hand back.
        withheld: unlabelled ones that a store is asked for first.
        hedges: requests to be copied, those of the lowest rows first; to whom, or to anyone.
        unlabelled: how many are unlabelled.
        deliverable: how many are delivered.
        volume_bytes: of those that are labelled or delivered.
        last_id: of the batches that were queued so far.
        last_rows: of the last one queued; 0 before any.
        batch_bytes: most bytes that one of them had.
        joined: teachers that ever came.
        awaited: teachers that may join any moment.
    """

    ordered: bool
    teachers: dict[str, Teacher] = field(default_factory=dict)
    open: dict[str, Teacher] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    line: deque[Batch] = field(default_factory=deque)
    queue: list[int] = field(default_factory=list)
    refused: dict[int, Batch] = field(default_factory=dict)
    recalled: dict[int, Batch] = field(default_factory=dict)
    withheld: dict[int, Batch] = field(default_factory=dict)
    hedges: list[tuple[Request, str | None]] = field(default_factory=list)
    unlabelled: int = 0
    deliverable: int = 0
    volume_bytes: int = 0
    last_id: int = -1
    last_rows: int = 0
    batch_bytes: int = 0
    joined: int = 0
    awaited: int = 0

    # ---------------------------------------------------------------------------- the batches

    def admit(self, batch: Batch) -> None:
        """List a new batch, not placed yet."""
        if batch.id in self.batches:
            raise ValueError(f"batch {batch.id} comes a second time")
        self.batches[batch.id] = batch
        if batch.input_bytes > self.batch_bytes:
            self.batch_bytes = batch.input_bytes

    def enqueue(self, batch: Batch, pieces: Iterable[Piece]) -> None:
        """Rows of an unlabelled batch wait for a teacher, where its id belongs."""
        if not batch.waiting:
            heappush(self.queue, batch.id)
        for piece in pieces:
            put_back(batch.waiting, piece)

    def unsettle(self, batch: Batch, spans: Iterable[Span], sent: int = 1) -> None:
        """These rows of the batch, which had labels, are to be labelled anew."""
        if batch.stage is not UNLABELLED:
            self.volume_bytes -= batch.nbytes * (batch.stage is not POISONED)
            batch.stage = UNLABELLED
            self.unlabelled += 1
        pieces = [(start, stop, sent) for _, start, stop in spans]
        batch.unlabelled_rows += count(pieces)
        if pieces:
            self.enqueue(batch, pieces)
        if batch.refusals:
            self.refused[batch.id] = batch

    def label(self, span: Span, teacher: str, row_nbytes: int) -> None:
        """Rows of an unlabelled batch have their labels, from this teacher."""
        number, start, stop = span
        batch = self.batches[number]
        batch.labels += ((span, teacher),)
        batch.row_nbytes = row_nbytes
        batch.unlabelled_rows -= stop - start
        if not batch.unlabelled_rows:
            self.settle(batch, LABELLED)

    def forgo(self, batch: Batch) -> None:
        """An unlabelled batch is to be delivered with no labels at all."""
        self.unqueue(batch)
        self.withheld.pop(batch.id, None)
        batch.labels, batch.row_nbytes, batch.unlabelled_rows = (), 0, 0
        self.settle(batch, LABELLED)

    def waiting(self) -> Iterator[Batch]:
        """The batches with rows that wait, in no order."""
        return (self.batches[number] for number in self.queue)

    def unqueue(self, batch: Batch) -> None:
        """No row of the batch waits any more; what is in flight of it will not matter."""
        if batch.waiting:
            batch.waiting.clear()
            self.queue.remove(batch.id)
            heapify(self.queue)

    def settle(self, batch: Batch, stage: Stage) -> None:
        """An unlabelled batch is decided: LABELLED, or POISONED and never to be."""
        batch.stage = stage
        self.unlabelled -= 1
        if stage is LABELLED:
            nbytes = batch.nbytes
            self.volume_bytes += nbytes
            if nbytes > self.batch_bytes:
                self.batch_bytes = nbytes
        if batch.refusals is not None:
            self.refused.pop(batch.id, None)
        if not self.ordered:
            self.line.append(batch)

    def deliver(self, batch: Batch) -> None:
        """The batch is the student's to take."""
        batch.stage = DELIVERED
        self.deliverable += 1

    def withhold(self, batch: Batch) -> None:
        """Nothing of the batch has a label, and none of its rows is sent before `Found`."""
        batch.unlabelled_rows = 0
        self.unsettle(batch, ())
        batch.unlabelled_rows = batch.rows
        self.withheld[batch.id] = batch

    def line_up(self, batch: Batch) -> None:
        """A batch that was delivered is to be delivered again, in its turn."""
        batch.returned = True
        if self.ordered:
            insort(self.line, batch, key=lambda other: other.id)

    # --------------------------------------------------------------------------- the requests

    def give_up(self, request: Request, teacher: Teacher) -> None:
        """The answer of `teacher` does not count: unless another's does, back with its rows."""
        if teacher.name not in request.holders:
            return
        request.holders.discard(teacher.name)
        if not request.holders:
            self.put_back(request)

    def put_back(self, request: Request) -> None:
        """No answer to it counts any more: what is still wanted of it goes to the front."""
        request.holders.clear()
        for batch, span in zip(request.batches, request.spans, strict=True):
            if batch.stage is UNLABELLED:
                self.enqueue(batch, [(span.start, span.stop, request.attempt)])

    def void_requests(self) -> None:
        """Nothing that is in flight counts any more."""
        self.hedges.clear()
        for teacher in self.teachers.values():
            for request in teacher.in_flight.values():
                request.holders.clear()

    # --------------------------------------------------------------------------- the teachers

    def believe_refusals(self, teacher: Teacher) -> None:
        """The teacher labels batches: what it has refused may be to blame."""
        teacher.labels = True
        for batch in self.batches.values():
            if batch.refusals is not None and teacher.name in batch.refusals:
                batch.refusals[teacher.name].counts = True

    def forget_refusals(self, name: str) -> None:
        """Batches that the teacher refused before it labelled anything may go there again."""
        for batch in self.batches.values():
            refusals = batch.refusals
            if refusals is None or name not in refusals or refusals[name].counts:
                continue
            if batch.stage is not POISONED:
                batch.refusals = {other: refusals[other] for other in refusals if other != name}
                if not batch.refusals:
                    batch.refusals = None
                    self.refused.pop(batch.id, None)

    def refresh(self, teacher: Teacher) -> None:
        """List the teacher where it belongs, after any change to it; one that is done goes."""
        shut = teacher.revoked or teacher.resting or teacher.on_trial
        if not shut and len(teacher.in_flight) < teacher.window:
            self.open[teacher.name] = teacher
            return
        self.open.pop(teacher.name, None)
        if teacher.revoked and not teacher.in_flight:
            self.teachers.pop(teacher.name, None)
