"""Which elastic jobs run at all, and how the room that is left goes to them: no dynamics yet."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from itertools import groupby

from .values import ElasticJob, Room, held


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
        limit: all that jobs may have.
        jobs: all of them; in gang mode their minimum is their maximum.
        still: frozen after a change, or forming a world: they neither grow nor give for the sake of
            others' share.
        ending: near their end: they do not grow, and give last.
        impatient: waiting jobs that are not overtaken.
        gap: of fulfilment, from which on nodes move between running jobs.

    Attributes:
        nodes: by name; 0 for those that do not run.
        behind: of those that wait behind one that has waited for long: its name.
        moved: those that gave a node to a job that was fulfilled less, and to whom.
    """

    def __init__(
        self,
        limit: Room,
        jobs: Sequence[ElasticJob],
        *,
        still: Collection[str],
        ending: Collection[str],
        impatient: Collection[str],
        gap: float,
    ) -> None:
        self.nodes = {job.name: 0 for job in jobs}
        self.behind: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.ending = ending
        self._still = still
        self._room = limit.copy()
        self._floors: dict[str, int] = {}  # the fewest nodes that those which run are left with
        self._admit(jobs, impatient)
        admitted = sorted((job for job in jobs if job.name in self._floors), key=_by_priority)
        for _, members in groupby(admitted, key=_by_priority):
            alike = list(members)
            for job in alike:
                floor = self._floors[job.name]
                self.nodes[job.name] = max(floor, min(job.nodes, job.max_nodes))
                self._room.take(job.needs, self.nodes[job.name] - floor)
            self._shed(alike)
            self._grow(alike)
            self._rebalance(alike, gap)
            self._grow(alike)  # what the moves left over

    def _admit(self, jobs: Sequence[ElasticJob], impatient: Collection[str]) -> None:
        """Those whose minimum has room, which is taken.

        A running job may have less than its minimum when that was raised: it is not stopped for
        that, and gets the rest before anybody gets more than a minimum.
        """
        room, floors = self._room, self._floors
        whole = room.copy()
        first_in_line: str | None = None
        ordered = sorted(jobs, key=lambda j: (-j.priority, j.nodes == 0, j.submitted_s, j.name))
        for job in ordered:
            fewest = min(job.min_nodes, job.nodes) if job.nodes else job.min_nodes
            if job.nodes == 0 and first_in_line is not None:
                self.behind[job.name] = first_in_line
            elif room.fits(held(job, fewest)):
                room.take(held(job, fewest))
                floors[job.name] = fewest
            elif job.nodes == 0 and job.name in impatient and whole.fits(held(job, fewest)):
                # One that even the empty pool could not hold closes the door to nobody.
                first_in_line = job.name
        for job in ordered:
            missing = job.min_nodes - floors.get(job.name, job.min_nodes)
            rest = {kind: amount * missing for kind, amount in job.needs.items()}
            if missing and room.fits(rest):
                room.take(rest)
                floors[job.name] = job.min_nodes

    def _shed(self, jobs: Sequence[ElasticJob]) -> None:
        """Take nodes above minima back until what is taken is there: the most fulfilled first."""

        def most(job: ElasticJob) -> tuple[bool, float, float, str]:
            return job.name in self.ending, -self._fulfilment(job), -job.submitted_s, job.name

        by_name = {j.name: j for j in jobs if self.nodes[j.name] > self._floors[j.name]}
        queue = [most(job) for job in by_name.values()]
        heapq.heapify(queue)
        while queue and (short := self._room.short_of()):
            job = by_name[heapq.heappop(queue)[-1]]
            if not any(job.needs.get(kind, 0.0) > 0 for kind in short):
                continue  # it cannot help, and will not later: kinds only stop being short here
            self._add(job, -1)
            if self.nodes[job.name] > self._floors[job.name]:
                heapq.heappush(queue, most(job))

    def _grow(self, jobs: Sequence[ElasticJob]) -> None:
        """Give nodes as long as one has room for them: the fewest fulfilled first."""

        def least(job: ElasticJob) -> tuple[float, float, float, str]:
            # Of equals the one that takes least, so that the room is enough for more.
            return self._fulfilment(job), sum(job.needs.values()), job.submitted_s, job.name

        by_name = {job.name: job for job in jobs if self._may_grow(job)}
        queue = [least(job) for job in by_name.values()]
        heapq.heapify(queue)
        while queue:
            job = by_name[heapq.heappop(queue)[-1]]
            if not self._room.fits(job.needs):  # room only shrinks here: it is out for good
                continue
            self._add(job, 1)
            if self.nodes[job.name] < job.max_nodes:
                heapq.heappush(queue, least(job))

    def _rebalance(self, jobs: Sequence[ElasticJob], gap: float) -> None:
        """Move nodes from the most to the fewest fulfilled while `gap` and more lies between."""

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
            after = self._room.copy()
            after.give(high.needs)
            if (
                self._fulfilment(high) - self._fulfilment(low) <= gap
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
        """Whether a running job is left as it is."""
        return job.name in self._still or job.name in self.ending

    def _may_grow(self, job: ElasticJob) -> bool:
        if self.nodes[job.name] >= job.max_nodes:
            return False
        return job.nodes == 0 or not self._stays(job)


def _by_priority(job: ElasticJob) -> int:
    return -job.priority
