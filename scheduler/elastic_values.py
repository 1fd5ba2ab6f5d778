"""What the rule of elastic jobs looks at and what it answers: pools, jobs, targets, its memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

SLOTS = "slots"
"""The kind of resource of a pool that only counts places, such as one machine's."""


@dataclass(frozen=True, slots=True)
class Pool:
    """What all jobs share.

    Attributes:
        capacity: what there is of each kind of resource, in its unit ("slots", "cpu", "gpu",
            "memory_bytes"); >= 0.
        reserved: what online services hold or want back now, of each kind; >= 0. Jobs get out of
            its way, below their minimum if need be.
    """

    capacity: Mapping[str, float]
    reserved: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_amounts("capacity", self.capacity)
        _check_amounts("reserved", self.reserved)

    @classmethod
    def of_slots(cls, slots: int, reserved: int = 0) -> Pool:
        """A pool that counts places alone; `reserved` of them are wanted by online services."""
        return cls({SLOTS: slots}, {SLOTS: reserved})


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """One job that has not ended, as whoever runs it sees it now.

    Attributes:
        name: unique among all jobs.
        min_nodes: with fewer it does not run at all (>= 1).
        max_nodes: more are of no use to it (>= min_nodes). Equal: a fixed job. Gang scheduling
            starts a job with exactly as many.
        nodes: how many it was last ordered to have, whether they are up yet or not; 0: it waits.
            A node that was told to leave is not one of them.
        leaving: nodes that were told to leave, and still hold what they need.
        needs: what one node holds of each kind of resource (>= 0).
        base: what the job holds of each kind as long as it has a node, besides its nodes
            (a master, parameter servers).
        priority: higher goes first. One of a higher priority takes what those of lower ones have
            above their minimum, and for its own minimum all that they have.
        submitted_s: when it came, on the clock of `now`; the earlier goes first.
        progress: the share of its work that is done, 0..1; None: not known.
        steady: False while its nodes are forming a new world: it is not changed again for the
            sake of others' share, only when it must get out of the way.
    """

    name: str
    min_nodes: int
    max_nodes: int
    nodes: int = 0
    leaving: int = 0
    needs: Mapping[str, float] = field(default_factory=lambda: {SLOTS: 1})
    base: Mapping[str, float] = field(default_factory=dict)
    priority: int = 0
    submitted_s: float = 0.0
    progress: float | None = None
    steady: bool = True

    def __post_init__(self) -> None:
        if not 1 <= self.min_nodes <= self.max_nodes:
            raise ValueError(
                f"job {self.name!r}: expects 1 <= min_nodes <= max_nodes, "
                f"got {self.min_nodes} and {self.max_nodes}"
            )
        if self.nodes < 0 or self.leaving < 0:
            raise ValueError(
                f"job {self.name!r}: nodes and leaving must be 0 or more, "
                f"got {self.nodes} and {self.leaving}"
            )
        _check_amounts(f"job {self.name!r}: what it needs", self.needs)
        _check_amounts(f"job {self.name!r}: what it needs", self.base)


def _check_amounts(what: str, amounts: Mapping[str, float]) -> None:
    for kind, amount in amounts.items():
        if not 0 <= amount < inf:
            raise ValueError(f"{what} of {kind!r} must be 0 or more, got {amount}")


@dataclass(frozen=True, slots=True)
class ElasticConfig:
    """How jobs share.

    Attributes:
        mode: "elastic", or for comparison "gang": a job has all its `max_nodes` or none, and
            nobody overtakes in the queue.
        max_load: the share of each kind of resource that jobs and reservations together may take
            (0..1]; what is above it is air for the machines themselves.
        freeze_s: after a job changed, for so long it neither grows nor gives a node for the sake
            of an equal share. It still makes room for a job that would not run otherwise, for a
            higher priority and for a reservation.
        rebalance_gap: nodes move between running jobs of one priority when their fulfilments
            (cur - min) / (max - min) are further apart than this; 1 or more: never.
        patience_s: a job that waits longer than this is not overtaken any more by a later one of
            its priority that would fit into less room.
    """

    mode: Literal["elastic", "gang"] = "elastic"
    max_load: float = 1.0
    freeze_s: float = 30.0
    rebalance_gap: float = 0.5
    patience_s: float = 600.0

    def __post_init__(self) -> None:
        if self.mode not in ("elastic", "gang"):
            raise ValueError(f"mode must be 'elastic' or 'gang', got {self.mode!r}")
        if not 0 < self.max_load <= 1:
            raise ValueError(f"max_load must be above 0 and at most 1, got {self.max_load}")
        for name in ("freeze_s", "rebalance_gap", "patience_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Target:
    """How many nodes one job shall have from now on.

    Attributes:
        job: its name.
        nodes: 0, or min_nodes..max_nodes (gang: 0 or max_nodes); less than min_nodes only as long
            as there is no room for a job that ran with less before.
        reason: one sentence for an operator: why it has so many, and not more.
    """

    job: str
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ElasticMemory:
    """What the rule remembers between two decisions; the first is made with `ElasticMemory()`.

    Attributes:
        changed_s: when each job was last ordered another number of nodes (not its first start).
        waiting_since_s: since when each job without nodes has been waiting.
    """

    changed_s: Mapping[str, float] = field(default_factory=dict)
    waiting_since_s: Mapping[str, float] = field(default_factory=dict)


_TOLERANCE = 1e-9


class FreeResources(dict[str, float]):
    """What is left of each kind of resource; it may go below 0."""

    def fits(self, amounts: Mapping[str, float], times: int = 1) -> bool:
        """Whether so much is left; a kind that the pool does not have is never left."""
        return all(
            times * amount <= self.get(kind, 0.0) + _TOLERANCE * (1.0 + times * amount)
            for kind, amount in amounts.items()
            if amount > 0
        )

    def take(self, amounts: Mapping[str, float], times: int = 1) -> None:
        """Take so much, or give it back where `times` is negative."""
        for kind, amount in amounts.items():
            self[kind] = self.get(kind, 0.0) - amount * times

    def short_of(self) -> frozenset[str]:
        """The kinds of which more is taken than there is."""
        return frozenset(k for k, left in self.items() if left < -_TOLERANCE * (1 - left))


def held(job: ElasticJob, nodes: int) -> dict[str, float]:
    """What a job holds with so many nodes: nothing, or its base and theirs."""
    if nodes == 0:
        return {}
    kinds = {**job.base, **job.needs}
    return {
        kind: job.base.get(kind, 0.0) + nodes * job.needs.get(kind, 0.0) for kind in sorted(kinds)
    }
