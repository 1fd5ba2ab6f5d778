"""Which elastic jobs run at all, and how the room that is left goes to them: no dynamics yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf
from typing import Any, Final

from .values import ElasticConfig, ElasticJob, ElasticMemory, Pool, Room, held

#: A job of which this share is done does not grow any more: forming a new world would cost more
#: than the node brings. It is also the last to shrink.
NEAR_END: Final = 0.95


def fulfilment(job: ElasticJob, nodes: int) -> float:
    """(cur - min) / (max - min): 0 with the fewest nodes, 1 with all; a fixed job's is 1.

    Below 0 with less than the minimum.
    """
    if job.max_nodes == job.min_nodes:
        return 1.0 if nodes >= job.min_nodes else -1.0
    return (nodes - job.min_nodes) / (job.max_nodes - job.min_nodes)


class Shares:
    """The room divided among jobs: what each has once all nodes that are to leave have left.

    First each job that may run has its minimum, in the order of priority, then running before
    waiting, then arrival. What is left goes to the highest priority first; within one priority each
    job keeps what it has above its minimum, the most fulfilled gives first if that is too much, and
    the fewest fulfilled grows first if it is less.

    Args:
        pool: what there is.
        jobs: all of them; in gang mode their minimum is their maximum.
        memory: of the decision before.
        now: seconds.
        config: how they share.

    Attributes:
        pool, jobs, config: those that were given.
        nodes: by name; 0 for those that do not run.
        behind: of those that wait behind one that has waited for long: its name.
        moved: those that gave a node to a job that was fulfilled less, and to whom.
        limit: what jobs may have of the pool.
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
        self.limit = Room(
            {
                kind: max(0.0, amount * config.max_load - pool.reserved.get(kind, 0.0))
                for kind, amount in pool.capacity.items()
            }
        )
        self._memory, self._now = memory, now
        self._room = Room(self.limit)
        self._floors: dict[str, int] = {}  # the fewest nodes that those which run are left with
        self._admit()
        admitted = sorted((job for job in jobs if job.name in self._floors), key=_by_priority)
        for _, members in groupby(admitted, key=_by_priority):
            alike = list(members)
            for job in alike:
                floor = self._floors[job.name]
                self.nodes[job.name] = max(floor, min(job.nodes, job.max_nodes))
                self._room.take(job.needs, self.nodes[job.name] - floor)
            self._shed(alike)
            self._grow(alike)
            self._rebalance(alike)
            self._grow(alike)  # what the moves left over

    def frozen_s(self, job: ElasticJob) -> float:
        """Seconds until the job may be changed for the sake of others' share."""
        changed = self._memory.changed_s.get(job.name)
        return 0.0 if changed is None else max(0.0, changed + self.config.freeze_s - self._now)

    def ends(self, job: ElasticJob) -> bool:
        """Whether it is near its end: it does not grow, and gives last."""
        return (job.progress or 0.0) >= NEAR_END

    def _is_overtaken(self, job: ElasticJob) -> bool:
        """Whether a waiting job has not waited for so long that nobody goes before it any more."""
        waits_since = self._memory.waiting_since_s.get(job.name, self._now)
        patience_s = -inf if self.config.mode == "gang" else self.config.patience_s
        return self._now - waits_since < patience_s

    def _admit(self) -> None:
        """Those whose minimum has room, which is taken.

        A running job may have less than its minimum when that was raised: it is not stopped for
        that, and gets the rest before anybody gets more than a minimum.
        """
        room, floors = self._room, self._floors
        first_in_line: str | None = None
        ordered = sorted(
            self.jobs, key=lambda j: (-j.priority, j.nodes == 0, j.submitted_s, j.name)
        )
        for job in ordered:
            fewest = min(job.min_nodes, job.nodes) if job.nodes else job.min_nodes
            if job.nodes == 0 and first_in_line is not None:
                self.behind[job.name] = first_in_line
            elif room.fits(held(job, fewest)):
                room.take(held(job, fewest))
                floors[job.name] = fewest
            elif not (job.nodes or self._is_overtaken(job)) and self.limit.fits(held(job, fewest)):
                # One that even the empty pool could not hold closes the door to nobody.
                first_in_line = job.name
        for job in ordered:
            missing = job.min_nodes - floors.get(job.name, job.min_nodes)
            if missing and room.fits(job.needs, missing):
                room.take(job.needs, missing)
                floors[job.name] = job.min_nodes

    def _shed(self, jobs: Sequence[ElasticJob]) -> None:
        """Take nodes above minima back until what is taken is there: the most fulfilled first."""
        self._by_turns(
            jobs,
            -1,
            lambda job: (self.ends(job), -self._fulfilment(job), -job.submitted_s),
            lambda job: self.nodes[job.name] > self._floors[job.name],
            # One that cannot help will not later: kinds only stop being short here.
            lambda job: any(job.needs.get(kind, 0.0) > 0 for kind in self._room.short_of()),
        )

    def _grow(self, jobs: Sequence[ElasticJob]) -> None:
        """Give nodes as long as one has room for them: the fewest fulfilled first."""
        self._by_turns(
            jobs,
            1,
            # Of equals the one that takes least, so that the room is enough for more.
            lambda job: (self._fulfilment(job), sum(job.needs.values()), job.submitted_s),
            self._may_grow,
            lambda job: self._room.fits(job.needs),  # room only shrinks here
        )

    def _by_turns(
        self,
        jobs: Sequence[ElasticJob],
        nodes: int,
        order: Callable[[ElasticJob], tuple[Any, ...]],
        may: Callable[[ElasticJob], bool],
        can: Callable[[ElasticJob], bool],
    ) -> None:
        """Change jobs by so many nodes at a time, the first in order first, as long as they may.

        One that cannot when it is its turn is out for good.
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
        """Move nodes from the most to the fewest fulfilled while these lie too far apart."""

        def order(job: ElasticJob) -> tuple[float, float, str]:
            return self._fulfilment(job), job.submitted_s, job.name

        for _ in range(sum(self.nodes[job.name] for job in jobs)):
            givers = [
                job
                for job in jobs
                if min(self.nodes[job.name], job.nodes) > job.min_nodes and not self._stays(job)
            ]
            takers = [job for job in jobs if self._may_grow(job)]
            if not givers or not takers:
                return
            high, low = max(givers, key=order), min(takers, key=order)
            after = Room(self._room)
            after.take(high.needs, -1)
            gap = self._fulfilment(high) - self._fulfilment(low)
            if (
                gap <= self.config.rebalance_gap
                or self._fulfilment(high, -1) < self._fulfilment(low, 1)  # it overshoots
                or not after.fits(low.needs)
            ):
                return
            self._add(high, -1)
            self._add(low, 1)
            self.moved[high.name] = low.name

    def _add(self, job: ElasticJob, nodes: int) -> None:
        self.nodes[job.name] += nodes
        self._room.take(job.needs, nodes)

    def _fulfilment(self, job: ElasticJob, more: int = 0) -> float:
        return fulfilment(job, self.nodes[job.name] + more)

    def _stays(self, job: ElasticJob) -> bool:
        """Whether a running job is left as it is: it forms its world, has just changed, or ends."""
        return not job.steady or self.frozen_s(job) > 0 or self.ends(job)

    def _may_grow(self, job: ElasticJob) -> bool:
        if self.nodes[job.name] >= job.max_nodes:
            return False
        return job.nodes == 0 or not self._stays(job)


def _by_priority(job: ElasticJob) -> int:
    return -job.priority
