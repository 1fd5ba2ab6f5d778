"""Division of a cluster's nodes among elastic jobs: the least fulfilled job grows first.

Follows the autoscaler of EDL's controller and ElasticDL's elastic scheduling. Call `decide` after
every change and every few seconds; the caller starts and ends nodes to reach the targets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf
from typing import Any, Final

from .elastic_values import (
    SLOTS,
    ElasticConfig,
    ElasticJob,
    ElasticMemory,
    FreeResources,
    Pool,
    Target,
    resources_of,
)

#: A job with this share of its work done no longer grows: forming a new world would cost more time
#: than another node saves. It is also the last to shrink.
NEAR_END: Final = 0.95


def fulfilment(job: ElasticJob, nodes: int) -> float:
    """Return (nodes - min) / (max - min): 0 with the fewest nodes, 1 with the most.

    It is negative with fewer nodes than the minimum. A fixed job has 1, or -1 with too few nodes.
    """
    if job.max_nodes == job.min_nodes:
        return 1.0 if nodes >= job.min_nodes else -1.0
    return (nodes - job.min_nodes) / (job.max_nodes - job.min_nodes)


class ElasticShares:
    """The division of the resources, once all nodes that are to leave have left.

    First each job that may run gets its minimum: by priority, then running before waiting jobs,
    then by age. The remaining resources go to the highest priority first. Within one priority each
    job keeps the nodes that it has above its minimum. If these are too many, the most fulfilled job
    gives nodes back first. If resources are left, the least fulfilled job grows first. Finally,
    nodes move from the most to the least fulfilled job while the fulfilments of these two differ by
    more than `config.rebalance_gap`.

    Args:
        pool: the resources.
        jobs: all jobs; in gang mode their minimum is their maximum.
        memory: memory of the previous decision.
        now: seconds, on the clock of `submitted_s`.
        config: the settings.

    Attributes:
        pool, jobs, config: as in Args.
        nodes: nodes by job; 0 for jobs that do not run.
        behind: for each waiting job that may not overtake another one: the name of this other job.
        moved: for each job that gives nodes to less fulfilled jobs: the name of the last of these.
        limit: the resources that jobs may use.
    """

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[ElasticJob],
        memory: ElasticMemory,
        now: float,
        config: ElasticConfig,
    ) -> None:
        self.pool, self.jobs, self.config = pool, jobs, config
        self.nodes = {job.name: 0 for job in jobs}
        self.behind: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.limit = FreeResources(
            {
                kind: max(0.0, amount * config.max_load - pool.reserved.get(kind, 0.0))
                for kind, amount in pool.capacity.items()
            }
        )
        self._memory, self._now = memory, now
        self._room = FreeResources(self.limit)
        self._floors: dict[str, int] = {}  # the fewest nodes of each admitted job
        self._admit()
        admitted = sorted((job for job in jobs if job.name in self._floors), key=_by_priority)
        for _, members in groupby(admitted, key=_by_priority):
            same_priority = list(members)
            for job in same_priority:
                floor = self._floors[job.name]
                self.nodes[job.name] = max(floor, min(job.nodes, job.max_nodes))
                self._room.take(job.needs, self.nodes[job.name] - floor)
            self._shrink(same_priority)
            self._grow(same_priority)
            self._rebalance(same_priority)
            self._grow(same_priority)  # with the resources that the moves left over

    def frozen_s(self, job: ElasticJob) -> float:
        """Return the seconds until the job may grow, or give nodes for equal shares; 0: now."""
        changed = self._memory.changed_s.get(job.name)
        return 0.0 if changed is None else max(0.0, changed + self.config.freeze_s - self._now)

    def is_near_end(self, job: ElasticJob) -> bool:
        """Whether a job is so near its end that it does not grow, and gives nodes last."""
        return (job.progress or 0.0) >= NEAR_END

    def _may_be_overtaken(self, job: ElasticJob) -> bool:
        """Whether later jobs that need less may still start before this waiting job."""
        waits_since = self._memory.waiting_since_s.get(job.name, self._now)
        patience_s = -inf if self.config.mode == "gang" else self.config.patience_s
        return self._now - waits_since < patience_s

    def _admit(self) -> None:
        """Admit the jobs with a minimum that fits, and reserve this minimum.

        A running job may have fewer nodes than its minimum if the minimum was raised. It is not
        stopped for this. It gets the missing nodes before any job gets more than its minimum.
        """
        room, floors = self._room, self._floors
        first_in_line: str | None = None
        ordered = sorted(
            self.jobs, key=lambda j: (-j.priority, j.nodes == 0, j.submitted_s, j.name)
        )
        for job in ordered:
            fewest = min(job.min_nodes, job.nodes) if job.nodes else job.min_nodes
            needs = resources_of(job, fewest)
            if job.nodes == 0 and first_in_line is not None:
                self.behind[job.name] = first_in_line
            elif room.fits(needs):
                room.take(needs)
                floors[job.name] = fewest
            elif not (job.nodes or self._may_be_overtaken(job)) and self.limit.fits(needs):
                # A job that needs more than `limit` can never start, so it blocks no other job.
                first_in_line = job.name
        for job in ordered:
            missing = job.min_nodes - floors.get(job.name, job.min_nodes)
            if missing and room.fits(job.needs, missing):
                room.take(job.needs, missing)
                floors[job.name] = job.min_nodes

    def _shrink(self, jobs: Sequence[ElasticJob]) -> None:
        """Take back nodes above the minima while resources are short: most fulfilled jobs first."""
        self._change_in_order(
            jobs,
            -1,
            lambda job: (self.is_near_end(job), -self._fulfilment(job), -job.submitted_s),
            lambda job: self.nodes[job.name] > self._floors[job.name],
            # A job that cannot help now cannot help later: taking nodes back creates no shortage.
            lambda job: any(job.needs.get(kind, 0.0) > 0 for kind in self._room.short_of()),
        )

    def _grow(self, jobs: Sequence[ElasticJob]) -> None:
        """Give nodes to jobs while resources are left: the least fulfilled job first."""
        self._change_in_order(
            jobs,
            1,
            # Among equally fulfilled jobs the one with the smallest nodes, so that more nodes fit.
            lambda job: (self._fulfilment(job), sum(job.needs.values()), job.submitted_s),
            self._may_grow,
            lambda job: self._room.fits(job.needs),  # growing frees no resources
        )

    def _change_in_order(
        self,
        jobs: Sequence[ElasticJob],
        nodes: int,
        order: Callable[[ElasticJob], tuple[Any, ...]],
        may: Callable[[ElasticJob], bool],
        can: Callable[[ElasticJob], bool],
    ) -> None:
        """Change the first job by `nodes`, again and again, until no job may or can change.

        Args:
            jobs: the jobs.
            nodes: change of a job's number of nodes: 1 or -1.
            order: sort key of a job; each change may change it.
            may: whether a job's own limits permit another change.
            can: whether the resources permit a job to grow, or require it to shrink. If not, the
                job is not tried again.
        """
        by_name = {job.name: job for job in jobs if may(job)}
        queue = [(*order(job), job.name) for job in by_name.values()]
        heapify(queue)
        while queue:
            job = by_name[heappop(queue)[-1]]
            if can(job):
                self._add(job, nodes)
                if may(job):
                    heappush(queue, (*order(job), job.name))

    def _rebalance(self, jobs: Sequence[ElasticJob]) -> None:
        """Move nodes from the most to the least fulfilled jobs while these differ too much."""

        def order(job: ElasticJob) -> tuple[float, float, str]:
            return self._fulfilment(job), job.submitted_s, job.name

        for _ in range(sum(self.nodes[job.name] for job in jobs)):
            givers = [
                job
                for job in jobs
                if min(self.nodes[job.name], job.nodes) > job.min_nodes and not self._must_stay(job)
            ]
            takers = [job for job in jobs if self._may_grow(job)]
            if not givers or not takers:
                return
            giver, taker = max(givers, key=order), min(takers, key=order)
            after = FreeResources(self._room)
            after.take(giver.needs, -1)
            gap = self._fulfilment(giver) - self._fulfilment(taker)
            if (
                gap <= self.config.rebalance_gap
                or self._fulfilment(giver, -1) < self._fulfilment(taker, 1)  # it would overshoot
                or not after.fits(taker.needs)
            ):
                return
            self._add(giver, -1)
            self._add(taker, 1)
            self.moved[giver.name] = taker.name

    def _add(self, job: ElasticJob, nodes: int) -> None:
        self.nodes[job.name] += nodes
        self._room.take(job.needs, nodes)

    def _fulfilment(self, job: ElasticJob, more: int = 0) -> float:
        return fulfilment(job, self.nodes[job.name] + more)

    def _must_stay(self, job: ElasticJob) -> bool:
        """Whether a running job keeps its nodes.

        It does while its world forms, after a recent change, and near its end.
        """
        return not job.steady or self.frozen_s(job) > 0 or self.is_near_end(job)

    def _may_grow(self, job: ElasticJob) -> bool:
        if self.nodes[job.name] >= job.max_nodes:
            return False
        return job.nodes == 0 or not self._must_stay(job)


def _by_priority(job: ElasticJob) -> int:
    return -job.priority


def reason(shares: ElasticShares, job: ElasticJob, assigned: Mapping[str, int]) -> str:
    """Explain the number of nodes that a job has from now on; `assigned`: the numbers of all."""
    nodes = assigned[job.name]
    if nodes == 0:
        return _stopped(shares, job) if job.nodes > 0 else _waits(shares, job)
    if job.nodes == 0:
        return f"starts with {_count(nodes)}"
    if nodes > job.nodes:
        return f"grows by {_count(nodes - job.nodes)}: the least fulfilled job that can grow"
    if nodes < job.nodes:
        return f"gives {_count(job.nodes - nodes)} {_recipient(shares, job)}"
    return _stays(shares, job)


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        "1 slot" if (kind, amount) == (SLOTS, 1) else f"{amount:g} {kind}"
        for kind, amount in sorted(amounts.items())
        if amount
    )


def _waits(shares: ElasticShares, job: ElasticJob) -> str:
    if shares.nodes[job.name] > 0:
        return "waits for nodes that are leaving to make room"
    if job.name in shares.behind:
        return f"waits behind {shares.behind[job.name]}, which is first in the queue"
    minimum = resources_of(job, job.min_nodes)
    what = f"at least {_count(job.min_nodes)}, {_amounts(minimum)}"
    if not shares.limit.fits(minimum):
        if _without_reservations(shares).fits(minimum):
            return f"waits until online services give resources back: it needs {what}"
        return f"waits for a larger pool: it needs {what}; ask for less"
    online = " and online services" if any(shares.pool.reserved.values()) else ""
    return f"waits: it needs {what}; jobs before it{online} leave too little"


def _without_reservations(shares: ElasticShares) -> FreeResources:
    """Return what jobs could use if nothing were reserved for online services."""
    kinds = shares.pool.capacity
    return FreeResources({kind: amount * shares.config.max_load for kind, amount in kinds.items()})


def _stopped(shares: ElasticShares, job: ElasticJob) -> str:
    higher = _favoured(shares, above=job.priority)
    if higher:
        return f"stopped for {higher}, of a higher priority"
    if any(shares.pool.reserved.values()):
        return "stopped: online services want back what its smallest world needs"
    return "stopped: the pool became too small for it"


def _recipient(shares: ElasticShares, job: ElasticJob) -> str:
    if job.nodes > job.max_nodes:
        return f"back: it may have at most {_count(job.max_nodes)}"
    taker = shares.moved.get(job.name)
    if taker is not None:
        return f"to {taker}, which is less fulfilled"
    starting = ", ".join(
        sorted(j.name for j in shares.jobs if j.nodes == 0 and shares.nodes[j.name] > 0)
    )
    if starting:
        return f"to make room for {starting}"
    higher = _favoured(shares, above=job.priority)
    if higher:
        return f"to {higher}, of a higher priority"
    if any(shares.pool.reserved.values()):
        return "back to online services"
    return "back: the pool became smaller"


def _favoured(shares: ElasticShares, above: int) -> str:
    """Return the names of jobs above a priority that get more than they had."""
    return ", ".join(
        sorted(j.name for j in shares.jobs if j.priority > above and shares.nodes[j.name] > j.nodes)
    )


def _stays(shares: ElasticShares, job: ElasticJob) -> str:
    if job.nodes >= job.max_nodes:
        return "has all it can use"
    if shares.nodes[job.name] > job.nodes:
        return "grows as soon as nodes that are leaving have made room"
    if not job.steady:
        return "forms its world, and does not change meanwhile"
    frozen = shares.frozen_s(job)
    if frozen > 0:
        return f"changed a moment ago; it may grow in {frozen:.0f} s"
    if shares.is_near_end(job):
        return f"{100 * (job.progress or 0.0):.0f} % done: it does not grow any more"
    return "no room for another node"


def decide(
    pool: Pool, jobs: Sequence[ElasticJob], memory: ElasticMemory, now: float, config: ElasticConfig
) -> tuple[tuple[Target, ...], ElasticMemory]:
    """Decide how many nodes each job has from now on.

    A job only gets resources that are free now. Those of a leaving node become free in a later
    decision, and are reserved for the job for which the node leaves.

    Args:
        pool: the resources.
        jobs: all jobs that have not ended, in any order, with unique names.
        memory: memory of the previous call.
        now: seconds, on the clock of `submitted_s`.
        config: the settings.

    Returns:
        A target for every job, in the order of `jobs`, and the memory for the next call.

    Raises:
        ValueError: two jobs have one name.
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"two jobs have one name: {sorted(job.name for job in jobs)}")
    if config.mode == "gang":
        jobs = [replace(job, min_nodes=job.max_nodes) for job in jobs]
    shares = ElasticShares(pool, jobs, memory, now, config)
    assigned = _assigned_now(shares)
    targets = tuple(
        Target(job.name, assigned[job.name], reason(shares, job, assigned)) for job in jobs
    )
    return targets, _next_memory(jobs, assigned, memory, now)


def _assigned_now(shares: ElasticShares) -> dict[str, int]:
    """Return the nodes of each job from now on: nodes leave at once, new ones need free resources.

    What a job is to get is set aside before it is free, so that no later job takes it. A running
    job grows in one step: forming a world twice costs more than waiting.
    """
    room = FreeResources(shares.limit)
    for job in shares.jobs:
        room.take(resources_of(job, job.nodes + job.leaving))
    assigned = {job.name: min(job.nodes, shares.nodes[job.name]) for job in shares.jobs}
    for job in sorted(shares.jobs, key=lambda j: (-j.priority, j.submitted_s, j.name)):
        if job.nodes > 0 or shares.nodes[job.name] == 0:
            continue
        needs = FreeResources(resources_of(job, job.min_nodes))
        if job.leaving:
            needs.take(job.base)  # the job still has its base
        if room.fits(needs):
            assigned[job.name] = job.min_nodes
        room.take(needs)
    growing_order = sorted(
        shares.jobs,
        key=lambda j: (-j.priority, fulfilment(j, assigned[j.name]), j.submitted_s, j.name),
    )
    for job in growing_order:
        more = shares.nodes[job.name] - (job.nodes or job.min_nodes)
        if more <= 0:
            continue
        if assigned[job.name] > 0 and room.fits(job.needs, more):
            assigned[job.name] += more
        room.take(job.needs, more)
    return assigned


def _next_memory(
    jobs: Sequence[ElasticJob], assigned: Mapping[str, int], memory: ElasticMemory, now: float
) -> ElasticMemory:
    changed = {
        job.name: now
        if job.nodes > 0 and assigned[job.name] != job.nodes
        else memory.changed_s.get(job.name)
        for job in jobs
    }
    waiting = {
        job.name: memory.waiting_since_s.get(job.name, now)
        for job in jobs
        if assigned[job.name] == 0
    }
    return ElasticMemory({name: at for name, at in changed.items() if at is not None}, waiting)
