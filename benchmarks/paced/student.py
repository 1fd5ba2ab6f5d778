"""An emulated student of a stated pace: it takes a batch and works for a fixed time on it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from ...teacher.backends.paced import Schedule
from . import ROWS

#: Sleeping threads wake up late, so the last part of a wait is a busy loop of this length.
_AWAKE_S: Final = 0.0005


@dataclass
class PacedStudent:
    """An emulated student. It does not make up for time in which it had no batch.

    Args:
        step_s: seconds of a batch; 0: it takes each batch at once.

    Attributes:
        took_s: monotonic time at which it took each batch.
        waited_s: seconds for which it waited for each batch.
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
                _wait_until(schedule.schedule(now_s, ROWS))
                schedule.record_late_end(time.monotonic())
            asked_s = time.monotonic()


def _wait_until(end_s: float) -> None:
    if (left_s := end_s - time.monotonic()) > _AWAKE_S:
        time.sleep(left_s - _AWAKE_S)
    while time.monotonic() < end_s:
        pass
