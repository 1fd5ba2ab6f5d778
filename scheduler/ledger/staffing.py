"""What the ledger is told of teachers: who is there, what each may get, who is believed."""

from __future__ import annotations

from dataclasses import dataclass


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
class RequestSizeChanged:
    """Requests to the teacher have at most `most_rows` rows from now on; see `TeacherJoined`."""

    teacher: str
    most_rows: int | None

    def __post_init__(self) -> None:
        _require_rows(self.teacher, self.most_rows)


@dataclass(frozen=True, slots=True)
class Resumed:
    """The pause after a `Failed` is over: the teacher may be sent to again."""

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
