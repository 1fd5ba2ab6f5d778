"""Students that step together: ranks of one job, which is as fast as its slowest."""

from __future__ import annotations

from math import erf, inf, log, log1p, sqrt
from typing import Protocol

#: Points of the integral below.
POINTS = 400


class Rank(Protocol):
    """A student, as the others of its job see it.

    Attributes:
        potential: batches per second that it could take now, whatever the others do.
        unhindered: the same if it lacked nothing.
    """

    potential: float
    unhindered: float


class Job:
    """The ranks of one group, and how fast they can step together.

    Args:
        jitter: of a step's time.

    Attributes:
        ranks: those that are there, by name.
        rate: steps per second of all of them, as the slowest allows.
        stretch: the slowest draw of all ranks makes a step so many times as long.
    """

    def __init__(self, jitter: float) -> None:
        self.ranks: dict[str, Rank] = {}
        self.rate = inf
        self.stretch = 1.0
        self._jitter = jitter
        self._stretches: dict[int, float] = {}

    def look(self) -> bool:
        """The ranks can step at other rates; whether the job does by that."""
        ranks, count = self.ranks.values(), len(self.ranks)
        if count not in self._stretches:
            self._stretches[count] = slowest_of(count, self._jitter)
        self.stretch = self._stretches[count]
        # A step is over when the slowest draw of all ranks is; where labels are short, they are
        # what is waited for.
        least = min((rank.potential for rank in ranks), default=inf)
        most = min((rank.unhindered for rank in ranks), default=inf)
        before, self.rate = self.rate, min(least, most / self.stretch)
        return self.rate != before


def slowest_of(count: int, jitter: float) -> float:
    """The mean of the greatest of so many times of mean 1, log-normal with this deviation."""
    if count < 2 or jitter == 0:
        return 1.0
    variance = log1p(jitter**2)
    mu, sigma = -variance / 2, sqrt(variance)
    longest = 1 + 12 * jitter
    step = longest / POINTS

    def beyond(time: float) -> float:
        below = (1 + erf((log(time) - mu) / (sigma * sqrt(2)))) / 2
        return 1 - below**count

    return step * sum(beyond((number + 0.5) * step) for number in range(POINTS))
