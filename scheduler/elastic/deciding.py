"""One decision about elastic jobs: shares, what of them is done now, and what is remembered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .room import held
from .scene import Scene
from .sharing import fulfilment
from .values import ElasticConfig, ElasticJob, ElasticMemory, Pool, Target
from .words import reason


def decide(
    pool: Pool, jobs: Sequence[ElasticJob], memory: ElasticMemory, now: float, config: ElasticConfig
) -> tuple[tuple[Target, ...], ElasticMemory]:
    """How many nodes each job shall have from now on.

    A job grows only into room that is free now: what a leaving node still holds is free in a later
    decision, and kept for whom it was freed.

    Args:
        pool: what there is.
        jobs: all that have not ended, in any order; names are unique.
        memory: what the last call returned.
        now: seconds, on the clock of `submitted_s`.
        config: how they share.

    Returns:
        A target for every job, in the order of `jobs`, and the memory for the next call.

    Raises:
        ValueError: two jobs have one name.
    """
    if len({job.name for job in jobs}) < len(jobs):
        raise ValueError(f"two jobs have one name: {sorted(job.name for job in jobs)}")
    if config.mode == "gang":
        jobs = [replace(job, min_nodes=job.max_nodes) for job in jobs]
    scene = Scene.of(pool, jobs, memory, now, config)
    given = _paced(scene)
    targets = tuple(
        Target(job.name, given[job.name], job.nodes, reason(scene, job, given)) for job in jobs
    )
    return targets, _remembered(jobs, given, memory, now)


def _paced(scene: Scene) -> dict[str, int]:
    """What of the shares is done now: nodes leave at once, and come where there is room already.

    What a job was promised is taken from the room even if it is not there yet, so that nobody
    else takes it. A running job grows in one go: forming a world twice costs more than to wait.
    """
    shares = scene.shares.nodes
    room = scene.limit.copy()
    for job in scene.jobs:
        room.take(held(job, job.nodes + job.leaving))
    given = {job.name: min(job.nodes, shares[job.name]) for job in scene.jobs}
    for job in sorted(scene.jobs, key=lambda j: (-j.priority, j.submitted_s, j.name)):
        if job.nodes > 0 or shares[job.name] == 0:
            continue
        claim = dict(job.needs) if job.leaving else held(job, 1)
        whole = _times(job.needs, job.min_nodes - 1, claim)
        if room.fits(whole):
            given[job.name] = job.min_nodes
        room.take(whole)
    for job in sorted(scene.jobs, key=lambda j: _growing_order(j, given)):
        more = shares[job.name] - (job.nodes or job.min_nodes)
        if more <= 0:
            continue
        whole = _times(job.needs, more, {})
        if given[job.name] > 0 and room.fits(whole):
            given[job.name] += more
        room.take(whole)
    return given


def _growing_order(job: ElasticJob, given: Mapping[str, int]) -> tuple[int, float, float, str]:
    return -job.priority, fulfilment(job, given[job.name]), job.submitted_s, job.name


def _times(needs: Mapping[str, float], times: int, more: Mapping[str, float]) -> dict[str, float]:
    return {k: needs.get(k, 0.0) * times + more.get(k, 0.0) for k in {**needs, **more}}


def _remembered(
    jobs: Sequence[ElasticJob], given: Mapping[str, int], memory: ElasticMemory, now: float
) -> ElasticMemory:
    changed = {
        job.name: now
        if job.nodes > 0 and given[job.name] != job.nodes
        else memory.changed_s.get(job.name)
        for job in jobs
    }
    waiting = {
        job.name: memory.waiting_since_s.get(job.name, now) for job in jobs if given[job.name] == 0
    }
    return ElasticMemory({name: at for name, at in changed.items() if at is not None}, waiting)
