"""The speed of each teacher's answers, and the number and size of requests that follow from it.

The *turnaround* of a request is the time from when its teacher begins with it to the answer; see
`hedging`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median_low
from typing import Literal, NamedTuple

from ..ledger import events as ev
from ..rates import RecentQuantile
from .events import AnswerCame
from .windows import RequestSize, Window, WindowConfig

#: Weight of the newest answer in an estimate. A mean, not a median: a teacher that batches requests
#: answers several at once, so most turnarounds are zero and some are long.
GAIN = 0.125
#: An answer counts as at most this multiple of the expected time: one pause is not a new speed. A
#: teacher that is ten times slower is still recognised after a dozen answers.
MOST_SLOWDOWN = 4.0
#: Lower bound of seconds per row.
LEAST_S = 1e-9
#: The stretch (see `hedging`) is this quantile of the ratio of actual to expected turnaround, over
#: this number of answers.
STRETCH_ANSWERS, STRETCH_QUANTILE = 256, 0.95
#: Upper bound of the stretch: with a larger one nothing would ever be late.
MOST_STRETCH = 4.0


class Turnaround(NamedTuple):
    """Mean turnaround of one teacher.

    Attributes:
        seconds_per_row: mean turnaround in seconds per row of its requests (> 0).
        rows: mean number of rows of its requests (> 0).
    """

    seconds_per_row: float
    rows: float

    def expected_s(self, rows: int) -> float:
        """Return the seconds for a request of `rows`, or of mean size if that is larger."""
        return self.seconds_per_row * max(rows, self.rows)


class Turnarounds:
    """The turnarounds of one pool. Use it from one thread; it has no clock."""

    def __init__(self) -> None:
        self._teachers: dict[str, Turnaround] = {}
        self._stretches = RecentQuantile(STRETCH_ANSWERS, STRETCH_QUANTILE)

    def answered(self, teacher: str, rows: int, seconds: float) -> None:
        """Record an answer; impossible values are ignored.

        Args:
            teacher: the teacher.
            rows: rows of the request (>= 1).
            seconds: its turnaround (>= 0).
        """
        if rows < 1 or not 0 <= seconds < inf:
            return
        known = self._teachers.get(teacher)
        if known is None:
            if seconds > 0:
                self._teachers[teacher] = Turnaround(max(seconds / rows, LEAST_S), rows)
            return
        expected_s = known.expected_s(rows)
        self._stretches.add(min(seconds / expected_s, MOST_STRETCH))
        per_row = min(seconds, MOST_SLOWDOWN * expected_s) / rows
        self._teachers[teacher] = Turnaround(
            max(known.seconds_per_row + GAIN * (per_row - known.seconds_per_row), LEAST_S),
            known.rows + GAIN * (rows - known.rows),
        )

    def forget(self, teacher: str) -> None:
        """Forget a teacher that is gone; another machine may return under its name."""
        self._teachers.pop(teacher, None)

    def get(self, teacher: str) -> Turnaround | None:
        return self._teachers.get(teacher)

    def expected_s(self, teacher: str, rows: int) -> float | None:
        """Return the expected turnaround of a request of `rows` at `teacher`.

        A teacher without answers counts as the median one; None: no teacher has answered.
        """
        if (known := self._teachers.get(teacher)) is not None:
            return known.expected_s(rows)
        return self.pool_s(rows)

    def pool_s(self, rows: int) -> float | None:
        """Return the expected turnaround at the median teacher; None: no teacher has answered."""
        times = [known.expected_s(rows) for known in self._teachers.values()]
        return median_low(times) if times else None

    def shortest_s(self) -> float:
        """Return the shortest expected turnaround; infinity: no teacher has answered."""
        return min((known.expected_s(1) for known in self._teachers.values()), default=inf)

    @property
    def stretch(self) -> float:
        """The stretch, from 1 to `MOST_STRETCH`."""
        value = self._stretches.value
        return 1.0 if value is None else min(max(value, 1.0), MOST_STRETCH)


def began(sent_at: float, answered_at: float) -> float:
    """Return when a teacher began with its oldest request.

    Args:
        sent_at: time at which the request was sent.
        answered_at: time of the teacher's latest answer; minus infinity: none.
    """
    assert isfinite(sent_at)
    return max(sent_at, answered_at)


@dataclass(slots=True)
class _Teacher:
    """A teacher, from joining until it is gone."""

    window: Window
    size: RequestSize | None  # None: `most_rows` is fixed
    most_rows: int | None  # of a request; None: a request is one batch
    model_rows: int | None  # limit of rows that the model takes; None: unknown
    #: By request in flight: time of sending, and `most_rows` at that time.
    sent: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    answered_at: float = -inf  # time of the latest answer


class RequestPacing:
    """Windows and request sizes of the teachers of one service.

    Args:
        config: bounds of each window.
        rows: limit of rows per request; None: a request is one batch; "auto": find the best limit
            for each teacher.

    Attributes:
        times: turnarounds of the teachers, for finding late requests.
    """

    def __init__(self, config: WindowConfig, rows: int | Literal["auto"] | None) -> None:
        self.times = Turnarounds()
        self._windows = config
        self._rows = rows
        self._batch_rows = 1
        self._teachers: dict[str, _Teacher] = {}

    def record_batch(self, rows: int) -> None:
        """Record the rows of a batch of the student, for the first size of "auto"."""
        self._batch_rows = rows

    def joined(self, name: str, now: float, most_rows: int | None) -> ev.TeacherJoined:
        """Add a teacher with a model that takes `most_rows`; return the event for the ledger.

        A known teacher keeps its window and size, unless `most_rows` has changed.
        """
        if self.has_joined(name, most_rows):
            known = self._teachers[name]
        else:
            size, rows = None, self._rows
            if rows == "auto":
                size = RequestSize.start(most_rows, self._batch_rows, now)
                rows = size.rows
            window = Window.start(self._windows, now)
            known = self._teachers[name] = _Teacher(window, size, rows, most_rows)
        return ev.TeacherJoined(name, known.window.size, known.most_rows)

    def has_joined(self, name: str, most_rows: int | None) -> bool:
        """Whether a teacher is known, with a model that takes `most_rows`."""
        known = self._teachers.get(name)
        return known is not None and known.model_rows == most_rows

    def window(self, name: str) -> int:
        """Return the number of requests that a teacher may have in flight."""
        known = self._teachers.get(name)
        return self._windows.least if known is None else known.window.size

    def sent(self, name: str, request: int, now: float) -> None:
        if (known := self._teachers.get(name)) is not None:
            known.sent[request] = (now, known.most_rows)

    def ended(self, name: str, request: int) -> None:
        """Record a request that ended without an answer."""
        if (known := self._teachers.get(name)) is not None:
            known.sent.pop(request, None)

    def refused(self, name: str, now: float) -> Iterator[ev.Event]:
        """Record that a teacher had no room for a request; yield ledger events."""
        if (known := self._teachers.get(name)) is not None:
            before, known.window = known.window.size, known.window.refused(now)
            if (window := known.window.size) != before:
                yield ev.WindowChanged(name, window)

    def sent_at(self, name: str, request: int) -> float | None:
        """Return when a request in flight was sent; None: it is not in flight at this teacher."""
        known = self._teachers.get(name)
        sent = None if known is None else known.sent.get(request)
        return None if sent is None else sent[0]

    def oldest(self, name: str) -> float | None:
        """Return when the oldest request in flight was sent; None: there is none."""
        known = self._teachers.get(name)
        return next(iter(known.sent.values()))[0] if known is not None and known.sent else None

    def answered_at(self, name: str) -> float:
        """Return the time of a teacher's latest answer; minus infinity: none."""
        known = self._teachers.get(name)
        return -inf if known is None else known.answered_at

    def answered(self, answer: AnswerCame, in_flight: int, now: float) -> Iterator[ev.Event]:
        """Record an answer of a teacher with `in_flight` requests; yield ledger events."""
        name, rows, device_s = answer.teacher, answer.rows, answer.device_s
        known = self._teachers.get(name)
        sent = None if known is None else known.sent.pop(answer.request, None)
        if known is None or sent is None:
            return
        sent_at, rows_limit = sent
        turnaround_s = now - began(sent_at, known.answered_at)
        known.answered_at = now
        self.times.answered(name, rows, turnaround_s)
        before = known.window.size
        known.window = known.window.answered(rows, turnaround_s, device_s, in_flight >= before, now)
        if (window := known.window.size) != before:
            yield ev.WindowChanged(name, window)
        if known.size is not None and rows_limit is not None:
            size_before = known.most_rows
            known.size = known.size.answered(rows_limit, rows, device_s, now)
            known.most_rows = most_rows = known.size.rows
            if most_rows != size_before:
                yield ev.RequestSizeChanged(name, most_rows)

    def forget(self, name: str) -> None:
        self.times.forget(name)
        self._teachers.pop(name, None)
