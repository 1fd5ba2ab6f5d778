"""Which students starve, told when it lasts: nobody would read a log of every flicker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

#: Seconds that a state has to last to be told.
LASTING_S = 1.0


@dataclass(frozen=True, slots=True)
class Mood:
    """A student's state, told or to be told.

    Attributes:
        student_id: whose.
        starved: whether it waits for labels.
        since_s: when it began.
    """

    student_id: str
    starved: bool
    since_s: float


class Moods:
    """Hears states, tells the ones that last."""

    def __init__(self) -> None:
        self._starving: set[str] = set()  # as it was told
        self._turning: dict[str, Mood] = {}  # differs from what was told

    def hear(self, student_id: str, starved: bool, now: float) -> None:
        """A student's state is this now."""
        if starved == (student_id in self._starving):
            self._turning.pop(student_id, None)
        elif student_id not in self._turning:
            self._turning[student_id] = Mood(student_id, starved, now)

    def forget(self, student_id: str) -> None:
        """A student is gone; nothing is told about it."""
        self._starving.discard(student_id)
        self._turning.pop(student_id, None)

    def lasting(self, now: float) -> Iterator[Mood]:
        """Moods that have lasted and were not told yet; each once."""
        for mood in [m for m in self._turning.values() if now - m.since_s >= LASTING_S]:
            del self._turning[mood.student_id]
            (self._starving.add if mood.starved else self._starving.discard)(mood.student_id)
            yield mood
