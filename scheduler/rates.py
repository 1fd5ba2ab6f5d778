"""Estimates from the latest measurements: bounded memory, no clock of their own."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from heapq import nlargest
from math import isfinite


class LowQuantile:
    """A quantile of the last `size` measurements.

    A low quantile estimates an *unhindered* time: what gets in the way makes a step longer, never
    shorter. It is an actual measurement (the nearest rank below), never a mix of two.

    Args:
        size: how many measurements are remembered (>= 1).
        q: 0 is the least, 1 the greatest.

    Raises:
        ValueError: `size` or `q` is out of range.
    """

    def __init__(self, size: int = 64, q: float = 0.2) -> None:
        if size < 1 or not 0 <= q <= 1:
            raise ValueError(f"needs size >= 1 and 0 <= q <= 1, not {size} and {q}")
        self._q = q
        self._latest: deque[float] = deque(maxlen=size)
        self._sorted: list[float] = []

    def add(self, measurement: float) -> None:
        """Remember one more. Raises ValueError for NaN and infinities."""
        if not isfinite(measurement):
            raise ValueError(f"not a measurement: {measurement}")
        if len(self._latest) == self._latest.maxlen:
            del self._sorted[bisect_left(self._sorted, self._latest[0])]
        self._latest.append(measurement)
        insort(self._sorted, measurement)

    @property
    def value(self) -> float | None:
        """The quantile; None before the first measurement."""
        if not self._sorted:
            return None
        return self._sorted[int(self._q * (len(self._sorted) - 1))]

    def __len__(self) -> int:
        """How many measurements it stands on."""
        return len(self._sorted)


class RecentMedian(LowQuantile):
    """The (lower) median of the last `size` measurements: follows a change after half of them."""

    def __init__(self, size: int = 16) -> None:
        super().__init__(size, q=0.5)


class RecentMean:
    """The mean of the last `size` measurements: of what comes in bursts, none but it is right.

    Args:
        size: how many measurements are remembered (>= 1).

    Raises:
        ValueError: `size` is out of range.
    """

    def __init__(self, size: int = 64) -> None:
        if size < 1:
            raise ValueError(f"needs size >= 1, not {size}")
        self._size = size
        self._latest: deque[float] = deque(maxlen=size)
        self.value: float | None = None

    def add(self, measurement: float) -> None:
        """Remember one more. Raises ValueError for NaN and infinities."""
        if not isfinite(measurement):
            raise ValueError(f"not a measurement: {measurement}")
        self._latest.append(measurement)
        self.value = self._mean()

    def forget(self, count: int) -> None:
        """Leave out the `count` oldest of more measurements."""
        for _ in range(count):
            self._latest.popleft()
        self.value = self._mean()

    def _mean(self) -> float:
        return sum(self._latest) / len(self._latest)

    def __len__(self) -> int:
        """How many measurements it stands on."""
        return len(self._latest)


class MeanWithoutPause(RecentMean):
    """The mean of the last `size` measurements, without one that is twice as long as all others.

    It is left out only where `size` are known: what comes more often than that is no pause.
    """

    def _mean(self) -> float:
        longest = nlargest(2, self._latest)
        if len(self._latest) < max(self._size, 2) or longest[0] <= 2 * longest[1]:
            return super()._mean()
        return (sum(self._latest) - longest[0]) / (len(self._latest) - 1)


class RecentRate:
    """Things per second over the last `horizon_s`, for throughputs that are shown.

    Counts are kept in steps of a `STEPS`-th of the horizon, so memory does not grow with the rate.
    """

    STEPS = 32

    def __init__(self, horizon_s: float = 5.0) -> None:
        if not (isfinite(horizon_s) and horizon_s > 0):
            raise ValueError(f"a horizon is a time above 0 s, not {horizon_s}")
        self._horizon_s = horizon_s
        self._start: float | None = None
        self._steps: deque[tuple[int, float]] = deque()  # (step of time, count)

    def add(self, count: float, now: float) -> None:
        """`count` things happened at `now`, in seconds of a clock that does not go back."""
        if self._start is None:
            self._start = now
        step = int(now * self.STEPS // self._horizon_s)
        if self._steps and self._steps[-1][0] == step:
            count += self._steps.pop()[1]
        self._steps.append((step, count))
        self._drop_old(step)

    def value(self, now: float) -> float:
        """Things per second; over the time since the first while that is below the horizon."""
        if self._start is None:
            return 0.0
        step = int(now * self.STEPS // self._horizon_s)
        self._drop_old(step)
        span_s = min(self._horizon_s, max(now - self._start, self._horizon_s / self.STEPS))
        return sum(count for _, count in self._steps) / span_s

    def _drop_old(self, step: int) -> None:
        while self._steps and self._steps[0][0] <= step - self.STEPS:
            self._steps.popleft()
