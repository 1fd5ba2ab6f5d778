"""Events that the ledger takes, and instructions that it returns.

The unit of the stream is the student's batch, numbered by an int that only grows, over all epochs
of a reader. The unit of sending is a *request*: spans of rows of one or several batches, numbered
by the ledger. Teachers are named by their id. After a `Hedge` several teachers may work on the same
request; (request, teacher) identifies one copy.

The driver owns the connections: it turns what happens into events and carries out instructions.
Exactly one of `Answered`, `AttemptFailed`, `Refused` and `Cancelled` ends each `Send`, or the loss of its
teacher does. After `TeacherGone` the driver must drop everything that arrives over the old
connection: the teacher's next life begins with the next `TeacherJoined`.

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
        """How many rows it has."""
        return self.stop - self.start


class Send(NamedTuple):
    """Send these rows to the teacher as one request.

    Attributes:
        request: its number; a hedge has that of the request it is a copy of.
        teacher: where it goes.
        spans: what it is made of, by batch and row; adjacent rows are one span.
        attempt: 1 the first time that these rows are sent; more for a resend or a hedge.
    """

    request: int
    teacher: str
    spans: tuple[Span, ...]
    attempt: int


class Accept(NamedTuple):
    """The answer counts: write the labels of `spans` into their batches.

    Spans of the request that are not among them are of batches that are over.
    """

    request: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the labels that this teacher sent: late, not the first, on trial, or of no use any more.

    It ends a copy; another teacher may still be at work on the request.
    """

    request: int
    teacher: str


class BatchLabelled(NamedTuple):
    """All rows of the batch have their labels: it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class GoesUnlabelled:
    """The batch goes without labels: drop those that it has; it may be released."""

    batch: int


@dataclass(frozen=True, slots=True)
class Poison:
    """The batch will never be labelled: raise in its place.

    It comes instead of the batch's `BatchLabelled`. `reasons` are "teacher: what it said", in the order
    in which they refused.
    """

    batch: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelsRevoked:
    """A batch that was `BatchLabelled`, `GoesUnlabelled` or `Poison` is to be labelled anew.

    Attributes:
        batch: its id.
        whole: drop all labels that it has: those to come may be of another shape. False: only some
            rows get others.
    """

    batch: int
    whole: bool


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the store which rows of the batch it has labels for, and answer `StoreSearched`.

    Until then the batch is withheld from teachers. One that is looked up already is looked up anew:
    what was found before is of another model.
    """

    batch: int


Instruction = (
    Send | Accept | Discard | BatchLabelled | GoesUnlabelled | LabelsRevoked | Poison | LookUp
)


@dataclass(frozen=True, slots=True)
class TeacherJoined:
    """A teacher may be sent to; for one that is known: its new figures, and all is forgiven.

    Attributes:
        teacher: its id.
        window: requests that may be in flight there at once (>= 1).
        most_rows: rows that a request to it has at most (>= 1): batches are cut and joined to come
            as near to it as what waits allows. None: a request is what one batch lacks.
        seconds_per_row: its measured device time for one row; None where nothing is known.
        on_trial: it gets only copies that a `Hedge` names it for, until `Readmitted`.
        has_labelled: it labelled something before its connection was lost.
    """

    teacher: str
    window: int
    most_rows: int | None = None
    seconds_per_row: float | None = None
    on_trial: bool = False
    has_labelled: bool = False

    def __post_init__(self) -> None:
        _require_window(self.teacher, self.window)
        _require_rows(self.teacher, self.most_rows)


@dataclass(frozen=True, slots=True)
class Awaited:
    """So many teachers have not said yet whether they can be asked: they may join any moment.

    As long as there are some, nobody can say that all there are have refused a batch.

    Attributes:
        teachers: how many, from now on; 0 before the first such event.
    """

    teachers: int


@dataclass(frozen=True, slots=True)
class TeacherRevoked:
    """The coordinator took the teacher away: it finishes what it has and gets nothing new."""

    teacher: str


@dataclass(frozen=True, slots=True)
class TeacherGone:
    """The teacher is gone with all that it had in flight; unknown names are welcome."""

    teacher: str


@dataclass(frozen=True, slots=True)
class WindowChanged:
    """The teacher may have `window` requests in flight (>= 1); what is above it runs out."""

    teacher: str
    window: int

    def __post_init__(self) -> None:
        _require_window(self.teacher, self.window)


@dataclass(frozen=True, slots=True)
class RequestSizeChanged:
    """Requests to the teacher have at most `most_rows` rows from now on; see `TeacherJoined`."""

    teacher: str
    most_rows: int | None

    def __post_init__(self) -> None:
        _require_rows(self.teacher, self.most_rows)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause after a `AttemptFailed` is over: the teacher may be sent to again."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Ejected:
    """The teacher is put on trial: it gets only copies that a `Hedge` names it for.

    What it has in flight goes on and counts. What it is sent on trial never counts, first or not:
    each such answer is discarded, for the shell to compare or to time.
    """

    teacher: str


@dataclass(frozen=True, slots=True)
class Readmitted:
    """The trial is over: the teacher may be sent to again, unless it rests."""

    teacher: str


@dataclass(frozen=True, slots=True)
class InvalidateTeacher:
    """Eject the teacher, and have others label anew its rows that are not released.

    Answers to its requests in flight are discarded. The teacher may be unknown: it may have been
    lost before.
    """

    teacher: str


def _require_window(teacher: str, window: int) -> None:
    if window < 1:
        raise ValueError(f"teacher {teacher} needs a window of at least 1, not {window}")


def _require_rows(teacher: str, most_rows: int | None) -> None:
    if most_rows is not None and most_rows < 1:
        raise ValueError(f"teacher {teacher} needs requests of at least 1 row, not {most_rows}")


# ---------------------------------------------------------------------- events: the source


class Queued(NamedTuple):
    """The source yielded a batch; ids grow.

    Attributes:
        batch: its id.
        nbytes: bytes of its inputs.
        rows: how many it has (>= 1); one that cannot be cut counts as a single row.
        missing: the rows that need labels, as (start, stop) in growing order, disjoint; None: all;
            (): none, the batch is labelled already.
        row_nbytes: bytes of one row's labels, as far as they are known; the answers say it anew.
        kind: only batches of one kind are joined: their rows have equal shapes and dtypes.
    """

    batch: int
    nbytes: int
    rows: int
    missing: tuple[tuple[int, int], ...] | None = None
    row_nbytes: int = 0
    kind: int = 0


@dataclass(frozen=True, slots=True)
class BatchRestored:
    """The student's side has this batch with its labels, from before the engine restarted.

    Or it is poison: then it has no labels, and the volume counts its inputs until it is taken.

    Attributes:
        batch: its id; ids grow.
        nbytes: bytes of its inputs.
        rows: how many it has (>= 1).
        kind: as of `Queued`.
        makers: teachers that have made its labels. Where one is not believed any more, all of the
            batch is labelled anew, as the labels lie where this engine cannot add to them.
        row_nbytes: bytes of one row's labels.
    """

    batch: int
    nbytes: int
    rows: int = 1
    kind: int = 0
    makers: tuple[str, ...] = ()
    row_nbytes: int = 0


class StoreSearched(NamedTuple):
    """A store has been asked for a batch, as `LookUp` said; one that is over is welcome.

    Attributes:
        batch: its id.
        missing: the rows that need labels, as of `Queued`.
        row_nbytes: bytes of one row's labels, as far as they are known.
    """

    batch: int
    missing: tuple[tuple[int, int], ...] | None = None
    row_nbytes: int = 0


# ---------------------------------------------------------------------- events: the answers


class Answered(NamedTuple):
    """Labels of all rows of a request came and passed their checks.

    `row_nbytes` are the bytes of one row's labels, `device_s` the device time of the whole request
    in seconds (<= 0: unknown).
    """

    teacher: str
    request: int
    row_nbytes: int
    device_s: float


@dataclass(frozen=True, slots=True)
class AttemptFailed:
    """A retryable failure: the rows are sent again, here or elsewhere; the teacher rests.

    It gets nothing new until `Resumed` or `TeacherJoined`; its other requests go on.

    Attributes:
        teacher: its id.
        request: the number.
        crash: what the teacher said, where the request crashed its predictor: a batch that is alone
            in the request counts as refused; empty: anything else came to nothing.
    """

    teacher: str
    request: int
    crash: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """The teacher will never answer this request, and says why.

    Where the request is of several batches, or of more rows than the teacher is to get at once, no
    batch is to blame: they are sent again batch by batch, or in smaller pieces.
    """

    teacher: str
    request: int
    reason: str


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The request is over without an answer, and nobody is to blame: it was withdrawn.

    So a shell may end the copy that lost against a hedge. Rows that nobody else has are sent again.
    """

    teacher: str
    request: int


@dataclass(frozen=True, slots=True)
class Hedge:
    """Send the very same spans to another teacher also; the first answer counts.

    It goes out as soon as one has room that has not got or refused it, before anything that is
    queued; it lapses when the request is over, or known no more. Where part of it is over, the
    other rows are sent as requests of their own instead, and it is answered in vain. With `teacher`
    it goes to that one alone, which may be resting or on trial: a canary, or a probe.
    """

    request: int
    teacher: str | None = None


# ---------------------------------------------------------------------- events: the student


@dataclass(frozen=True, slots=True)
class BatchConsumed:
    """The student has consumed a released batch: its bytes are free."""

    batch: int


class Released(NamedTuple):
    """The student may consume a batch that is labelled, or poison: it stays what it is."""

    batch: int


@dataclass(frozen=True, slots=True)
class DeliverUnlabelled:
    """Deliver this batch without labels: it becomes `GoesUnlabelled`, and counts as labelled.

    Labels that it has are dropped, and later answers are discarded. Without effect on a batch that
    is labelled, poisoned or over. A `Relabel` before its release reverses it.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class InvalidateBatch:
    """Label this batch anew, unless it is released: none of its labels can be trusted.

    For batches in which labels of several services were averaged and cannot be separated.
    """

    batch: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The epoch was left: every batch is forgotten, teachers stay.

    Requests already sent keep their places in the windows until they end.
    """


@dataclass(frozen=True, slots=True)
class Relabel:
    """The teachers' model was exchanged: what is not released is labelled anew, from the first on.

    Labels that lie ready are void, those too that were not missing when the batch was queued, and
    so are refusals: the shell drops the labels of every batch that is not released. Requests
    already sent keep their places in the windows until they end; what they answer is discarded. So
    no batch is of two models, and in order the stream changes over at one batch.

    Attributes:
        stored: a store may have labels of the new model: batches are looked up before any row is
            sent (`LookUp`).
    """

    stored: bool = False


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
    | TeacherRevoked
    | TeacherGone
    | WindowChanged
    | RequestSizeChanged
    | Resumed
    | Ejected
    | Readmitted
    | InvalidateTeacher
    | Released
    | StoreSearched
    | InvalidateBatch
    | DeliverUnlabelled
    | Reset
    | Relabel
)
