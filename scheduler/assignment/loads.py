"""How much of each held teacher's time is asked for, and where one more would hurt least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from .fleet import Fleet

if TYPE_CHECKING:
    from .board import Seat

_Heap = list[tuple[float, str]]


class Loads:
    """Loads are computed when first asked for, and followed from then on.

    Args:
        fleet: all teachers.
        power: of those that may be held.
        holders: who holds each of those that are held now.
        growing: whether one more may be seated anywhere.
    """

    def __init__(
        self,
        fleet: Fleet,
        power: Mapping[str, float],
        holders: Mapping[str, Sequence[Seat]],
        growing: bool,
    ) -> None:
        self._fleet = fleet
        self._power = power
        self._holders = holders
        self._growing = growing
        self._loads: dict[str, float] = {}
        self._heaps: dict[tuple[float, str], _Heap] | None = None

    def of(self, teacher: str) -> float:
        """How much of its time those that hold it can use; beyond 1 they lack some."""
        load = self._loads.get(teacher)
        if load is None:
            seats = self._holders[teacher]
            load = self._loads[teacher] = sum(self.part(seat, teacher) for seat in seats)
        return load

    def part(self, seat: Seat, teacher: str) -> float:
        """How much of a teacher's time a student can use: 0 to 1."""
        return min(1.0, seat.need / self._power[teacher])

    def may_share(self, teacher: str) -> bool:
        """Whether it is the only teacher of those that hold it, so that one more may sit there."""
        seats = self._holders.get(teacher)
        if not seats:
            return False
        return self._growing or len(seats) > 1 or len(seats[0].held) == 1

    def changed(self, teacher: str, by: float) -> None:
        """Somebody came to hold it, or does so no more."""
        if teacher in self._loads:
            self._loads[teacher] += by
        self.offer(teacher)

    def idle(self, teacher: str) -> None:
        """Nobody holds it any more."""
        self._loads.pop(teacher, None)

    def offer(self, teacher: str) -> None:
        """One more may be seated there now, or its load is another."""
        if self._heaps is not None and self.may_share(teacher):
            entry = self._fleet[teacher]
            for key in {(entry.power, ""), (entry.power, entry.host)}:
                heappush(self._heaps.setdefault(key, []), (self.of(teacher), teacher))

    def least(self, power: float, host: str) -> str | None:
        """Of the teachers of a power where one more may sit the least loaded, a near one if any."""
        if self._heaps is None:
            self._heaps = {}
            for teacher in self._holders:
                if self.may_share(teacher):
                    entry = self._fleet[teacher]
                    for key in {(entry.power, ""), (entry.power, entry.host)}:
                        self._heaps.setdefault(key, []).append((self.of(teacher), teacher))
            for heap in self._heaps.values():
                heapify(heap)
        near, far = self._top((power, host)), self._top((power, ""))
        if near is not None and far is not None and self.of(near) <= self.of(far) + 1e-9:
            return near
        return far

    def _top(self, key: tuple[float, str]) -> str | None:
        heap = (self._heaps or {}).get(key, [])
        while heap:
            load, teacher = heap[0]
            if self._loads.get(teacher) == load and self.may_share(teacher):
                return teacher
            heappop(heap)
        return None
