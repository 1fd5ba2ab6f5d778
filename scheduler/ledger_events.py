"""What the ledger is told (events) and what it answers (instructions).

A batch is named by an int that only ever grows, over all epochs of a reader; a teacher by its id.
The shell that owns the connections turns what happens into events and carries instructions out.
Once it has reported `TeacherLost`, it must drop whatever that old connection still says: a new
life of the same teacher begins with the next `TeacherJoined`.
"""

from __future__ import annotations

from dataclasses import dataclass

# ---------------------------------------------------------------------- events: the source


@dataclass(frozen=True, slots=True)
class Queued:
    """The source yielded a batch; ids grow. `nbytes` are the bytes of its inputs."""

    batch: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Held:
    """The student's side already holds this labelled batch, from before the engine restarted.

    It counts as volume until it is taken and is never delivered again. `nbytes` are the bytes of
    inputs and labels together. Ids grow together with those of `Queued`.
    """

    batch: int
    nbytes: int


# --------------------------------------------------------------------- events: the teachers


@dataclass(frozen=True, slots=True)
class TeacherJoined:
    """A teacher may be sent to; for one that is known: its new figures, and all is forgiven.

    `window` is how many requests may be in flight there at once (>= 1), `seconds_per_batch` its
    measured device time for one batch, None where nothing is known.
    """

    teacher: str
    window: int
    seconds_per_batch: float | None = None

    def __post_init__(self) -> None:
        _require_window(self.teacher, self.window)


@dataclass(frozen=True, slots=True)
class TeacherRevoked:
    """The coordinator took the teacher away: it finishes what it has and gets nothing new."""

    teacher: str


@dataclass(frozen=True, slots=True)
class TeacherLost:
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
class Resumed:
    """The pause after a `Failed` is over: the teacher may be sent to again."""

    teacher: str


# ---------------------------------------------------------------------- events: the answers


@dataclass(frozen=True, slots=True)
class Answered:
    """Labels of a batch came and passed their checks.

    `nbytes` are the bytes of the labels, `seconds` the device time they took (<= 0: unknown).
    """

    teacher: str
    batch: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed:
    """A retryable failure: the batch is sent again, here or elsewhere; the teacher rests.

    It gets nothing new until `Resumed` or `TeacherJoined`; its other requests go on.
    """

    teacher: str
    batch: int


@dataclass(frozen=True, slots=True)
class Refused:
    """The teacher will never answer this batch, and says why."""

    teacher: str
    batch: int
    reason: str


# ---------------------------------------------------------------------- events: the student


@dataclass(frozen=True, slots=True)
class Taken:
    """The student has consumed a delivered batch: its bytes are free."""

    batch: int


@dataclass(frozen=True, slots=True)
class Reset:
    """The epoch was left: every batch is forgotten, teachers stay.

    Requests already sent keep their places in the windows until they end.
    """


@dataclass(frozen=True, slots=True)
class Relabel:
    """The teachers' model was exchanged: what is not delivered is labelled anew, from the first on.

    Labels that lie ready are void, and so are refusals: the shell drops the labels of every batch
    that it was not told to deliver. Requests already sent keep their places in the windows until
    they end; what they answer is discarded. So the stream changes over at one batch.
    """


Event = (
    Answered
    | Queued
    | Taken
    | Held
    | Failed
    | Refused
    | TeacherJoined
    | TeacherRevoked
    | TeacherLost
    | WindowChanged
    | Resumed
    | Reset
    | Relabel
)

# ----------------------------------------------------------------------------- instructions


@dataclass(frozen=True, slots=True)
class Send:
    """Send the batch to the teacher; `attempt` is 1 the first time, more for a resend."""

    batch: int
    teacher: str
    attempt: int


@dataclass(frozen=True, slots=True)
class Deliver:
    """Hand the labelled batch to the student: in order of ids, each once."""

    batch: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Drop the labels that this teacher sent: late, not the first, or of an exchanged model."""

    batch: int
    teacher: str


@dataclass(frozen=True, slots=True)
class Poison:
    """The batch will never be labelled: raise in its place in the line, and forget it.

    It comes when every earlier batch has been delivered, instead of the batch's `Deliver`.
    `reasons` are "teacher: what it said", in the order in which they refused.
    """

    batch: int
    reasons: tuple[str, ...]


Instruction = Send | Deliver | Discard | Poison


def _require_window(teacher: str, window: int) -> None:
    if window < 1:
        raise ValueError(f"teacher {teacher} needs a window of at least 1, not {window}")
