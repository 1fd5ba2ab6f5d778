"""The ledger's tables and the steps that keep them in agreement.

Redundant for speed: `open`, `queue`, `refused` and the counters could be derived from `batches` and
`teachers`. Each step below changes both sides at once; `check` derives and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappush

from .instructions import GoesUnlabelled, Instruction, Labelled, LabelsRevoked, Poison, Span
from .state import (
    LABELLED,
    POISONED,
    UNLABELLED,
    Batch,
    Piece,
    Request,
    Stage,
    Teacher,
    count,
    put_back,
)


@dataclass(slots=True)
class Tables:
    """All that a ledger knows.

    Attributes:
        teachers: all that are not lost, nor revoked and done.
        open: those that are free.
        batches: all from `Queued` or `Held` to `Taken`, by id, in order; poison until `Released`.
        news: what the present event has made of batches, to be told.
        queue: a heap of the ids of those with rows that wait: a lower one is nearer to the front.
        refused: unlabelled ones that somebody refused.
        withheld: unlabelled ones that a store is asked for first.
        hedges: requests to be copied, those of the lowest rows first; to whom, or to anyone.
        unlabelled: how many are unlabelled.
        volume_bytes: of those that are labelled or released.
        last_id: of the batches that came so far.
        last_rows: of the last one queued; 0 before any.
        batch_bytes: most bytes that one of them had.
        joined: teachers that ever came.
        awaited: teachers that may join any moment.
    """

    teachers: dict[str, Teacher] = field(default_factory=dict)
    open: dict[str, Teacher] = field(default_factory=dict)
    batches: dict[int, Batch] = field(default_factory=dict)
    news: list[Instruction] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    refused: dict[int, Batch] = field(default_factory=dict)
    withheld: dict[int, Batch] = field(default_factory=dict)
    hedges: list[tuple[Request, str | None]] = field(default_factory=list)
    unlabelled: int = 0
    volume_bytes: int = 0
    last_id: int = -1
    last_rows: int = 0
    batch_bytes: int = 0
    joined: int = 0
    awaited: int = 0

    # ---------------------------------------------------------------------------- the batches

    def admit(self, batch: Batch) -> None:
        """List a new batch, not placed yet."""
        if batch.id <= self.last_id:
            raise ValueError(f"batch {batch.id} comes after batch {self.last_id}: ids must grow")
        self.batches[batch.id] = batch
        self.last_id = batch.id
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
        pieces = [(start, stop, sent) for _, start, stop in spans]
        self._reopen(batch, whole=count(pieces) == batch.rows)
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
        """An unlabelled batch is to have no labels at all."""
        self.unqueue(batch)
        self.withheld.pop(batch.id, None)
        batch.labels, batch.row_nbytes, batch.unlabelled_rows = (), 0, 0
        self.settle(batch, LABELLED, is_forgone=True)

    def waiting(self) -> Iterator[Batch]:
        """The batches with rows that wait, in no order."""
        return (self.batches[number] for number in self.queue)

    def unqueue(self, batch: Batch) -> None:
        """No row of the batch waits any more; what is in flight of it will not matter."""
        if batch.waiting:
            batch.waiting.clear()
            self.queue.remove(batch.id)
            heapify(self.queue)

    def settle(self, batch: Batch, stage: Stage, *, is_forgone: bool = False) -> None:
        """An unlabelled batch is decided: LABELLED, or POISONED and never to be."""
        batch.stage = stage
        self.unlabelled -= 1
        if batch.refusals is not None:
            self.refused.pop(batch.id, None)
        if stage is POISONED:
            said = (batch.refusals or {}).items()
            reasons = tuple(f"{name}: {why.reason}" for name, why in said)
            self.news.append(Poison(batch.id, reasons))
            return
        nbytes = batch.nbytes
        self.volume_bytes += nbytes
        if nbytes > self.batch_bytes:
            self.batch_bytes = nbytes
        self.news.append(GoesUnlabelled(batch.id) if is_forgone else Labelled(batch.id))

    def withhold(self, batch: Batch) -> None:
        """Nothing of the batch has a label, and none of its rows is sent before `Found`."""
        self._reopen(batch, whole=True)
        batch.unlabelled_rows = batch.rows
        self.withheld[batch.id] = batch

    def _reopen(self, batch: Batch, *, whole: bool) -> None:
        """A batch is unlabelled from now on, if it was not."""
        if batch.stage is not UNLABELLED:
            self.volume_bytes -= batch.nbytes * (batch.stage is not POISONED)
            batch.stage = UNLABELLED
            self.unlabelled += 1
            self.news.append(LabelsRevoked(batch.id, whole))

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
