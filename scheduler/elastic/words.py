"""Why an elastic job has so many nodes and not more: one sentence for an operator."""

from __future__ import annotations

from collections.abc import Mapping

from .room import Room, held
from .scene import Scene, frozen_s
from .values import SLOTS, ElasticJob


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
    if not Room.of(scene.pool, scene.config.max_load).fits(minimum):
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
    frozen = frozen_s(job, scene.memory, scene.now, scene.config)
    if frozen > 0:
        return f"changed a moment ago; it may grow in {frozen:.0f} s"
    if job.name in scene.limits.ending:
        return f"{100 * (job.progress or 0.0):.0f} % done: it does not grow any more"
    return "no room for another node"
