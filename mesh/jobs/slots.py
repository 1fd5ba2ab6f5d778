"""Slots of this machine: their cores, and which of them are used or reserved."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...coordinator.job_queue import Reservation
from ...runtime.errors import UsageError
from ...scheduler.elastic_values import ElasticConfig


@dataclass(frozen=True, slots=True)
class JobRunnerConfig:
    """Settings of a runner of jobs.

    Attributes:
        runner_id: unique name of the runner.
        host: name of its machine, for display.
        coordinator: Redis URL for the nodes of jobs.
        cores: cores of each slot; its length is the number of slots.
        folder: folder for logs, and for checkpoints of jobs that name no folder.
        elastic: rules by which jobs share the slots.
        yield_s: seconds after which a leaving node is killed if a reservation needs its slot.
        ttl_s: seconds without a heartbeat after which another runner may take over.
        cards: accelerator card of each slot; empty: nodes see the cards that this process sees.
    """

    runner_id: str
    host: str
    coordinator: str
    cores: tuple[tuple[int, ...], ...]
    folder: Path
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    yield_s: float = 8.0
    ttl_s: float = 5.0
    cards: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.cores:
            raise UsageError("a runner of jobs has at least one slot")
        if self.cards and len(self.cards) != len(self.cores):
            raise UsageError(
                f"{len(self.cards)} cards for {len(self.cores)} slots: name one for each"
            )


def divide_cores(cores: Collection[int], slots: int) -> tuple[tuple[int, ...], ...]:
    """Divide cores equally among slots; slots get no cores of their own if there are too few.

    Args:
        cores: numbers of the cores.
        slots: number of slots.

    Returns:
        Cores of each slot; empty: the slot is not pinned.
    """
    if slots > len(cores):
        return ((),) * slots
    ordered, each = sorted(cores), len(cores) // slots
    return tuple(tuple(ordered[slot * each : (slot + 1) * each]) for slot in range(slots))


@dataclass(slots=True)
class Slots:
    """Used and reserved slots. Used by the runner's thread only.

    Attributes:
        cores: cores of each slot.
        used: numbers of slots with a node.
        reserved: numbers of slots that are kept free, by name of the reservation.
    """

    cores: tuple[tuple[int, ...], ...]
    used: set[int] = field(default_factory=set)
    reserved: dict[str, list[int]] = field(default_factory=dict)

    @property
    def free(self) -> list[int]:
        """Numbers of slots that are neither used nor reserved."""
        held = {slot for slots in self.reserved.values() for slot in slots}
        return [slot for slot in range(len(self.cores)) if slot not in self.used | held]

    def reserve(self, reservations: Sequence[Reservation]) -> list[str]:
        """Keep free slots for reservations, the oldest first.

        Args:
            reservations: reservations that have not expired, the oldest first.

        Returns:
            Names of reservations that are complete now and were not before.
        """
        asked = {one.name: one.slots for one in reservations}
        before = {name for name, slots in self.reserved.items() if len(slots) >= asked.get(name, 0)}
        self.reserved = {name: self.reserved.get(name, [])[:count] for name, count in asked.items()}
        for name, count in asked.items():
            self.reserved[name] += self.free[: count - len(self.reserved[name])]
        return [
            name
            for name, count in asked.items()
            if len(self.reserved[name]) >= count and name not in before
        ]

    def lacks_slots(self, reservations: Sequence[Reservation]) -> bool:
        """Whether a reservation still waits for slots that nodes have."""
        asked = sum(one.slots for one in reservations)
        return sum(map(len, self.reserved.values())) < min(asked, len(self.cores))
