"""Virtual time: what is to happen, and when, with nobody waiting for it."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from math import inf


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
