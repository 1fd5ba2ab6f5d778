"""What a reader would have measured by now of its student and its teachers: t_s and t_t.

The live reader (`scheduler.stream_figures`) takes t_s as the mean of its latest steps, and t_t of
each teacher as the median of its latest answers, from the second one on. A fluid has neither steps
nor answers, so what these estimates come to is followed: when a time becomes another one, they have
it so many steps, or answers, later.
"""

from __future__ import annotations

from math import inf
from typing import Final

from ...ratio import pooled_t_t
from ...stream_figures import ANSWERS, FEWEST_ANSWERS, STEP_WINDOW
from ..scenario import StudentGroup
from .devices import Hold

#: Two times that differ by no more than this, relative to them, are the same.
SAME: Final = 0.01


class Measures:
    """The estimates of one student.

    Args:
        group: what the student is like.

    Attributes:
        t_t_s: seconds per sample of its average teacher; None: not known yet.
    """

    def __init__(self, group: StudentGroup) -> None:
        self.t_t_s: float | None = None
        self._group = group
        self._source_s = group.source_s / group.batch
        self._step_s: float | None = None
        self._latest: float | None = None
        self._steps: list[tuple[float, float]] = []  # (from so many batches taken on, step)
        self._known: dict[str, float] = {}  # of each teacher: seconds per batch, as measured
        self._coming: dict[str, tuple[float, float]] = {}  # (when it is measured, as what)

    # -- the student

    def step(self, step_s: float, taken: float) -> None:
        """Its steps take so long from now on, of mean."""
        if self._latest is not None and abs(step_s - self._latest) <= SAME * self._latest:
            return
        self._steps.append((1.0 if self._latest is None else taken + STEP_WINDOW / 2, step_s))
        self._latest = step_s

    def t_s_s(self, taken: float) -> float | None:
        """Seconds per sample of its step, unhindered; None: not known yet."""
        while self._steps and taken >= self._steps[0][0]:
            self._step_s = self._steps.pop(0)[1]
        return None if self._step_s is None else self._step_s / self._group.batch

    def pace_s(self, taken: float) -> float | None:
        """The same, or the source's time where that is longer: teachers need not be faster."""
        known = self.t_s_s(taken)
        return None if known is None else max(known, self._source_s)

    # -- its teachers

    def begin(self, hold: Hold, begins_s: float) -> None:
        """A teacher begins with its first batch."""
        known_s = begins_s + hold.travel_s + FEWEST_ANSWERS * hold.device_s
        self._coming[hold.device.teacher.name] = known_s, hold.device_s

    def changed(self, hold: Hold, now: float) -> None:
        """A teacher's speed is another one: the median has it after half of its answers."""
        name = hold.device.teacher.name
        answers = (ANSWERS + 1) // 2 if name in self._known else FEWEST_ANSWERS
        self._coming[name] = now + answers * hold.device_s, hold.device_s

    def forget(self, name: str) -> None:
        """A teacher is gone."""
        self._coming.pop(name, None)
        if self._known.pop(name, None) is not None:
            self._pool()

    def look(self, now: float) -> float:
        """Take in what is measured by now; returns when there is more, infinite: never."""
        due = inf
        for name, (known_s, device_s) in list(self._coming.items()):
            if known_s <= now:
                del self._coming[name]
                self._known[name] = device_s
                self._pool()
            else:
                due = min(due, known_s)
        return due

    def _pool(self) -> None:
        batch = self._group.batch
        times = [device_s / batch for device_s in self._known.values()]
        self.t_t_s = pooled_t_t(times) if times else None
