"""Events that the ledger takes, and instructions that it returns.

The unit of the stream is the student's batch, numbered by an int that only grows, over all epochs
of a reader. The unit of sending is a *request*: spans of rows of one or several batches, numbered
by the ledger. Teachers are named by their id. After a `Hedge` several teachers may work on the same
request; (request, teacher) identifies one copy.

The driver owns the connections: it turns what happens into events and carries out instructions.
Each `Send` is ended by exactly one of `Answered`, `AttemptFailed`, `Refused` and `Cancelled`, or by
the loss of its teacher. After `TeacherGone` the driver must drop everything that arrives over the
old connection. The next `TeacherJoined` with the same id counts as a new teacher.

A batch is *over* when no more labels are needed for it: it is labelled, poison, delivered without
labels, or forgotten.

Values created for every batch are named tuples: they take half the time of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Span(NamedTuple):
    """Rows [start, stop) of a batch, at least one."""

    batch: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


class Send(NamedTuple):
    """Send these rows to the teacher as one request.

    Attributes:
        request: its number; a hedge has the number of the request that it copies.
        teacher: id of the teacher.
        spans: the rows; adjacent rows are one span.
        attempt: 1 the first time that these rows are sent; more for a resend or a hedge.
    """

    request: int
    teacher: str
    spans: tuple[Span, ...]
    attempt: int


class Accept(NamedTuple):
    """The answer counts: write the labels of `spans` into their batches.

    Spans of the request that are missing here belong to batches that are over.
    """

    request: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the labels of this teacher: they are late, a duplicate, of a trial, or no longer wanted.

    This ends one copy; another teacher may still work on the request.
    """

    request: int
    teacher: str


class BatchLabelled(NamedTuple):
    """All rows of the batch have their labels: it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class GoesUnlabelled:
    """The batch is delivered without labels: drop its labels; it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The batch will never be labelled: raise an error in its place.

    It replaces the batch's `BatchLabelled`. `reasons` are "teacher: message", in the order of
    refusal.
    """

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelsRevoked:
    """A batch that was `BatchLabelled`, `GoesUnlabelled` or `Poison` will be labelled again.

    Attributes:
        batch: its id.
        whole: drop all its labels: the new ones may have another shape. False: only some rows get
            new labels.
    """

    batch: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """Search the label store for the batch's labels, and answer `StoreSearched`.

    Until then no teacher gets the batch. A second search replaces the first one, which was for
    another model.
    """

    batch: int


Instruction = (
    Send | Accept | Discard | BatchLabelled | GoesUnlabelled | LabelsRevoked | Poison | LookUp
)


@dataclass(frozen=True, slots=True)
class TeacherJoined:
    """A teacher can get requests. A known one gets new settings, and no longer rests.

    If it has labelled nothing yet, its refusals are forgotten, except those of poison batches.

    Attributes:
        teacher: its id.
        window: limit of requests in flight (>= 1).
        most_rows: limit of rows per request (>= 1): batches are cut and joined to come close to it.
            None: a request has all waiting rows of one batch. Copies are not cut: they may have
            more rows.
        seconds_per_row: its measured device time per row; None: unknown.
        on_trial: it gets only copies that a `Hedge` addresses to it, until `Readmitted`.
        has_labelled: it labelled something before its connection was lost.
    """

    teacher: str
    window: int
    most_rows: int | None = None
    seconds_per_row: float | None = None
    on_trial: bool = False
    has_labelled: bool = False


@dataclass(frozen=True, slots=True)
class Awaited:
    """The number of teachers that have not answered their first probe: they may join at any moment.

    While it is above 0, a batch cannot count as refused by all teachers.

    Attributes:
        teachers: the number from now on; 0 before the first such event.
    """

    teachers: int


@dataclass(frozen=True, slots=True)
class TeacherRevoked:
    """The coordinator revoked the teacher: it finishes its requests and gets nothing new."""

    teacher: str


@dataclass(frozen=True, slots=True)
class TeacherGone:
    """The teacher is gone with all its requests in flight; an unknown id is allowed."""

    teacher: str


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The teacher may have `window` requests in flight (>= 1); if it has more, they go on."""

    teacher: str
    window: int


@dataclass(frozen=True, slots=True)
class RequestSizeChanged:
    """Requests to the teacher have at most `most_rows` rows from now on; see `TeacherJoined`."""

    teacher: str
    most_rows: int | None


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause after an `AttemptFailed` is over: the teacher may get requests again."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Ejected:
    """The teacher goes on trial: it gets only copies that a `Hedge` addresses to it.

    Its requests in flight go on and count. Answers to requests sent during the trial never count:
    the ledger discards them, and the driver may compare or time them.
    """

    teacher: str


@dataclass(frozen=True, slots=True)
class Readmitted:
    """The trial is over: the teacher may get requests again, unless it rests."""

    teacher: str


@dataclass(frozen=True, slots=True)
class InvalidateTeacher:
    """Eject the teacher, and label all rows again that it labelled and that are not released.

    Answers to its requests in flight are discarded. The teacher may be unknown, as it may have been
    lost before.
    """

    teacher: str


# ---------------------------------------------------------------------- events: the source


class Queued(NamedTuple):
    """A batch of the source, or of a call, is to be labelled; ids grow.

    Attributes:
        batch: its id.
        nbytes: bytes of its inputs.
        rows: number of rows (>= 1); a batch that cannot be cut counts as a single row.
        missing: rows that need labels, as disjoint (start, stop) in ascending order; None: all
            rows; (): none, the batch is labelled already.
        row_nbytes: bytes of one row's labels, as far as known; answers update it.
        layout_id: only batches with the same number are joined: their rows have equal shapes and
            dtypes.
        is_call: a call outside the training loop asked for its labels.
        is_withheld: its labels are searched in a label store; no row is sent before
            `StoreSearched`.
    """

    batch: int
    nbytes: int
    rows: int
    missing: tuple[tuple[int, int], ...] | None = None
    row_nbytes: int = 0
    layout_id: int = 0
    is_call: bool = False
    is_withheld: bool = False


@dataclass(frozen=True, slots=True)
class BatchRestored:
    """A previous engine has offered this batch with its labels to the trainer, which kept both.

    A poison batch has no labels; the volume counts its inputs until it is taken.

    Attributes:
        batch: its id; ids grow.
        nbytes: bytes of its inputs.
        rows: number of rows (>= 1).
        layout_id: as in `Queued`.
        makers: teachers that made its labels. If one of them is no longer trusted, the whole batch
            is labelled again, because this engine cannot replace single rows of these labels.
        row_nbytes: bytes of one row's labels.
    """

    batch: int
    nbytes: int
    rows: int = 1
    layout_id: int = 0
    makers: tuple[str, ...] = ()
    row_nbytes: int = 0


class StoreSearched(NamedTuple):
    """The label store was searched for a withheld batch. Ignored if the batch is over.

    Attributes:
        batch: its id.
        missing: rows that need labels, as in `Queued`.
        row_nbytes: bytes of one row's labels, as far as known.
    """

    batch: int
    missing: tuple[tuple[int, int], ...] | None = None
    row_nbytes: int = 0


# ---------------------------------------------------------------------- events: the answers


class Answered(NamedTuple):
    """Labels of all rows of a request arrived and passed their checks.

    `row_nbytes` is the bytes of one row's labels, `device_s` the device seconds of the whole
    request (<= 0: unknown).
    """

    teacher: str
    request: int
    row_nbytes: int
    device_s: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A retryable failure: the rows are sent again, to this or another teacher.

    The teacher rests: it gets nothing new until `Resumed` or `TeacherJoined`, and its other
    requests go on.

    Attributes:
        teacher: its id.
        request: number of the request.
        crash: the teacher's message if the request crashed its predictor; empty: any other failure.
            If the request has rows of a single batch, this batch then counts as refused.
    """

    teacher: str
    request: int
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The teacher will never answer this request; `reason` is its message.

    If the request has several batches, or more rows than the teacher now gets at once, no batch is
    to blame: the batches are sent again one by one, or in smaller pieces.
    """

    teacher: str
    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request ended without an answer and without a fault: it was withdrawn.

    A driver may end the slower copy of a hedge with it. Rows that no other teacher has are sent
    again.
    """

    teacher: str
    request: int


@dataclass(frozen=True, slots=True)
class Hedge:
    """Send the same spans to another teacher too; the first answer counts.

    The copy is sent before anything that is queued, as soon as there is room at a teacher that does
    not have the request and has not refused its batches. The copy lapses when the request is
    answered or unknown. If some batches of the request are over, the other rows are sent as new
    requests instead.

    With `teacher` the copy goes to that teacher alone, for a comparison of labels. This teacher may
    be resting or on trial. The copy then also lapses when a batch of the request is over.
    """

    request: int
    teacher: str | None = None


# ---------------------------------------------------------------------- events: the student


class BatchConsumed(NamedTuple):
    """The student has consumed a released batch: its bytes are free."""

    batch: int


class Released(NamedTuple):
    """The student may consume a labelled or poison batch, whose labels no longer change."""

    batch: int


@dataclass(frozen=True, slots=True)
class DeliverUnlabelled:
    """Deliver this batch without labels: `GoesUnlabelled` follows, and it counts as labelled.

    Its labels are dropped, and later answers are discarded. No effect on a batch that is over. A
    `Relabel` or `InvalidateBatch` before its release reverses the effect.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class InvalidateBatch:
    """Label this labelled or poison batch again: none of its labels can be trusted.

    For batches with averaged labels of several services, which cannot be separated. No effect on a
    batch that still waits for labels, or is released or forgotten.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The student left the epoch: forget every batch; teachers stay.

    Requests in flight keep their places in the windows until they end.
    """


@dataclass(frozen=True, slots=True)
class Relabel:
    """The teachers' model was exchanged: label all batches again, in order, that are not released.

    The labels of these batches are void, also labels that a batch had when it was queued, and the
    driver drops them. Refusals are void too. Requests in flight keep their places in the windows
    until they end; their answers are discarded. So no batch mixes two models, and an ordered stream
    changes over at one batch.

    Attributes:
        stored: a label store may have labels of the new model: batches are looked up (`LookUp`)
            before any row is sent.
    """

    stored: bool = False


TeacherChange = TeacherRevoked | WindowChanged | RequestSizeChanged | Resumed | Ejected | Readmitted
Event = (
    Answered
    | Queued
    | BatchConsumed
    | BatchRestored
    | AttemptFailed
    | Refused
    | Cancelled
    | Hedge
    | TeacherJoined
    | Awaited
    | TeacherGone
    | TeacherChange
    | InvalidateTeacher
    | Released
    | StoreSearched
    | InvalidateBatch
    | DeliverUnlabelled
    | Reset
    | Relabel
)
