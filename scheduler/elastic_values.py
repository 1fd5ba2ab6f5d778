"""Values of elastic sharing: pools, jobs, settings, targets and memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal

#: The resource of a pool that only counts nodes, such as the pool of one machine.
SLOTS = "slots"


@dataclass(frozen=True, slots=True)
class Pool:
    """The resources that all jobs share.

    Attributes:
        capacity: amount of each resource, in its unit ("slots", "cpu", "gpu", "memory_bytes"); >=
            0.
        reserved: amount that online services use or want back now; >= 0. Jobs make room for it, and
            stop if necessary.
    """

    capacity: Mapping[str, float]
    reserved: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_amounts("capacity", self.capacity)
        _check_amounts("reserved", self.reserved)

    @classmethod
    def of_slots(cls, slots: int, reserved: int = 0) -> Pool:
        """Return a pool of `slots`; online services use or want back `reserved` of them."""
        return cls({SLOTS: slots}, {SLOTS: reserved})


@dataclass(frozen=True, slots=True)
class ElasticJob:
    """A job that has not ended, as its runner sees it now.

    Attributes:
        name: unique among all jobs.
        min_nodes: fewest nodes with which it runs (>= 1).
        max_nodes: largest number of nodes that it can use (>= min_nodes). Equal to `min_nodes`: a
            fixed job. Gang scheduling starts a job with exactly this number.
        nodes: its latest target number of nodes, started or not, without `leaving` ones; 0: it
            waits.
        leaving: number of nodes that were asked to leave and still use their resources.
        needs: resources of one node (>= 0).
        base: resources that the job needs besides those of its nodes (a master, parameter servers)
            while it has nodes.
        priority: jobs of a higher priority are served first. Jobs of a lower priority give up all
            nodes for a higher job's minimum, and those above their own minimum for its growth.
        submitted_s: time of submission, on the clock of `now`; the earlier job is served first.
        progress: share of its work that is done, 0..1; None: unknown.
        steady: False while its nodes form a new world: meanwhile the job changes only to make room,
            not for equal shares.
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
        _check_amounts(f"job {self.name!r}: needs", self.needs)
        _check_amounts(f"job {self.name!r}: base", self.base)


def _check_amounts(field_name: str, amounts: Mapping[str, float]) -> None:
    for kind, amount in amounts.items():
        if not 0 <= amount < inf:
            raise ValueError(f"{field_name} of {kind!r} must be finite and 0 or more, got {amount}")


@dataclass(frozen=True, slots=True)
class ElasticConfig:
    """Settings of elastic sharing.

    Attributes:
        mode: "elastic", or for comparison "gang": a job has all its `max_nodes` or none, in the
            order of the queue.
        max_load: share of each resource that jobs and reservations may take together (0..1]; the
            rest is left to the machines.
        freeze_s: seconds after a change in which a job neither grows nor gives a node for equal
            shares. It still makes room for a job that would not run otherwise, for a higher
            priority and for a reservation.
        rebalance_gap: nodes move between running jobs of one priority while their fulfilments
            (nodes - min) / (max - min) differ by more than this; 1 or more: only to jobs below
            their minimum.
        patience_s: a job that waits longer than this is no longer overtaken by later jobs, of its
            own or a lower priority, that need less.
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
    """Target number of nodes of one job.

    Attributes:
        job: name of the job.
        nodes: 0, or min_nodes..max_nodes (gang: 0 or max_nodes). It is below min_nodes only for a
            job that ran with fewer nodes before, while there is no room for more.
        reason: one sentence for users: why this number and not more.
    """

    job: str
    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class ElasticMemory:
    """State between two decisions; start with `ElasticMemory()`.

    Attributes:
        changed_s: when the number of nodes of each running job was last changed; its start does not
            count.
        waiting_since_s: since when each job without nodes has been waiting.
    """

    changed_s: Mapping[str, float] = field(default_factory=dict)
    waiting_since_s: Mapping[str, float] = field(default_factory=dict)


#: Relative rounding error of amounts.
_TOLERANCE = 1e-9


class FreeResources(dict[str, float]):
    """Remaining amount of each resource; it may be negative."""

    def fits(self, amounts: Mapping[str, float], times: int = 1) -> bool:
        """Whether `times` the amounts are left; a resource that the pool lacks counts as 0."""
        return all(
            times * amount <= self.get(kind, 0.0) + _TOLERANCE * (1.0 + times * amount)
            for kind, amount in amounts.items()
            if amount > 0
        )

    def take(self, amounts: Mapping[str, float], times: int = 1) -> None:
        """Take `times` the amounts, or return them if `times` is negative."""
        for kind, amount in amounts.items():
            self[kind] = self.get(kind, 0.0) - amount * times

    def short_of(self) -> frozenset[str]:
        """Return the overdrawn resources: more is taken than exists."""
        return frozenset(k for k, left in self.items() if left < -_TOLERANCE * (1 - left))


def resources_of(job: ElasticJob, nodes: int) -> dict[str, float]:
    """Return the resources of a job with that many nodes: none, or its base and its nodes."""
    if nodes == 0:
        return {}
    kinds = {**job.base, **job.needs}
    return {
        kind: job.base.get(kind, 0.0) + nodes * job.needs.get(kind, 0.0) for kind in sorted(kinds)
    }
