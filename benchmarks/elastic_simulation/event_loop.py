"""The event loop of a simulation of elastic jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from ...scheduler.elastic import decide
from ...scheduler.elastic_values import ElasticMemory, Pool
from .running_job import RunningJob
from .values import PoolState, SimulatedJob, SimulatedPool, Simulation

#: A regular decision that is due within so many seconds is made now: floats are inexact.
_TOLERANCE_S = 1e-9


def simulate(
    pool: SimulatedPool,
    jobs: Sequence[SimulatedJob],
    until_s: float = 1e6,
) -> Simulation:
    """Simulate the jobs until all have ended.

    Args:
        pool: the shared pool and the settings of the rule.
        jobs: jobs with unique names.
        until_s: virtual time at which the simulation ends at the latest, because jobs that cannot
            run would wait for ever.

    Returns:
        The run of each job and the use of the pool. The same arguments give the same result.

    Raises:
        ValueError: there are no jobs, or two have the same name.
    """
    if not jobs or len({job.name for job in jobs}) < len(jobs):
        raise ValueError("there must be at least one job, and jobs must have unique names")
    return _Simulation(pool, jobs, until_s).run()


class _Simulation:
    def __init__(self, pool: SimulatedPool, jobs: Sequence[SimulatedJob], until_s: float) -> None:
        self._pool = pool
        self._jobs = [RunningJob(job) for job in jobs]
        self._until_s = until_s
        self._memory = ElasticMemory()
        self._now = 0.0
        self._ticks = 0
        self._moments: list[PoolState] = []

    def run(self) -> Simulation:
        while True:
            if self._now >= self._ticks * self._pool.decide_every_s - _TOLERANCE_S:
                self._ticks = int(self._now / self._pool.decide_every_s + _TOLERANCE_S) + 1
            self._decide()
            self._record_state()
            if self._over():
                break
            self._advance(min(self._next_s(), self._until_s))
        return Simulation(
            tuple(job.outcome() for job in self._jobs),
            tuple(self._moments),
            self._pool.capacity,
            self._now,
        )

    def _over(self) -> bool:
        return self._now >= self._until_s or all(job.over for job in self._jobs)

    def _next_s(self) -> float:
        """Return the virtual time of the next event."""
        times = [job.next_s(self._now) for job in self._jobs if not job.over]
        times += [r.from_s for r in self._pool.reservations if r.from_s > self._now]
        if any(job.present(self._now) for job in self._jobs):
            times.append(self._ticks * self._pool.decide_every_s)
        return max(self._now, min(times, default=inf))

    def _advance(self, to_s: float) -> None:
        for job in self._jobs:
            job.advance(self._now, to_s)
        self._now = to_s
        for job in self._jobs:
            job.settle(to_s)

    def _decide(self) -> None:
        present = [job for job in self._jobs if job.present(self._now)]
        unavailable = self._reserved()
        for job in self._jobs:
            if not job.present(self._now):  # an ended job, whose nodes may still be leaving
                _add(unavailable, job.held())
        pool = Pool(self._pool.capacity, unavailable)
        views = [job.view(self._now) for job in present]
        targets, self._memory = decide(pool, views, self._memory, self._now, self._pool.config)
        for job, target in zip(present, targets, strict=True):
            job.order(target.nodes, self._now)

    def _reserved(self) -> dict[str, float]:
        amounts: dict[str, float] = {}
        for reservation in self._pool.reservations:
            if reservation.from_s <= self._now:
                amounts = dict(reservation.amounts)
        return amounts

    def _record_state(self) -> None:
        held: dict[str, float] = {}
        for job in self._jobs:
            _add(held, job.held())
        reserved = {
            kind: min(amount, self._pool.capacity.get(kind, 0.0) - held.get(kind, 0.0))
            for kind, amount in self._reserved().items()
        }
        state = PoolState(
            self._now,
            {job.name: job.working for job in self._jobs if job.working},
            held,
            reserved,
            sum(job.present(self._now) and job.started_s is None for job in self._jobs),
        )
        if self._moments and self._moments[-1].at_s == state.at_s:
            self._moments.pop()
        self._moments.append(state)


def _add(total: dict[str, float], amounts: Mapping[str, float]) -> None:
    for kind, amount in amounts.items():
        total[kind] = total.get(kind, 0.0) + amount
