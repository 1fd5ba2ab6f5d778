"""The ledger's batches, requests and teachers, and the tables that keep them consistent.

Some tables are redundant for speed: `open`, `queue`, `refused` and the counters could be derived
from `batches` and `teachers`. Each method updates both sides at once; `check` derives and compares.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heapify, heappush

from .events import BatchLabelled, GoesUnlabelled, Instruction, LabelsRevoked, Poison, Span

#: How much of a teacher's speed estimate the newest answer replaces.
SPEED_GAIN = 0.25
#: Rows [start, stop) of some batch that wait for a teacher, and how often they were sent:
#: (start, stop, sent). A plain tuple, as one is made for every batch.
WaitingRows = tuple[int, int, int]


class BatchStage(Enum):
    """Where a batch is in its life; one that is disbelieved is unlabelled again."""

    UNLABELLED = "unlabelled"  # some of its rows wait or are in flight
    LABELLED = "labelled"  # until it is released
    POISONED = "poisoned"  # until it is released
    RELEASED = "released"  # until the student has taken it


#: By name, as the look-up of an enum's member takes longer than most of what is done with it.
UNLABELLED, LABELLED = BatchStage.UNLABELLED, BatchStage.LABELLED
POISONED, RELEASED = BatchStage.POISONED, BatchStage.RELEASED


@dataclass(slots=True)
class Refusal:
    """Why one teacher does not label one batch.

    Attributes:
        reason: what it said.
        counts: the teacher has labelled something, so the batch may be to blame.
        crashes: how often the batch crashed its predictor; 0: it said that it never labels it.
        again: after a crash, it may get the batch once more: there is no other teacher to ask.
    """

    reason: str
    counts: bool
    crashes: int = 0
    again: bool = False


@dataclass(slots=True, eq=False)
class LedgerBatch:
    """One batch, from `Queued` to `Taken`.

    While it is unlabelled, each of its rows either waits, or is in one request whose answer counts,
    or has its label: from a teacher, or from the beginning.
    """

    id: int
    rows: int
    input_bytes: int
    row_nbytes: int  # of labels, once they are known
    waiting: list[WaitingRows]  # in order
    unlabelled_rows: int  # waiting or in flight
    kind: int = 0
    stage: BatchStage = UNLABELLED
    #: Rows that teachers have labelled, and who.
    labels: tuple[tuple[Span, str], ...] = ()
    #: By teacher. None, not an empty dict: hardly any batch is ever refused.
    refusals: dict[str, Refusal] | None = None
    alone: bool = False  # it was in a refused request of several batches: it is joined no more
    makers: tuple[str, ...] = ()  # of labels that are believed together, or not

    @property
    def nbytes(self) -> int:
        """Bytes of all that is held of it."""
        return self.input_bytes + self.rows * self.row_nbytes

    def may_go_to(self, teacher: str) -> bool:
        """Whether `teacher` has not refused it, or may be asked once more."""
        if self.refusals is None or (refusal := self.refusals.get(teacher)) is None:
            return True
        return refusal.again

    def may_join(self, other: LedgerBatch) -> bool:
        """Whether one request may have rows of both."""
        return self.kind == other.kind and not (self.alone or other.alone)

    def disown(self, teacher: str) -> tuple[Span, ...]:
        """Take out the labels of `teacher`; the rows that have none any more."""
        if teacher in self.makers:
            self.makers = ()
            return (Span(self.id, 0, self.rows),)
        own = tuple(span for span, labeller in self.labels if labeller == teacher)
        if own:
            self.labels = tuple(label for label in self.labels if label[1] != teacher)
        return own

    def disown_all(self) -> tuple[Span, ...]:
        """Take out all of its labels; the rows that have none any more."""
        self.labels, self.makers = (), ()
        return (Span(self.id, 0, self.rows),)


@dataclass(slots=True, eq=False)
class LedgerRequest:
    """Rows that are at one teacher, or at several once it is hedged."""

    id: int
    spans: tuple[Span, ...]
    batches: tuple[LedgerBatch, ...]  # of each span
    rows: int
    attempt: int
    #: Teachers whose answer would count. A copy that does not count still fills a window.
    holders: set[str] = field(default_factory=set)

    @property
    def joined(self) -> bool:
        """Whether it is of several batches."""
        return self.batches[0] is not self.batches[-1]

    @property
    def wanted(self) -> tuple[Span, ...]:
        """Those of its spans whose batches still wait for their labels."""
        if len(self.batches) == 1:  # as nearly always
            return self.spans if self.batches[0].stage is UNLABELLED else ()
        pairs = zip(self.spans, self.batches, strict=True)
        return tuple(span for span, batch in pairs if batch.stage is UNLABELLED)

    @property
    def may_be_copied(self) -> bool:
        """Whether its answer is still wanted, and all of its rows are still there to be sent."""
        return bool(self.holders) and all(b.stage is UNLABELLED for b in self.batches)


@dataclass(slots=True, eq=False)
class LedgerTeacher:
    """One teacher, from `TeacherJoined` until it is lost, or revoked and done."""

    name: str
    order: int  # of joining: breaks ties
    window: int
    most_rows: int | None = None
    seconds_per_row: float | None = None
    on_trial: bool = False
    revoked: bool = False
    resting: bool = False  # failed, and not resumed yet
    labels: bool = False  # it has answered with labels: its refusals say something of batches
    refused: int = 0  # requests, since it joined
    in_flight: dict[int, LedgerRequest] = field(default_factory=dict)  # in the order of sending
    rows_in_flight: int = 0

    @property
    def usable(self) -> bool:
        """Whether it may be sent to at all, but for copies that name it."""
        return not (self.revoked or self.resting or self.on_trial)

    @property
    def idle(self) -> bool:
        """Whether it may be sent to, and has nothing in flight."""
        return self.usable and not self.in_flight

    @property
    def room(self) -> int:
        """Requests that its window has room for."""
        return max(self.window - len(self.in_flight), 0)

    @property
    def free(self) -> int:
        """Requests that may still be sent there now."""
        return self.room if self.usable else 0

    @property
    def there(self) -> bool:
        """Whether it is to be reckoned with, now or once it has rested."""
        return not (self.revoked or self.on_trial)

    def portion(self, rows: int) -> int:
        """How many of `rows` one request to it may have."""
        return rows if self.most_rows is None else min(rows, self.most_rows)

    def may_copy(self, request: LedgerRequest) -> bool:
        """Whether a copy of `request` may be sent there, once there is room."""
        return request.id not in self.in_flight and all(
            batch.may_go_to(self.name) for batch in request.batches
        )

    def learn(self, rows: int, device_s: float) -> None:
        """Follow the device time of its answers; what is not positive says nothing."""
        if device_s <= 0:
            return
        seconds = device_s / rows
        if self.seconds_per_row is None:
            self.seconds_per_row = seconds
        else:
            self.seconds_per_row += SPEED_GAIN * (seconds - self.seconds_per_row)


def put_back(pieces: list[WaitingRows], piece: WaitingRows) -> None:
    """Put `piece` where its rows belong; none of them may be there already."""
    insort(pieces, piece)


def cut(pieces: list[WaitingRows], most_rows: int) -> list[WaitingRows]:
    """Take the first `most_rows` rows (>= 1), or all there are, out of `pieces`."""
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


def runs(pieces: Iterable[WaitingRows]) -> list[tuple[int, int]]:
    """The rows of `pieces`, in growing order, as few (start, stop) as they can be said in."""
    joined: list[tuple[int, int]] = []
    for start, stop, _ in pieces:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def pieces_of(rows: int, missing: Sequence[tuple[int, int]] | None) -> list[WaitingRows]:
    """What waits of a new batch of `rows`: those that are `missing`, or all of it.

    Raises:
        ValueError: `missing` are not rows of the batch, in order and disjoint, or it has none.
    """
    if missing is None and rows > 0:  # as nearly always
        return [(0, rows, 0)]
    if rows < 1:
        raise ValueError(f"a batch has at least 1 row, not {rows}")
    end = 0
    for start, stop in missing or ():
        if not end <= start < stop <= rows:
            raise ValueError(f"missing rows must grow, and lie within {rows} rows: {missing}")
        end = stop
    return [(start, stop, 0) for start, stop in missing or ()]


def count(pieces: Iterable[WaitingRows]) -> int:
    """How many rows they have."""
    return sum(stop - start for start, stop, _ in pieces)


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

    teachers: dict[str, LedgerTeacher] = field(default_factory=dict)
    open: dict[str, LedgerTeacher] = field(default_factory=dict)
    batches: dict[int, LedgerBatch] = field(default_factory=dict)
    news: list[Instruction] = field(default_factory=list)
    queue: list[int] = field(default_factory=list)
    refused: dict[int, LedgerBatch] = field(default_factory=dict)
    withheld: dict[int, LedgerBatch] = field(default_factory=dict)
    hedges: list[tuple[LedgerRequest, str | None]] = field(default_factory=list)
    unlabelled: int = 0
    volume_bytes: int = 0
    last_id: int = -1
    last_rows: int = 0
    batch_bytes: int = 0
    joined: int = 0
    awaited: int = 0

    # ---------------------------------------------------------------------------- the batches

    def admit(self, batch: LedgerBatch) -> None:
        """List a new batch, not placed yet."""
        if batch.id <= self.last_id:
            raise ValueError(f"batch {batch.id} comes after batch {self.last_id}: ids must grow")
        self.batches[batch.id] = batch
        self.last_id = batch.id
        if batch.input_bytes > self.batch_bytes:
            self.batch_bytes = batch.input_bytes

    def enqueue(self, batch: LedgerBatch, pieces: Iterable[WaitingRows]) -> None:
        """Rows of an unlabelled batch wait for a teacher, where its id belongs."""
        if not batch.waiting:
            heappush(self.queue, batch.id)
        for piece in pieces:
            put_back(batch.waiting, piece)

    def unsettle(self, batch: LedgerBatch, spans: Iterable[Span], sent: int = 1) -> None:
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

    def forgo(self, batch: LedgerBatch) -> None:
        """An unlabelled batch is to have no labels at all."""
        self.unqueue(batch)
        self.withheld.pop(batch.id, None)
        batch.labels, batch.row_nbytes, batch.unlabelled_rows = (), 0, 0
        self.settle(batch, LABELLED, is_forgone=True)

    def waiting(self) -> Iterator[LedgerBatch]:
        """The batches with rows that wait, in no order."""
        return (self.batches[number] for number in self.queue)

    def unqueue(self, batch: LedgerBatch) -> None:
        """No row of the batch waits any more; what is in flight of it will not matter."""
        if batch.waiting:
            batch.waiting.clear()
            self.queue.remove(batch.id)
            heapify(self.queue)

    def settle(self, batch: LedgerBatch, stage: BatchStage, *, is_forgone: bool = False) -> None:
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
        self.news.append(GoesUnlabelled(batch.id) if is_forgone else BatchLabelled(batch.id))

    def withhold(self, batch: LedgerBatch) -> None:
        """Nothing of the batch has a label, and none of its rows is sent before `Found`."""
        self._reopen(batch, whole=True)
        batch.unlabelled_rows = batch.rows
        self.withheld[batch.id] = batch

    def _reopen(self, batch: LedgerBatch, *, whole: bool) -> None:
        """A batch is unlabelled from now on, if it was not."""
        if batch.stage is not UNLABELLED:
            self.volume_bytes -= batch.nbytes * (batch.stage is not POISONED)
            batch.stage = UNLABELLED
            self.unlabelled += 1
            self.news.append(LabelsRevoked(batch.id, whole))

    # --------------------------------------------------------------------------- the requests

    def give_up(self, request: LedgerRequest, teacher: LedgerTeacher) -> None:
        """The answer of `teacher` does not count: unless another's does, back with its rows."""
        if teacher.name not in request.holders:
            return
        request.holders.discard(teacher.name)
        if not request.holders:
            self.put_back(request)

    def put_back(self, request: LedgerRequest) -> None:
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

    def believe_refusals(self, teacher: LedgerTeacher) -> None:
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

    def refresh(self, teacher: LedgerTeacher) -> None:
        """List the teacher where it belongs, after any change to it; one that is done goes."""
        shut = teacher.revoked or teacher.resting or teacher.on_trial
        if not shut and len(teacher.in_flight) < teacher.window:
            self.open[teacher.name] = teacher
            return
        self.open.pop(teacher.name, None)
        if teacher.revoked and not teacher.in_flight:
            self.teachers.pop(teacher.name, None)
