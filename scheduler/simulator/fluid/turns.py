"""When a student that has labels for a part of its time only waits, and when it works."""

from __future__ import annotations

from math import inf
from typing import Final

#: Seconds in which a student that is short of labels waits once and works once.
TURN_S: Final = 1.0
#: Waiting for so small a part of the time is as good as never; for all but that, as always.
SELDOM: Final = 0.005


class Turns:
    """Waits and works by turns, so that flow control sees what it would see batch by batch.

    Attributes:
        waits: what it does now.
        due: when that ends; infinite: not by itself.
    """

    def __init__(self) -> None:
        self.waits = True
        self.due = inf
        self._short = 1.0  # the part of the time that it lacks labels
        self._owed_s = 0.0  # that it has waited too little so far

    def advance(self, span_s: float) -> None:
        """So much time has passed."""
        self._owed_s += (self._short - self.waits) * span_s

    def look(self, short: float, now: float) -> None:
        """It lacks labels for this part of the time (0 to 1) from now on."""
        self._short = short
        if short <= SELDOM or short >= 1 - SELDOM:
            self.waits, self.due = short > 0.5, inf
            return
        if self.due == inf:
            self.waits = self._owed_s >= 0
        elif now >= self.due - 1e-9:
            self.waits = not self.waits
        # It waits until it has done so for half a turn's share too much, and works likewise.
        ahead_s = TURN_S * short * (1 - short) / 2
        left_s = self._owed_s + ahead_s if self.waits else ahead_s - self._owed_s
        self.due = now + max(left_s, 0.0) / (1 - short if self.waits else short)
