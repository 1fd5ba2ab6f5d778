"""All that one decision about elastic jobs looks at, and the shares that it strives for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .room import Room
from .sharing import Limits, Shares, share
from .values import ElasticConfig, ElasticJob, ElasticMemory, Pool


@dataclass(frozen=True, slots=True)
class Scene:
    """One decision.

    Attributes:
        jobs: all of them, in the order of the caller; in gang mode none has a choice of nodes.
        pool: what there is.
        limit: what jobs may have of it.
        limits: who is not to be changed for the sake of others' share.
        shares: what each shall have in the end.
        memory: of the decision before.
        now: seconds.
        config: how they share.
    """

    jobs: tuple[ElasticJob, ...]
    pool: Pool
    limit: Room
    limits: Limits
    shares: Shares
    memory: ElasticMemory
    now: float
    config: ElasticConfig

    @classmethod
    def of(
        cls,
        pool: Pool,
        jobs: Sequence[ElasticJob],
        memory: ElasticMemory,
        now: float,
        config: ElasticConfig,
    ) -> Scene:
        limit = Room.of(pool, config.max_load)
        limits = Limits(
            still=frozenset(
                job.name for job in jobs if not job.steady or frozen_s(job, memory, now, config) > 0
            ),
            ending=frozenset(
                job.name
                for job in jobs
                if job.progress is not None and job.progress >= config.near_end
            ),
        )
        gang = config.mode == "gang"
        impatient = {
            job.name
            for job in jobs
            if gang or now - memory.waiting_since_s.get(job.name, now) >= config.patience_s
        }
        shares = share(limit, jobs, limits, impatient, config)
        return cls(tuple(jobs), pool, limit, limits, shares, memory, now, config)


def frozen_s(job: ElasticJob, memory: ElasticMemory, now: float, config: ElasticConfig) -> float:
    """Seconds until the job may be changed for the sake of others' share."""
    changed = memory.changed_s.get(job.name)
    return 0.0 if changed is None else max(0.0, changed + config.freeze_s - now)
