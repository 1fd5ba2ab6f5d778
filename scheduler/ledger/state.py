"""What the ledger knows of one batch, one request and one teacher, and of rows that wait."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .instructions import Span

#: How much of a teacher's speed estimate the newest answer replaces.
SPEED_GAIN = 0.25
#: Rows [start, stop) of some batch that wait for a teacher, and how often they were sent:
#: (start, stop, sent). A plain tuple, as one is made for every batch.
Piece = tuple[int, int, int]


class Stage(Enum):
    """Where a batch is in its life; one that is disbelieved is unlabelled again."""

    UNLABELLED = "unlabelled"  # some of its rows wait or are in flight
    LABELLED = "labelled"  # until it is released
    POISONED = "poisoned"  # until it is released
    RELEASED = "released"  # until the student has taken it


#: By name, as the look-up of an enum's member takes longer than most of what is done with it.
UNLABELLED, LABELLED = Stage.UNLABELLED, Stage.LABELLED
POISONED, RELEASED = Stage.POISONED, Stage.RELEASED


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
class Batch:
    """One batch, from `Queued` to `Taken`.

    While it is unlabelled, each of its rows either waits, or is in one request whose answer counts,
    or has its label: from a teacher, or from the beginning.
    """

    id: int
    rows: int
    input_bytes: int
    row_nbytes: int  # of labels, once they are known
    waiting: list[Piece]  # in order
    unlabelled_rows: int  # waiting or in flight
    kind: int = 0
    stage: Stage = UNLABELLED
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

    def may_join(self, other: Batch) -> bool:
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
class Request:
    """Rows that are at one teacher, or at several once it is hedged."""

    id: int
    spans: tuple[Span, ...]
    batches: tuple[Batch, ...]  # of each span
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
class Teacher:
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
    in_flight: dict[int, Request] = field(default_factory=dict)  # in the order of sending
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

    def may_copy(self, request: Request) -> bool:
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


def put_back(pieces: list[Piece], piece: Piece) -> None:
    """Put `piece` where its rows belong; none of them may be there already."""
    insort(pieces, piece)


def cut(pieces: list[Piece], most_rows: int) -> list[Piece]:
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


def runs(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The rows of `pieces`, in growing order, as few (start, stop) as they can be said in."""
    joined: list[tuple[int, int]] = []
    for start, stop, _ in pieces:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def pieces_of(rows: int, missing: Sequence[tuple[int, int]] | None) -> list[Piece]:
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


def count(pieces: Iterable[Piece]) -> int:
    """How many rows they have."""
    return sum(stop - start for start, stop, _ in pieces)
