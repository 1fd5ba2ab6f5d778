"""One decision about elastic jobs: shares, what of them is done now and why, what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from .sharing import Shares, fulfilment
from .values import SLOTS, ElasticConfig, ElasticJob, ElasticMemory, Pool, Room, Target, held


def reason(shares: Shares, job: ElasticJob, given: Mapping[str, int]) -> str:
    """The sentence of one job, once it is decided that it has `given[job.name]` nodes."""
    nodes = given[job.name]
    if nodes == 0:
        return _stopped(shares, job) if job.nodes > 0 else _waits(shares, job)
    if job.nodes == 0:
        return f"starts with {_count(nodes)}"
    if nodes > job.nodes:
        return f"grows by {nodes - job.nodes}: the fewest fulfilled of those that can"
    if nodes < job.nodes:
        return f"gives {_count(job.nodes - nodes)} {_to_whom(shares, job)}"
    return _stays(shares, job)


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        "1 slot" if (kind, amount) == (SLOTS, 1) else f"{amount:g} {kind}"
        for kind, amount in sorted(amounts.items())
        if amount
    )


def _waits(shares: Shares, job: ElasticJob) -> str:
    if shares.nodes[job.name] > 0:
        return "waits for nodes that are leaving to make room"
    if job.name in shares.behind:
        return f"waits behind {shares.behind[job.name]}, which came first"
    minimum = held(job, job.min_nodes)
    what = f"{_count(job.min_nodes)} at least, {_amounts(minimum)}"
    if not shares.limit.fits(minimum):
        if _bare(shares).fits(minimum):
            return f"waits for online services to give back: it needs {what}"
        return f"waits for a larger pool: it needs {what}; ask for less"
    online = " and online services" if any(shares.pool.reserved.values()) else ""
    return f"waits: it needs {what}; the jobs that go first{online} leave less"


def _bare(shares: Shares) -> Room:
    """What jobs might have if no online service held anything."""
    kinds = shares.pool.capacity
    return Room({kind: amount * shares.config.max_load for kind, amount in kinds.items()})


def _stopped(shares: Shares, job: ElasticJob) -> str:
    higher = _favoured(shares, above=job.priority)
    if higher:
        return f"stopped for {higher}, of a higher priority"
    if any(shares.pool.reserved.values()):
        return "stopped: online services want back what its smallest world needs"
    return "stopped: the pool became too small for it"


def _to_whom(shares: Shares, job: ElasticJob) -> str:
    if job.nodes > job.max_nodes:
        return f"back: {_count(job.max_nodes)} is all it may have"
    taker = shares.moved.get(job.name)
    if taker is not None:
        return f"to {taker}, which is fulfilled less"
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


def _favoured(shares: Shares, above: int) -> str:
    """Those of a higher priority that get more than they had."""
    return ", ".join(
        sorted(j.name for j in shares.jobs if j.priority > above and shares.nodes[j.name] > j.nodes)
    )


def _stays(shares: Shares, job: ElasticJob) -> str:
    if job.nodes >= job.max_nodes:
        return "has all it can use"
    if shares.nodes[job.name] > job.nodes:
        return "grows as soon as nodes that are leaving have made room"
    if not job.steady:
        return "forms its world; it is not changed meanwhile"
    frozen = shares.frozen_s(job)
    if frozen > 0:
        return f"changed a moment ago; it may grow in {frozen:.0f} s"
    if shares.ends(job):
        return f"{100 * (job.progress or 0.0):.0f} % done: it does not grow any more"
    return "no room for another node"


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
    shares = Shares(pool, jobs, memory, now, config)
    given = _paced(shares)
    targets = tuple(Target(job.name, given[job.name], reason(shares, job, given)) for job in jobs)
    return targets, _remembered(jobs, given, memory, now)


def _paced(shares: Shares) -> dict[str, int]:
    """What of the shares is done now: nodes leave at once, and come where there is room already.

    What a job was promised is taken from the room even if it is not there yet, so that nobody
    else takes it. A running job grows in one go: forming a world twice costs more than to wait.
    """
    room = Room(shares.limit)
    for job in shares.jobs:
        room.take(held(job, job.nodes + job.leaving))
    given = {job.name: min(job.nodes, shares.nodes[job.name]) for job in shares.jobs}
    for job in sorted(shares.jobs, key=lambda j: (-j.priority, j.submitted_s, j.name)):
        if job.nodes > 0 or shares.nodes[job.name] == 0:
            continue
        whole = Room(held(job, job.min_nodes))
        if job.leaving:
            whole.take(job.base)  # which it still has
        if room.fits(whole):
            given[job.name] = job.min_nodes
        room.take(whole)
    for job in sorted(shares.jobs, key=lambda j: _growing_order(j, given)):
        more = shares.nodes[job.name] - (job.nodes or job.min_nodes)
        if more <= 0:
            continue
        if given[job.name] > 0 and room.fits(job.needs, more):
            given[job.name] += more
        room.take(job.needs, more)
    return given


def _growing_order(job: ElasticJob, given: Mapping[str, int]) -> tuple[int, float, float, str]:
    return -job.priority, fulfilment(job, given[job.name]), job.submitted_s, job.name


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
