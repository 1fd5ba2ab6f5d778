"""How fast each teacher answers, and how many and how large requests it therefore gets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite
from statistics import median_low
from typing import Literal, NamedTuple

from ..ledger import events as ev
from ..rates import LowQuantile
from .events import AnswerCame
from .windows import RequestSize, SizeConfig, Window, WindowConfig

#: How much of an estimate the newest answer replaces. A mean, not a median: a teacher that merges
#: requests answers several at one moment, so that most turnarounds are zero and some are long.
GAIN = 0.125
#: An answer counts as no more than so many times what was expected: one pause is not a new speed,
#: and a teacher that has really become ten times slower is known for that after a dozen answers.
MOST = 4.0
#: Seconds per row that nobody is faster than.
LEAST_S = 1e-9
#: Answers over which the stretch is taken, and which quantile of them it is.
ANSWERS, QUANTILE = 256, 0.95
#: Most that the stretch may be: a pool that strays further would never find anything late.
MOST_STRETCH = 4.0


class Turnaround(NamedTuple):
    """What is known of one teacher, as means; made anew with each answer.

    Attributes:
        seconds_per_row: of a request (> 0).
        rows: of a request (> 0).
        answers: how many this stands on.
    """

    seconds_per_row: float
    rows: float
    answers: int = 1

    def expected_s(self, rows: int) -> float:
        """Seconds for a request of `rows`: a small one is not expected to be faster than usual."""
        return self.seconds_per_row * max(rows, self.rows)


class Turnarounds:
    """The turnarounds of one pool. Owned by one thread; no clock."""

    def __init__(self) -> None:
        self._teachers: dict[str, Turnaround] = {}
        self._stretches = LowQuantile(ANSWERS, QUANTILE)

    def answered(self, teacher: str, rows: int, seconds: float) -> None:
        """A request of `rows` took `seconds` from its beginning; what makes no sense is ignored.

        Args:
            teacher: who answered.
            rows: of the request (>= 1).
            seconds: its turnaround (>= 0), see `began`.
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
        per_row = min(seconds, MOST * expected_s) / rows
        self._teachers[teacher] = Turnaround(
            max(known.seconds_per_row + GAIN * (per_row - known.seconds_per_row), LEAST_S),
            known.rows + GAIN * (rows - known.rows),
            known.answers + 1,
        )

    def forget(self, teacher: str) -> None:
        """A teacher is gone; whoever comes back under its name may be another machine."""
        self._teachers.pop(teacher, None)

    def of(self, teacher: str) -> Turnaround | None:
        """What is known of `teacher`."""
        return self._teachers.get(teacher)

    def expected_s(self, teacher: str, rows: int) -> float | None:
        """Seconds that a request of `rows` should take at `teacher` from its beginning.

        Of a teacher that has not answered yet as much is expected as of the median one; None where
        nobody has answered.
        """
        if (known := self._teachers.get(teacher)) is not None:
            return known.expected_s(rows)
        return self.pool_s(rows)

    def pool_s(self, rows: int) -> float | None:
        """Seconds that the median teacher should take; None where nobody has answered."""
        times = [known.expected_s(rows) for known in self._teachers.values()]
        return median_low(times) if times else None

    @property
    def stretch(self) -> float:
        """The pool's quantile: requests take at most so many times what is expected; >= 1."""
        value = self._stretches.value
        return 1.0 if value is None else min(max(value, 1.0), MOST_STRETCH)


def began(sent_at: float, answered_at: float) -> float:
    """When a teacher began with the oldest request that it has.

    Args:
        sent_at: when that was sent.
        answered_at: the teacher's latest answer, minus infinity if there was none.
    """
    assert isfinite(sent_at)
    return max(sent_at, answered_at)


@dataclass(slots=True)
class _Teacher:
    """What is known of one teacher, from its joining until it is gone."""

    window: Window
    sizes: SizeConfig
    size: RequestSize | None
    sent: dict[int, tuple[float, int | None]] = field(default_factory=dict)
    answered_at: float = -inf


class RequestPacing:
    """The teachers of one service.

    Args:
        config: bounds of each window.
        rows: of a request at most; None: a request is one batch; "auto": what suits each teacher.

    Attributes:
        times: what requests take, for those who look for late ones.
    """

    def __init__(self, config: WindowConfig, rows: int | Literal["auto"] | None) -> None:
        self.times = Turnarounds()
        self._windows = config
        self._rows = rows
        self._usual_rows = 1
        self._teachers: dict[str, _Teacher] = {}

    def batch(self, rows: int) -> None:
        """The student has batches of so many rows."""
        self._usual_rows = rows

    def joined(self, name: str, now: float, most_rows: int | None) -> ev.TeacherJoined:
        """A teacher can be sent to, whose model takes so many rows: what the ledger is told."""
        known = self._teachers.get(name)
        if known is None or known.sizes.most_rows != most_rows:
            sizes = SizeConfig(most_rows)
            size = None
            if self._rows == "auto":
                size = RequestSize.start(sizes, self._usual_rows, now)
            window = Window.start(self._windows, now)
            known = self._teachers[name] = _Teacher(window, sizes, size)
        return ev.TeacherJoined(name, self.window(name), self._most_rows(known))

    def window(self, name: str) -> int:
        """Requests that a teacher may have in flight."""
        known = self._teachers.get(name)
        return self._windows.least if known is None else known.window.size

    def sent(self, name: str, request: int, now: float) -> None:
        """A request goes out."""
        if (known := self._teachers.get(name)) is not None:
            known.sent[request] = (now, self._most_rows(known))

    def ended(self, name: str, request: int) -> None:
        """A request is over without an answer."""
        if (known := self._teachers.get(name)) is not None:
            known.sent.pop(request, None)

    def sent_at(self, name: str, request: int) -> float | None:
        """When a request went out that is not over."""
        known = self._teachers.get(name)
        told = None if known is None else known.sent.get(request)
        return None if told is None else told[0]

    def oldest(self, name: str) -> float | None:
        """When the oldest request went out that is not over; None: there is none."""
        known = self._teachers.get(name)
        return next(iter(known.sent.values()))[0] if known is not None and known.sent else None

    def answered_at(self, name: str) -> float:
        """When a teacher answered last."""
        known = self._teachers.get(name)
        return -inf if known is None else known.answered_at

    def answered(self, answer: AnswerCame, in_flight: int, now: float) -> Iterator[ev.Event]:
        """A teacher has answered, when it had so many requests: what the ledger is told of that."""
        name, rows, device_s = answer.teacher, answer.rows, answer.device_s
        known = self._teachers.get(name)
        told = None if known is None else known.sent.pop(answer.request, None)
        if known is None or told is None:
            return
        sent_at, asked = told
        turnaround_s = now - began(sent_at, known.answered_at)
        known.answered_at = now
        self.times.answered(name, rows, turnaround_s)
        before = known.window.size
        known.window = known.window.answered(rows, turnaround_s, device_s, in_flight >= before, now)
        if (window := known.window.size) != before:
            yield ev.WindowChanged(name, window)
        if known.size is not None and asked is not None:
            size_before = self._most_rows(known)
            known.size = known.size.answered(asked, rows, device_s, now)
            if (most_rows := self._most_rows(known)) != size_before:
                yield ev.RequestSizeChanged(name, most_rows)

    def forget(self, name: str) -> None:
        """A teacher is gone."""
        self.times.forget(name)
        self._teachers.pop(name, None)

    def _most_rows(self, teacher: _Teacher) -> int | None:
        if teacher.size is not None:
            return teacher.size.rows
        return None if self._rows == "auto" else self._rows
