"""The ledger's batches, requests and teachers, and the tables that keep them consistent.

Some tables are redundant for speed: `with_room`, `queue`, `refused` and the counters could be
derived from `batches` and `teachers`. Each method keeps them consistent; tests derive them and
compare (`tests/scheduler/ledger/invariants.py`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappush

from .events import BatchLabelled, GoesUnlabelled, Instruction, LabelsRevoked, Poison, Span

#: Weight of the newest answer in a teacher's speed estimate.
SPEED_GAIN = 0.25
#: Rows that wait for a teacher: (start, stop, number of times that they were sent). A plain tuple,
#: because one is made for every batch.
WaitingRows = tuple[int, int, int]


class BatchStage(Enum):
    """The stage of a batch; if its labels are revoked, the batch is unlabelled again."""

    UNLABELLED = "unlabelled"  # some of its rows are withheld, wait or are in flight
    LABELLED = "labelled"  # or finished without labels; until it is released
    POISONED = "poisoned"  # until it is released
    RELEASED = "released"  # until the student has taken it


#: Module constants, because looking up a member of an enum is slow.
UNLABELLED, LABELLED = BatchStage.UNLABELLED, BatchStage.LABELLED
POISONED, RELEASED = BatchStage.POISONED, BatchStage.RELEASED


@dataclass(slots=True)
class Refusal:
    """Why one teacher does not label one batch.

    Attributes:
        reason: the teacher's message.
        blames_batch: this refusal counts against the batch: the teacher has proved able to label.
        crashes: how often the batch crashed the teacher's predictor; 0: the teacher refused it.
        may_retry: after a crash the teacher may get the batch again, as no other teacher is left.
    """

    reason: str
    blames_batch: bool
    crashes: int = 0
    may_retry: bool = False


@dataclass(slots=True, eq=False)
class LedgerBatch:
    """One batch, from `Queued` to `BatchConsumed`.

    While it is unlabelled, each of its rows is withheld (see `Tables`), waits, is in one request
    with `holders`, or has its label.
    """

    id: int
    rows: int
    input_bytes: int
    row_nbytes: int  # of labels, once they are known
    waiting: list[WaitingRows]  # in order
    unlabelled_rows: int  # withheld, waiting or in flight
    layout_id: int = 0
    is_call: bool = False
    stage: BatchStage = UNLABELLED
    #: Rows that teachers have labelled, each span with its teacher.
    labels: tuple[tuple[Span, str], ...] = ()
    #: By teacher; None: there are none, the usual case.
    refusals: dict[str, Refusal] | None = None
    send_alone: bool = False  # it was in a refused request of several batches: do not join it again
    restored_labellers: tuple[str, ...] = ()  # labelled rows for an earlier engine; unknown which

    @property
    def nbytes(self) -> int:
        """Bytes of the inputs and labels, as far as the size of labels is known."""
        return self.input_bytes + self.rows * self.row_nbytes

    def may_go_to(self, teacher: str) -> bool:
        """Whether `teacher` has not refused the batch, or may get it once more."""
        if self.refusals is None or (refusal := self.refusals.get(teacher)) is None:
            return True
        return refusal.may_retry

    def may_join(self, other: LedgerBatch) -> bool:
        """Whether one request may have rows of both batches."""
        return self.layout_id == other.layout_id and not (self.send_alone or other.send_alone)

    def drop_labels_of(self, teacher: str) -> tuple[Span, ...]:
        """Remove the labels of `teacher`; return the rows that lost their labels."""
        if teacher in self.restored_labellers:
            self.restored_labellers = ()
            return (Span(self.id, 0, self.rows),)
        own = tuple(span for span, labeller in self.labels if labeller == teacher)
        if own:
            self.labels = tuple(label for label in self.labels if label[1] != teacher)
        return own

    def drop_all_labels(self) -> tuple[Span, ...]:
        """Remove all labels; return the rows that lost their labels."""
        self.labels, self.restored_labellers = (), ()
        return (Span(self.id, 0, self.rows),)


@dataclass(slots=True, eq=False)
class LedgerRequest:
    """Rows in flight at one teacher, or at several after a hedge."""

    id: int
    spans: tuple[Span, ...]
    batches: tuple[LedgerBatch, ...]  # of each span
    rows: int
    attempt: int
    #: Teachers whose answer would be accepted. Copies at other teachers still fill a window.
    holders: set[str] = field(default_factory=set)

    @property
    def joined(self) -> bool:
        """Whether the request has rows of several batches."""
        return self.batches[0] is not self.batches[-1]

    @property
    def wanted(self) -> tuple[Span, ...]:
        """The spans in batches that are still unlabelled."""
        if len(self.batches) == 1:  # the usual case
            return self.spans if self.batches[0].stage is UNLABELLED else ()
        pairs = zip(self.spans, self.batches, strict=True)
        return tuple(span for span, batch in pairs if batch.stage is UNLABELLED)

    @property
    def may_be_copied(self) -> bool:
        """Whether an answer is awaited, and none of the batches is finished."""
        return bool(self.holders) and all(b.stage is UNLABELLED for b in self.batches)


@dataclass(slots=True, eq=False)
class LedgerTeacher:
    """A teacher, from `TeacherJoined` until it is lost, or revoked and finished."""

    name: str
    order: int  # of joining: breaks ties
    window: int
    most_rows: int | None = None
    seconds_per_row: float | None = None
    on_trial: bool = False
    revoked: bool = False
    resting: bool = False  # failed, and not resumed yet
    has_labelled: bool = False  # so its refusals count against batches
    usable: bool = True  # it is not revoked, resting or on trial; see `Tables.refresh`
    refused: int = 0  # refused requests that had at most `most_rows` rows, since it joined
    in_flight: dict[int, LedgerRequest] = field(default_factory=dict)  # in the order of sending
    rows_in_flight: int = 0

    @property
    def idle(self) -> bool:
        """Whether the teacher is usable and has nothing in flight."""
        return self.usable and not self.in_flight

    @property
    def room(self) -> int:
        """Number of further requests that fit into the window."""
        return max(self.window - len(self.in_flight), 0)

    @property
    def may_label(self) -> bool:
        """Whether the teacher can label, now or after a rest."""
        return not (self.revoked or self.on_trial)

    def portion(self, rows: int) -> int:
        """Return how many of `rows` fit into one request to the teacher."""
        return rows if self.most_rows is None else min(rows, self.most_rows)

    def may_copy(self, request: LedgerRequest) -> bool:
        """Whether a copy of `request` may be sent to the teacher, given room."""
        return request.id not in self.in_flight and all(
            batch.may_go_to(self.name) for batch in request.batches
        )

    def learn(self, rows: int, device_s: float) -> None:
        """Update the speed estimate by an answer; ignore device times that are not positive."""
        if device_s <= 0:
            return
        seconds = device_s / rows
        if self.seconds_per_row is None:
            self.seconds_per_row = seconds
        else:
            self.seconds_per_row += SPEED_GAIN * (seconds - self.seconds_per_row)


def take_rows(pieces: list[WaitingRows], most_rows: int) -> list[WaitingRows]:
    """Remove and return the first `most_rows` rows (>= 1), or all, of `pieces`."""
    taken = []
    while pieces and most_rows:
        start, stop, sent = pieces[0]
        if stop - start > most_rows:
            pieces[0] = (start + most_rows, stop, sent)
            stop = start + most_rows
        else:
            del pieces[0]
        taken.append((start, stop, sent))
        most_rows -= stop - start
    return taken


def merge_adjacent(pieces: Iterable[WaitingRows]) -> list[tuple[int, int]]:
    """Return (start, stop) of `pieces`, which are in ascending order, with adjacent ones joined."""
    joined: list[tuple[int, int]] = []
    for start, stop, _ in pieces:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def waiting_rows(rows: int, missing: Sequence[tuple[int, int]] | None) -> list[WaitingRows]:
    """Return the waiting rows of a new batch: the `missing` ones, or all.

    Raises:
        ValueError: `missing` are not disjoint, ascending rows of the batch, or it has no rows.
    """
    if missing is None and rows > 0:  # the usual case
        return [(0, rows, 0)]
    if rows < 1:
        raise ValueError(f"a batch has at least 1 row, not {rows}")
    end = 0
    for start, stop in missing or ():
        if not end <= start < stop <= rows:
            raise ValueError(f"missing rows must grow, and lie within {rows} rows: {missing}")
        end = stop
    return [(start, stop, 0) for start, stop in missing or ()]


def count_rows(pieces: Iterable[WaitingRows]) -> int:
    """Return the number of rows in `pieces`."""
    return sum(stop - start for start, stop, _ in pieces)


@dataclass(slots=True)
class Tables:
    """All state of a ledger.

    Attributes:
        teachers: all but those that are lost, or revoked and finished.
        with_room: usable teachers with room in their window.
        batches: all from `Queued` or `BatchRestored` to `BatchConsumed`, by id, in order; poison
            batches until `Released`.
        batch_instructions: instructions about batches from the current event.
        queue: a heap of the ids of batches with waiting rows: the lowest is the front.
        refused: unlabelled batches that a teacher refused.
        withheld: unlabelled batches that wait for a search of the label store.
        hedges: copies to send, in the order of their rows: the request, and the teacher that gets
            the copy (None: any teacher).
        unlabelled: number of unlabelled batches.
        unlabelled_calls: how many of `unlabelled` belong to calls outside the training loop.
        volume_bytes: bytes of the training loop's batches that are labelled and not taken.
        last_id: id of the latest batch.
        last_rows: rows of the training loop's batch that was queued last; 0 before any.
        batch_bytes: size of the training loop's largest batch so far.
        joined: number of teachers that ever joined.
        awaited: number of teachers that have not joined yet, but may do so at any moment.
    """

    teachers: dict[str, LedgerTeacher] = field(default_factory=dict)
    with_room: dict[str, LedgerTeacher] = field(default_factory=dict)
    batches: dict[int, LedgerBatch] = field(default_factory=dict)
    batch_instructions: list[Instruction] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    refused: dict[int, LedgerBatch] = field(default_factory=dict)
    withheld: dict[int, LedgerBatch] = field(default_factory=dict)
    hedges: list[tuple[LedgerRequest, str | None]] = field(default_factory=list)
    unlabelled: int = 0
    unlabelled_calls: int = 0
    volume_bytes: int = 0
    last_id: int = -1
    last_rows: int = 0
    batch_bytes: int = 0
    joined: int = 0
    awaited: int = 0

    # ---------------------------------------------------------------------------- the batches

    def admit(self, batch: LedgerBatch) -> None:
        """Register a new batch; the caller queues, withholds or finishes it."""
        if batch.id <= self.last_id:
            raise ValueError(f"batch {batch.id} comes after batch {self.last_id}: ids must grow")
        self.batches[batch.id] = batch
        self.last_id = batch.id
        if batch.input_bytes > self.batch_bytes and not batch.is_call:
            self.batch_bytes = batch.input_bytes

    def enqueue(self, batch: LedgerBatch, pieces: Iterable[WaitingRows]) -> None:
        """Let rows of an unlabelled batch wait for a teacher; they must not wait already."""
        if not batch.waiting:
            heappush(self.queue, batch.id)
        for piece in pieces:
            insort(batch.waiting, piece)

    def reopen(self, batch: LedgerBatch, spans: Iterable[Span], sent: int = 1) -> None:
        """Label these rows of the batch again; `batch.unlabelled_rows` must not include them.

        `sent` is the number of times that they count as sent.
        """
        pieces = [(start, stop, sent) for _, start, stop in spans]
        self._mark_unlabelled(batch, whole=count_rows(pieces) == batch.rows)
        batch.unlabelled_rows += count_rows(pieces)
        if pieces:
            self.enqueue(batch, pieces)
        if batch.refusals:
            self.refused[batch.id] = batch

    def label(self, span: Span, teacher: str, row_nbytes: int) -> None:
        """Record labels of `teacher` for rows of an unlabelled batch."""
        number, start, stop = span
        batch = self.batches[number]
        batch.labels += ((span, teacher),)
        batch.row_nbytes = row_nbytes
        batch.unlabelled_rows -= stop - start
        if not batch.unlabelled_rows:
            self.finish(batch, LABELLED)

    def finish_without_labels(self, batch: LedgerBatch) -> None:
        """Finish an unlabelled batch without labels."""
        self.unqueue(batch)
        self.withheld.pop(batch.id, None)
        batch.labels, batch.row_nbytes, batch.unlabelled_rows = (), 0, 0
        self.finish(batch, LABELLED, without_labels=True)

    def waiting(self) -> Iterator[LedgerBatch]:
        """Iterate over the batches with waiting rows, in no order."""
        return (self.batches[number] for number in self.queue)

    def unqueue(self, batch: LedgerBatch) -> None:
        """Let no rows of the batch wait for a teacher any more."""
        if batch.waiting:
            batch.waiting.clear()
            self.queue.remove(batch.id)
            heapify(self.queue)

    def finish(
        self, batch: LedgerBatch, stage: BatchStage, *, without_labels: bool = False
    ) -> None:
        """Make an unlabelled batch LABELLED or POISONED."""
        batch.stage = stage
        self.unlabelled -= 1
        self.unlabelled_calls -= batch.is_call
        if batch.refusals is not None:
            self.refused.pop(batch.id, None)
        if stage is POISONED:
            refusals = (batch.refusals or {}).items()
            reasons = tuple(f"{name}: {refusal.reason}" for name, refusal in refusals)
            self.batch_instructions.append(Poison(batch.id, reasons))
            return
        if not batch.is_call:
            nbytes = batch.nbytes
            self.volume_bytes += nbytes
            if nbytes > self.batch_bytes:
                self.batch_bytes = nbytes
        self.batch_instructions.append(
            GoesUnlabelled(batch.id) if without_labels else BatchLabelled(batch.id)
        )

    def withhold(self, batch: LedgerBatch) -> None:
        """Make the batch unlabelled, and send none of its rows before `StoreSearched`."""
        self._mark_unlabelled(batch, whole=True)
        batch.unlabelled_rows = batch.rows
        self.withheld[batch.id] = batch

    def _mark_unlabelled(self, batch: LedgerBatch, *, whole: bool) -> None:
        """Make a batch unlabelled; if it was finished, emit `LabelsRevoked` (see `whole` there)."""
        if batch.stage is not UNLABELLED:
            if batch.stage is not POISONED and not batch.is_call:
                self.volume_bytes -= batch.nbytes
            batch.stage = UNLABELLED
            self.unlabelled += 1
            self.unlabelled_calls += batch.is_call
            self.batch_instructions.append(LabelsRevoked(batch.id, whole))

    # --------------------------------------------------------------------------- the requests

    def give_up(self, request: LedgerRequest, teacher: LedgerTeacher) -> None:
        """Ignore the answer of `teacher`; if no other answer is awaited, the rows wait again."""
        if teacher.name not in request.holders:
            return
        request.holders.discard(teacher.name)
        if not request.holders:
            self.put_back(request)

    def put_back(self, request: LedgerRequest) -> None:
        """Ignore all answers to the request; its rows that are still wanted wait again."""
        request.holders.clear()
        for batch, span in zip(request.batches, request.spans, strict=True):
            if batch.stage is UNLABELLED:
                self.enqueue(batch, [(span.start, span.stop, request.attempt)])

    def void_requests(self) -> None:
        """Ignore the answers to all requests in flight."""
        self.hedges.clear()
        for teacher in self.teachers.values():
            for request in teacher.in_flight.values():
                request.holders.clear()

    # --------------------------------------------------------------------------- the teachers

    def believe_refusals(self, teacher: LedgerTeacher) -> None:
        """Count the teacher's refusals against batches, because it has labelled something."""
        teacher.has_labelled = True
        for batch in self.batches.values():
            if batch.refusals is not None and teacher.name in batch.refusals:
                batch.refusals[teacher.name].blames_batch = True

    def forget_refusals(self, name: str) -> None:
        """Forget the refusals of a teacher that has labelled nothing, except of poison batches."""
        for batch in self.batches.values():
            refusals = batch.refusals
            if refusals is None or name not in refusals or refusals[name].blames_batch:
                continue
            if batch.stage is not POISONED:
                batch.refusals = {other: refusals[other] for other in refusals if other != name}
                if not batch.refusals:
                    batch.refusals = None
                    self.refused.pop(batch.id, None)

    def refresh(self, teacher: LedgerTeacher) -> None:
        """Update the tables after a change to the teacher; remove it if it is revoked and idle."""
        teacher.usable = not (teacher.revoked or teacher.resting or teacher.on_trial)
        if teacher.usable and len(teacher.in_flight) < teacher.window:
            self.with_room[teacher.name] = teacher
            return
        self.with_room.pop(teacher.name, None)
        if teacher.revoked and not teacher.in_flight:
            self.teachers.pop(teacher.name, None)
