"""Estimates from the latest measurements, and the number of teachers that one student needs.

Estimates have bounded memory and no clock of their own. n = ceil(t_t / t_s) with times in seconds
per sample (ADR-0002). The paper (section 3.2) prints this ratio, but calls both terms throughputs.
With throughputs it must be inverted: in the paper's figure 3, one student on a V100 is fast and
needs five slow teachers on P4.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from math import ceil, inf, isfinite
from typing import Final


class RecentQuantile:
    """A quantile of the last `size` measurements.

    The quantile is an actual measurement (the nearest rank below), never an interpolation.

    Args:
        size: number of measurements (>= 1).
        q: 0 is the minimum, 1 the maximum.

    Attributes:
        value: the quantile; None before the first measurement.
    """

    def __init__(self, size: int, q: float) -> None:
        self._q = q
        self._latest: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []
        self.value: float | None = None

    def add(self, measurement: float) -> float:
        """Add a measurement; return the quantile. Raises ValueError for NaN and infinities."""
        if not isfinite(measurement):
            raise ValueError(f"not a measurement: {measurement}")
        if len(self._latest) == self._latest.maxlen:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(measurement)
        insort(self._sorted, measurement)
        self.value = self._sorted[int(self._q * (len(self._sorted) - 1))]
        return self.value

    def __len__(self) -> int:
        """Number of measurements."""
        return len(self._sorted)


class RecentMedian(RecentQuantile):
    """The (lower) median of the last `size` measurements; half of these must change to move it."""

    def __init__(self, size: int = 16) -> None:
        super().__init__(size, q=0.5)


class RecentMean:
    """The mean of the last `size` measurements, for measurements that come in bursts.

    For example, a training loop that runs ahead of its device has some short steps, then a long one
    in which it waits. If a measurement covers several things (`count`), the mean is per thing.

    Args:
        size: number of measurements (>= 1).

    Attributes:
        value: the mean per thing; None before the first measurement.
    """

    def __init__(self, size: int) -> None:
        self._latest: deque[float] = deque(maxlen=size)
        self._counts: deque[int] = deque(maxlen=size)
        self.value: float | None = None

    def add(self, measurement: float, count: int = 1) -> None:
        """Add a measurement of `count` things. Raises ValueError for NaN and infinities."""
        if not isfinite(measurement):
            raise ValueError(f"not a measurement: {measurement}")
        self._latest.append(measurement)
        self._counts.append(count)
        self.value = self._mean()

    def drop_oldest(self, number: int) -> None:
        """Drop the `number` oldest measurements; at least one must remain."""
        for _ in range(number):
            self._latest.popleft()
            self._counts.popleft()
        self.value = self._mean()

    def _mean(self) -> float:
        return sum(self._latest) / sum(self._counts)

    def __len__(self) -> int:
        """Number of measurements."""
        return len(self._latest)


class MeanWithoutPause(RecentMean):
    """The mean of the last `size` measurements without one long pause.

    Once `size` measurements are known, the longest one is left out if it is more than twice as long
    as any other. Two long measurements both count: what occurs repeatedly is no pause.
    """

    def _mean(self) -> float:
        mean = super()._mean()
        if len(self._latest) < max(self._latest.maxlen or 0, 2):
            return mean
        *_, second, longest = sorted(self._latest)
        if longest <= 2 * second:
            return mean
        count = self._counts[self._latest.index(longest)]
        return (sum(self._latest) - longest) / (sum(self._counts) - count)


class RecentRate:
    """Things per second over the last `horizon_s`, for displayed throughputs.

    Counts are summed in `STEPS` intervals per horizon, so memory does not grow with the rate.
    """

    STEPS = 32

    def __init__(self, horizon_s: float = 5.0) -> None:
        self._horizon_s = horizon_s
        self._start: float | None = None
        # (number of the interval, count)
        self._steps: deque[tuple[int, float]] = deque(maxlen=self.STEPS)

    def add(self, count: float, now: float) -> None:
        """Count `count` things at `now`, in seconds of a clock that does not go back."""
        if self._start is None:
            self._start = now
        step = int(now * self.STEPS // self._horizon_s)
        if self._steps and self._steps[-1][0] == step:
            count += self._steps.pop()[1]
        self._steps.append((step, count))

    def value(self, now: float) -> float:
        """Return things per second, over the horizon or the shorter time since the first thing."""
        if self._start is None:
            return 0.0
        step = int(now * self.STEPS // self._horizon_s)
        while self._steps and self._steps[0][0] <= step - self.STEPS:
            self._steps.popleft()
        span_s = min(self._horizon_s, max(now - self._start, self._horizon_s / self.STEPS))
        return sum([count for _, count in self._steps]) / span_s


#: Relative error of a quotient of two floats: 2.1 / 0.3 > 7.
ROUNDING: Final = 1e-9


def teachers_needed(t_t: float, t_s: float) -> int:
    """Return the `n` of the paper's Algorithm 1, line 1: at least 1.

    Args:
        t_t: seconds per sample of one teacher, unhindered.
        t_s: seconds per sample of the student's step, unhindered.

    Raises:
        ValueError: a time is not positive and finite, or their ratio is not finite.
    """
    return rounded_up(time_ratio(t_t, t_s))


def rounded_up(ratio: float) -> int:
    """Return the least integer not below `ratio` (> 0), apart from floating-point error."""
    return ceil(ratio * (1 - ROUNDING))


#: A measured time is reported to a manager again once it has changed by more than this share.
NOTABLE_CHANGE = 0.1


def is_notable_change(before: float, now: float) -> bool:
    """Whether a measured time differs enough from `before`, which a manager knows."""
    return abs(now - before) > NOTABLE_CHANGE * abs(before)


def time_ratio(t_t: float, t_s: float) -> float:
    """Return t_t / t_s (> 0): the number of teachers that one student keeps busy.

    Raises:
        ValueError: as for `teachers_needed`.
    """
    if not (0 < t_t < inf and 0 < t_s < inf):
        raise ValueError(f"t_t and t_s are seconds per sample, above 0; not {t_t} and {t_s}")
    ratio = t_t / t_s
    if not 0 < ratio < inf:
        raise ValueError(f"t_t / t_s = {t_t} / {t_s} is out of the range of a float")
    return ratio


def harmonic_mean_t_t(seconds: Sequence[float]) -> float:
    """Return the seconds per sample of the average teacher of a pool of unequal ones.

    Speeds add up, times do not: k teachers with this time label as many samples per second as the k
    teachers of the pool. Hence the harmonic mean.

    Args:
        seconds: seconds per sample of each teacher.

    Raises:
        ValueError: there is no teacher, or a time is not positive and finite.
    """
    if not seconds:
        raise ValueError("the mean t_t needs at least one teacher")
    fastest = min(seconds)  # as the unit, so that no reciprocal overflows
    if not (fastest > 0 and all(map(isfinite, seconds))):
        raise ValueError(f"t_t must be finite seconds per sample, above 0; got {seconds}")
    return fastest * (len(seconds) / sum([fastest / value for value in seconds]))
