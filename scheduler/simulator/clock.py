"""Virtual time, and chance.

Each kind of chance of each machine is drawn from a stream of its own. So what one machine draws
does not depend on what others have drawn, and the same scenario with one teacher more draws the
same for all the others.
"""

from __future__ import annotations

from collections.abc import Callable, MutableSequence
from heapq import heappop, heappush
from math import inf, log, log1p, sqrt
from typing import Any, Protocol


class Clock:
    """Actions in the order of their times; of equal times, in the order in which they were planned.

    Attributes:
        now: virtual seconds since the beginning.
        events: actions that have happened.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._planned = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, moment: float, action: Callable[[], None]) -> None:
        """Have it happen then; at once, where that is past."""
        self._planned += 1
        heappush(self._agenda, (max(moment, self.now), self._planned, action))

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have it happen so much later (>= 0)."""
        self._planned += 1
        heappush(self._agenda, (self.now + seconds, self._planned, action))

    @property
    def next_at(self) -> float:
        """When something happens next; infinite: never."""
        return self._agenda[0][0] if self._agenda else inf

    def step(self) -> None:
        """Let the next one happen; there has to be one."""
        self.now, _, action = heappop(self._agenda)
        self.events += 1
        action()


class Generator(Protocol):
    """What is asked of a generator: `random.Random` has it."""

    def random(self) -> float:
        """A number in [0, 1)."""

    def lognormvariate(self, mu: float, sigma: float) -> float:
        """A number whose logarithm is normal."""

    def shuffle(self, x: MutableSequence[Any]) -> None:
        """Put a list into a random order, in place."""


#: Makes a generator that its argument alone determines: the class `random.Random` is one.
Seeding = Callable[[str], Generator]


class Jitter:
    """Factors that times are multiplied with: of mean 1 and this standard deviation.

    Args:
        generator: where they are drawn from.
        deviation: 0: each is 1, and nothing is drawn.
    """

    __slots__ = ("_generator", "_mu", "_sigma")

    def __init__(self, generator: Generator, deviation: float) -> None:
        variance = log1p(deviation**2)
        self._generator = generator
        self._mu, self._sigma = -variance / 2, sqrt(variance)

    def factor(self) -> float:
        """The next one."""
        if not self._sigma:
            return 1.0
        return self._generator.lognormvariate(self._mu, self._sigma)


def lifetime_s(generator: Generator, leave_per_minute: float) -> float:
    """Seconds until a machine leaves of which this share (0 < share <= 1) leaves in a minute.

    At any moment it is equally likely to leave in the next one, however long it has been there.
    """
    rate = -log(max(1 - leave_per_minute, 1e-9)) / 60
    return -log(1 - generator.random()) / rate
