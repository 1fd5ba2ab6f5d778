"""The teachers that nobody has, by power and host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .power import EPS
from .state import TeacherEntry


class Idle:
    """Teachers to be given: of equal ones the longest idle first.

    Args:
        teachers: all that may ever be idle.
        powers: theirs, in order.
    """

    def __init__(self, teachers: Mapping[str, TeacherEntry], powers: Sequence[float]) -> None:
        self._teachers = teachers
        self._powers = powers
        self._of: dict[float, dict[str, None]] = {power: {} for power in self._powers}
        self._at: dict[tuple[float, str], dict[str, None]] = {}

    def __bool__(self) -> bool:
        return any(self._of.values())

    def put(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        self._of[entry.power][teacher] = None
        if entry.host:
            self._at.setdefault((entry.power, entry.host), {})[teacher] = None

    def take(self, teacher: str) -> None:
        entry = self._teachers[teacher]
        del self._of[entry.power][teacher]
        if entry.host:
            del self._at[entry.power, entry.host][teacher]

    def fitting(self, unmet: float, host: str) -> str:
        """The largest not above `unmet`, else the smallest; of equal ones one on the host."""
        powers = [power for power in self._powers if self._of[power]]
        return self._one(max((p for p in powers if p <= unmet + EPS), default=powers[0]), host)

    def enough(self, need: float, host: str) -> str | None:
        """The smallest that is all that somebody needs; None: there is none."""
        for power in self._powers:
            if power >= need - EPS and self._of[power]:
                return self._one(power, host)
        return None

    def _one(self, power: float, host: str) -> str:
        near = self._at.get((power, host)) if host else None
        return next(iter(near or self._of[power]))
