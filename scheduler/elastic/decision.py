"""One decision about elastic jobs: shares, what of them is done now and why, what is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

from .sharing import Shares, fulfilment
from .values import SLOTS, ElasticConfig, ElasticJob, ElasticMemory, Pool, Room, Target, held

#: A job of which this share is done does not grow any more: forming a new world would cost more
#: than the node brings. It is also the last to shrink.
NEAR_END = 0.95


class Scene:
    """All that one decision looks at, and the shares that it strives for.

    Args:
        pool: what there is.
        jobs: all of them, in the order of the caller; in gang mode none has a choice of nodes.
        memory: of the decision before.
        now: seconds.
        config: how they share.

    Attributes:
        limit: what jobs may have of the pool.
        shares: what each shall have in the end.
    """

    def __init__(
        self,
        pool: Pool,
        jobs: Sequence[ElasticJob],
        memory: ElasticMemory,
        now: float,
        config: ElasticConfig,
    ) -> None:
        self.pool, self.jobs, self.memory, self.now, self.config = pool, jobs, memory, now, config
        self.limit = Room.of(pool, config.max_load)
        patience_s = -inf if config.mode == "gang" else config.patience_s
        self.shares = Shares(
            self.limit,
            jobs,
            still={job.name for job in jobs if not job.steady or self.frozen_s(job) > 0},
            ending={job.name for job in jobs if (job.progress or 0.0) >= NEAR_END},
            impatient={job.name for job in jobs if self._waited_s(job) >= patience_s},
            gap=config.rebalance_gap,
        )

    def frozen_s(self, job: ElasticJob) -> float:
        """Seconds until the job may be changed for the sake of others' share."""
        changed = self.memory.changed_s.get(job.name)
        return 0.0 if changed is None else max(0.0, changed + self.config.freeze_s - self.now)

    def _waited_s(self, job: ElasticJob) -> float:
        return self.now - self.memory.waiting_since_s.get(job.name, self.now)


def reason(scene: Scene, job: ElasticJob, given: Mapping[str, int]) -> str:
    """The sentence of one job, once it is decided that it has `given[job.name]` nodes."""
    nodes = given[job.name]
    if nodes == 0:
        return _stopped(scene, job) if job.nodes > 0 else _waits(scene, job)
    if job.nodes == 0:
        return f"starts with {_count(nodes)}"
    if nodes > job.nodes:
        return f"grows by {nodes - job.nodes}: the fewest fulfilled of those that can"
    if nodes < job.nodes:
        return f"gives {_count(job.nodes - nodes)} {_to_whom(scene, job)}"
    return _stays(scene, job)


def _count(nodes: int) -> str:
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def _amounts(amounts: Mapping[str, float]) -> str:
    return ", ".join(
        "1 slot" if (kind, amount) == (SLOTS, 1) else f"{amount:g} {kind}"
        for kind, amount in sorted(amounts.items())
        if amount
    )


def _waits(scene: Scene, job: ElasticJob) -> str:
    if scene.shares.nodes[job.name] > 0:
        return "waits for nodes that are leaving to make room"
    if job.name in scene.shares.behind:
        return f"waits behind {scene.shares.behind[job.name]}, which came first"
    minimum = held(job, job.min_nodes)
    what = f"{_count(job.min_nodes)} at least, {_amounts(minimum)}"
    if not scene.limit.fits(minimum):
        if _bare(scene).fits(minimum):
            return f"waits for online services to give back: it needs {what}"
        return f"waits for a larger pool: it needs {what}; ask for less"
    online = " and online services" if any(scene.pool.reserved.values()) else ""
    return f"waits: it needs {what}; the jobs that go first{online} leave less"


def _bare(scene: Scene) -> Room:
    """What jobs might have if no online service held anything."""
    kinds = scene.pool.capacity
    return Room({kind: amount * scene.config.max_load for kind, amount in kinds.items()})


def _stopped(scene: Scene, job: ElasticJob) -> str:
    higher = _favoured(scene, above=job.priority)
    if higher:
        return f"stopped for {higher}, of a higher priority"
    if any(scene.pool.reserved.values()):
        return "stopped: online services want back what its smallest world needs"
    return "stopped: the pool became too small for it"


def _to_whom(scene: Scene, job: ElasticJob) -> str:
    if job.nodes > job.max_nodes:
        return f"back: {_count(job.max_nodes)} is all it may have"
    taker = scene.shares.moved.get(job.name)
    if taker is not None:
        return f"to {taker}, which is fulfilled less"
    starting = ", ".join(
        sorted(j.name for j in scene.jobs if j.nodes == 0 and scene.shares.nodes[j.name] > 0)
    )
    if starting:
        return f"to make room for {starting}"
    higher = _favoured(scene, above=job.priority)
    if higher:
        return f"to {higher}, of a higher priority"
    if any(scene.pool.reserved.values()):
        return "back to online services"
    return "back: the pool became smaller"


def _favoured(scene: Scene, above: int) -> str:
    """Those of a higher priority that get more than they had."""
    return ", ".join(
        sorted(
            j.name
            for j in scene.jobs
            if j.priority > above and scene.shares.nodes[j.name] > j.nodes
        )
    )


def _stays(scene: Scene, job: ElasticJob) -> str:
    if job.nodes >= job.max_nodes:
        return "has all it can use"
    if scene.shares.nodes[job.name] > job.nodes:
        return "grows as soon as nodes that are leaving have made room"
    if not job.steady:
        return "forms its world; it is not changed meanwhile"
    frozen = scene.frozen_s(job)
    if frozen > 0:
        return f"changed a moment ago; it may grow in {frozen:.0f} s"
    if job.name in scene.shares.ending:
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
    scene = Scene(pool, jobs, memory, now, config)
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
