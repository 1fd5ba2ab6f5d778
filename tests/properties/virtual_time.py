"""Virtual time: what is to happen, and when, with nobody waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush


class VirtualTime:
    """Actions in the order of their times; of equal times, in the order in which they were planned.

    Attributes:
        now: virtual seconds since the beginning.
        planned: how many actions there were to be so far.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.planned = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Have it happen so much later."""
        self.planned += 1
        heappush(self._agenda, (self.now + seconds, self.planned, action))

    def step(self) -> None:
        """Let the next one happen."""
        self.now, _, action = heappop(self._agenda)
        action()

    def run(self, seconds: float) -> None:
        """Let all happen that does within so much time; there is always more to come."""
        end = self.now + seconds
        while self._agenda[0][0] <= end:
            self.step()
        self.now = end
