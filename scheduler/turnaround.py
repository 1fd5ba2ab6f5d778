"""How long a request should take at each teacher, and how far answers stray from that.

A teacher works off its window one request after the other, so a request begins when it is sent or,
if others stand before it, when the latest of them is answered. From there to its own answer it
takes its *turnaround*; what stands before it in the window is thereby accounted for. Turnarounds
are kept per row and per teacher: one that is ten times slower is expected to take ten times as
long. The *stretch* is the pool's own: a high quantile, over the answers of all its teachers, of
what a request took as a multiple of what was expected.
"""

from __future__ import annotations

from math import inf, isfinite
from typing import NamedTuple

from .rates import LowQuantile

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
        times = sorted(known.expected_s(rows) for known in self._teachers.values())
        return times[(len(times) - 1) // 2] if times else None

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
