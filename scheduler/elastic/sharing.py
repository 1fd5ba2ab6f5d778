"""Which elastic jobs run at all, and how the room that is left goes to them: no dynamics yet."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from .values import ElasticConfig, ElasticJob, Room, held


def fulfilment(job: ElasticJob, nodes: int) -> float:
    """(cur - min) / (max - min): 0 with the fewest nodes, 1 with all; a fixed job's is 1.

    Below 0 with less than the minimum.
    """
    if job.max_nodes == job.min_nodes:
        return 1.0 if nodes >= job.min_nodes else -1.0
    return (nodes - job.min_nodes) / (job.max_nodes - job.min_nodes)


@dataclass(frozen=True, slots=True)
class Limits:
    """Which jobs may not be changed for the sake of others' share, by name.

    Attributes:
        still: frozen after a change, or forming a world: they neither grow nor give.
        ending: near their end: they do not grow, and give last.
    """

    still: frozenset[str]
    ending: frozenset[str]

    def leave(self, job: ElasticJob) -> bool:
        """Whether a running job is left as it is."""
        return job.name in self.still or job.name in self.ending


@dataclass(frozen=True, slots=True)
class Shares:
    """What each job shall have once all nodes that are to leave have left.

    Attributes:
        nodes: by name; 0 for those that do not run.
        behind: of those that wait behind one that has waited for long: its name.
        moved: those that gave a node to a job that was fulfilled less, and to whom.
    """

    nodes: Mapping[str, int]
    behind: Mapping[str, str]
    moved: Mapping[str, str]


def share(
    limit: Room,
    jobs: Sequence[ElasticJob],
    limits: Limits,
    impatient: Collection[str],
    config: ElasticConfig,
) -> Shares:
    """Divide the room among the jobs.

    First each job that may run has its minimum, in the order of priority, then running before
    waiting, then arrival. What is left goes to the highest priority first; within one priority each
    job keeps what it has above its minimum, the most fulfilled gives first if that is too much, and
    the fewest fulfilled grows first if it is less.

    Args:
        limit: all that jobs may have.
        jobs: all of them; in gang mode their minimum is their maximum.
        limits: who is not to be changed.
        impatient: waiting jobs that are not overtaken.
        config: the gap from which on nodes move between running jobs.
    """
    room = limit.copy()
    floors, behind = _admitted(room, jobs, impatient)
    nodes = {job.name: 0 for job in jobs}
    moved: dict[str, str] = {}
    admitted = sorted((job for job in jobs if job.name in floors), key=lambda j: -j.priority)
    for _, members in groupby(admitted, key=lambda job: job.priority):
        alike = list(members)
        for job in alike:
            floor = floors[job.name]
            nodes[job.name] = max(floor, min(job.nodes, job.max_nodes))
            room.take(job.needs, nodes[job.name] - floor)
        _shed(room, alike, nodes, floors, limits)
        _grow(room, alike, nodes, limits)
        moved |= _rebalance(room, alike, nodes, limits, config.rebalance_gap)
        _grow(room, alike, nodes, limits)  # what the moves left over
    return Shares(nodes, behind, moved)


def _admitted(
    room: Room, jobs: Sequence[ElasticJob], impatient: Collection[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Those whose minimum has room, which is taken, with the fewest nodes they are left with.

    A running job may have less than its minimum when that was raised: it is not stopped for that,
    and gets the rest before anybody gets more than a minimum.

    Returns:
        Nodes by name, and who waits behind whom.
    """
    whole = room.copy()
    floors: dict[str, int] = {}
    behind: dict[str, str] = {}
    first_in_line: str | None = None
    ordered = sorted(jobs, key=lambda j: (-j.priority, j.nodes == 0, j.submitted_s, j.name))
    for job in ordered:
        fewest = min(job.min_nodes, job.nodes) if job.nodes else job.min_nodes
        if job.nodes == 0 and first_in_line is not None:
            behind[job.name] = first_in_line
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
    return floors, behind


def _shed(
    room: Room,
    jobs: Sequence[ElasticJob],
    nodes: dict[str, int],
    floors: Mapping[str, int],
    limits: Limits,
) -> None:
    """Take nodes above the minima back until what is taken is there: the most fulfilled first."""

    def most(job: ElasticJob) -> tuple[bool, float, float, str]:
        ends = job.name in limits.ending
        return ends, -fulfilment(job, nodes[job.name]), -job.submitted_s, job.name

    by_name = {job.name: job for job in jobs if nodes[job.name] > floors[job.name]}
    queue = [most(job) for job in by_name.values()]
    heapq.heapify(queue)
    while queue and (short := room.short_of()):
        job = by_name[heapq.heappop(queue)[-1]]
        if not any(job.needs.get(kind, 0.0) > 0 for kind in short):
            continue  # it cannot help, and will not later: kinds only stop being short here
        nodes[job.name] -= 1
        room.give(job.needs)
        if nodes[job.name] > floors[job.name]:
            heapq.heappush(queue, most(job))


def _grow(room: Room, jobs: Sequence[ElasticJob], nodes: dict[str, int], limits: Limits) -> None:
    """Give nodes as long as one has room for them: the fewest fulfilled first."""

    def least(job: ElasticJob) -> tuple[float, float, float, str]:
        # Of equals the one that takes least, so that the room is enough for more.
        takes = sum(job.needs.values())
        return fulfilment(job, nodes[job.name]), takes, job.submitted_s, job.name

    by_name = {job.name: job for job in jobs if _may_grow(job, nodes, limits)}
    queue = [least(job) for job in by_name.values()]
    heapq.heapify(queue)
    while queue:
        job = by_name[heapq.heappop(queue)[-1]]
        if not room.fits(job.needs):  # room only shrinks here: it is out for good
            continue
        nodes[job.name] += 1
        room.take(job.needs)
        if nodes[job.name] < job.max_nodes:
            heapq.heappush(queue, least(job))


def _may_grow(job: ElasticJob, nodes: Mapping[str, int], limits: Limits) -> bool:
    if nodes[job.name] >= job.max_nodes:
        return False
    return job.nodes == 0 or not limits.leave(job)


def _rebalance(
    room: Room, jobs: Sequence[ElasticJob], nodes: dict[str, int], limits: Limits, gap: float
) -> dict[str, str]:
    """Move nodes from the most to the fewest fulfilled while they are further apart than `gap`.

    Returns:
        Who gave, and to whom.
    """
    moved: dict[str, str] = {}
    for _ in range(sum(nodes[job.name] for job in jobs)):
        givers = [
            job
            for job in jobs
            if min(nodes[job.name], job.nodes) > job.min_nodes and not limits.leave(job)
        ]
        takers = [job for job in jobs if _may_grow(job, nodes, limits)]
        if not givers or not takers:
            break
        high = max(givers, key=lambda j: (fulfilment(j, nodes[j.name]), j.submitted_s, j.name))
        low = min(takers, key=lambda j: (fulfilment(j, nodes[j.name]), j.submitted_s, j.name))
        if fulfilment(high, nodes[high.name]) - fulfilment(low, nodes[low.name]) <= gap:
            break
        after = room.copy()
        after.give(high.needs)
        overshoots = fulfilment(high, nodes[high.name] - 1) < fulfilment(low, nodes[low.name] + 1)
        if overshoots or not after.fits(low.needs):
            break
        nodes[high.name] -= 1
        nodes[low.name] += 1
        room.give(high.needs)
        room.take(low.needs)
        moved[high.name] = low.name
    return moved
