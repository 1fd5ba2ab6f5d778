"""The teachers that nobody has, by power and host."""

from __future__ import annotations

from collections.abc import Container

from .fleet import Fleet, Pool
from .power import EPS


class Idle:
    """Teachers to be given: of equal ones the longest idle first.

    Args:
        fleet: all teachers.
        pool: those that may ever be idle here.
        held: those that are not now.
    """

    def __init__(self, fleet: Fleet, pool: Pool, held: Container[str]) -> None:
        self._fleet = fleet
        self._powers = sorted(pool.of_power)
        self._of = {
            power: {name: None for name in names if name not in held}
            for power, names in pool.of_power.items()
        }
        # Made when somebody asks for one on a host.
        self._at: dict[tuple[float, str], dict[str, None]] | None = None

    def __bool__(self) -> bool:
        return any(self._of.values())

    def put(self, teacher: str) -> None:
        entry = self._fleet[teacher]
        self._of[entry.power][teacher] = None
        if self._at is not None:
            self._at.setdefault((entry.power, entry.host), {})[teacher] = None

    def take(self, teacher: str) -> None:
        entry = self._fleet[teacher]
        del self._of[entry.power][teacher]
        if self._at is not None:
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
        near = self._by_host().get((power, host)) if host else None
        return next(iter(near or self._of[power]))

    def _by_host(self) -> dict[tuple[float, str], dict[str, None]]:
        if self._at is None:
            self._at = {}
            for power, names in self._of.items():
                for name in names:
                    self._at.setdefault((power, self._fleet[name].host), {})[name] = None
        return self._at
