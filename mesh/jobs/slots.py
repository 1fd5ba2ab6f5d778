"""The slots of this machine: which cores each has, who is in it, which are kept for a service."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from ...coordinator.queue import Reservation


def divide(cores: Collection[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """The cores of each slot: an equal part each; none where there are more slots than cores.

    Args:
        cores: numbers of those that are there.
        slots: how many.
    """
    if slots > len(cores):
        return ((),) * slots
    ordered, each = sorted(cores), len(cores) // slots
    return tuple(tuple(ordered[slot * each : (slot + 1) * each]) for slot in range(slots))


@dataclass(slots=True)
class Slots:
    """Used by the runner's thread alone.

    Attributes:
        cores: of each slot.
        taken: slots that a node has.
        kept: slots that are kept free, by the name of the reservation.
    """

    cores: tuple[tuple[int, ...], ...]
    taken: set[int] = field(default_factory=set)
    kept: dict[str, list[int]] = field(default_factory=dict)

    @property
    def free(self) -> list[int]:
        """Those that nobody has, and that are kept for nobody."""
        held = {slot for slots in self.kept.values() for slot in slots}
        return [slot for slot in range(len(self.cores)) if slot not in self.taken | held]

    def keep(self, reservations: Sequence[Reservation]) -> list[str]:
        """Keep what is free for those who ask, in the order in which they came.

        Args:
            reservations: that live, in that order.

        Returns:
            Names of those that have all of their slots now and had not before.
        """
        asked = {one.name: one.slots for one in reservations}
        before = {name for name, slots in self.kept.items() if len(slots) >= asked.get(name, 0)}
        self.kept = {name: self.kept.get(name, [])[:count] for name, count in asked.items()}
        for name, count in asked.items():
            self.kept[name] += self.free[: count - len(self.kept[name])]
        return [
            name
            for name, count in asked.items()
            if len(self.kept[name]) >= count and name not in before
        ]

    def short(self, reservations: Sequence[Reservation]) -> bool:
        """Whether somebody still waits for slots that are there to be given."""
        asked = sum(one.slots for one in reservations)
        return sum(map(len, self.kept.values())) < min(asked, len(self.cores))
