"""What the ledger is told: events. What it answers, `instructions`, can be named from here too.

The unit of the stream is the student's batch, named by an int that only ever grows, over all epochs
of a reader. The unit of what is sent is a *request*: spans of rows, of one batch or several, named
by an int that the ledger counts up. A teacher is named by its id. The same request may be at
several teachers at once, after a `Hedge`: (request, teacher) names one copy of it.

The shell that owns the connections turns what happens into events and carries instructions out.
Each `Send` is ended by exactly one of `Answered`, `Failed`, `Refused`, `Cancelled`, or by the loss
of its teacher. Once the shell has reported `TeacherLost`, it must drop whatever that old connection
still says: a new life of the same teacher begins with the next `TeacherJoined`.

What is made anew for every batch is a named tuple, which takes half the time of a frozen dataclass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# What is answered can be named from here too.
from .instructions import Accept as Accept
from .instructions import Discard as Discard
from .instructions import GoesUnlabelled as GoesUnlabelled
from .instructions import Instruction as Instruction
from .instructions import Labelled as Labelled
from .instructions import LabelsRevoked as LabelsRevoked
from .instructions import LookUp as LookUp
from .instructions import Poison as Poison
from .instructions import Send as Send
from .instructions import Span as Span

# So can what it is told of teachers.
from .staffing import Awaited as Awaited
from .staffing import Ejected as Ejected
from .staffing import InvalidateTeacher as InvalidateTeacher
from .staffing import Readmitted as Readmitted
from .staffing import RequestSizeChanged as RequestSizeChanged
from .staffing import Resumed as Resumed
from .staffing import TeacherJoined as TeacherJoined
from .staffing import TeacherLost as TeacherLost
from .staffing import TeacherRevoked as TeacherRevoked
from .staffing import WindowChanged as WindowChanged

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
class Held:
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


class Found(NamedTuple):
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
class Failed:
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
class Taken:
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
    | Taken
    | Held
    | Failed
    | Refused
    | Cancelled
    | Hedge
    | TeacherJoined
    | Awaited
    | TeacherRevoked
    | TeacherLost
    | WindowChanged
    | RequestSizeChanged
    | Resumed
    | Ejected
    | Readmitted
    | InvalidateTeacher
    | Released
    | Found
    | InvalidateBatch
    | DeliverUnlabelled
    | Reset
    | Relabel
)
