"""A student of a stated pace: it takes a batch, works for so long, and takes the next."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ...teacher.backends.paced import Schedule
from . import ROWS

#: A sleeper wakes late; the rest of the way to the moment is spent awake.
_AWAKE_S: Final = 0.0005


@dataclass
class PacedStudent:
    """Emulated: time in which it had no batch is not made up.

    Args:
        step_s: seconds of a batch; 0: it takes each at once.

    Attributes:
        took_s: when it took each batch, on the monotonic clock.
        waited_s: how long it had waited for that.
    """

    step_s: float
    took_s: list[float] = field(default_factory=list)
    waited_s: list[float] = field(default_factory=list)

    def train(self, loader: Iterable[Any]) -> None:
        """Work on every batch of `loader`."""
        schedule = Schedule(ROWS / self.step_s) if self.step_s else None
        asked_s = time.monotonic()
        for _ in loader:
            now_s = time.monotonic()
            self.took_s.append(now_s)
            self.waited_s.append(now_s - asked_s)
            if schedule is not None:
                _wait_until(schedule.end_s(now_s, ROWS))
                schedule.late_s(time.monotonic())
            asked_s = time.monotonic()

    def batch_s(self, skipped: int) -> float:
        """Seconds of a batch on average, from the one behind the first `skipped` to the last."""
        return (self.took_s[-1] - self.took_s[skipped]) / (len(self.took_s) - 1 - skipped)


def _wait_until(end_s: float) -> None:
    if (left_s := end_s - time.monotonic()) > _AWAKE_S:
        time.sleep(left_s - _AWAKE_S)
    while time.monotonic() < end_s:
        pass
