"""Which nodes form the next world of a training, and when: the reducer that the leading node runs.

A *world* is a numbered list of nodes. It ends when one of its ranks fails, when a node is lost or
wants to leave, or when it is recalled at a safe point because a new node waits. Once all its living
nodes have ended their ranks, the next world is formed, within the limits. It starts from the newest
checkpoint: one on disk, or a newer snapshot in the memory of a node, which then writes it (the
*keeper*). `failures.py` decides what to do about a failure.

Nodes need equal *fingerprints*: a mapping of each of `FIELDS` to a JSON value. A node takes it from
its settings and job file before the world is known, so before `on_scale` changes anything. A field
that only one side has, as after an upgrade, is not compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from .failures import REMEMBERED, ExcludeNode, RankFailure, StopJob, react_to_failures
from .saving import CheckpointEntry

Fingerprint = Mapping[str, Any]

#: In the order in which differences are reported.
FIELDS: Final = (
    "job_file",
    "modules",
    "seed",
    "rows",
    "sampler",
    "total_batch",
    "sharding",
    "precision",
    "optimizer",
    "parameter_groups",
    "lr_policy",
    "loss",
    "service",
    "feeds",
    "epochs",
    "steps",
)
#: A resumed training may be longer or shorter than it was meant to be.
LENGTH: Final = ("epochs", "steps")
#: These decide which sample a position of an epoch stands for.
ORDER: Final = ("seed", "rows", "sampler")


@dataclass(frozen=True, slots=True)
class Difference:
    """A field in which two fingerprints differ.

    Attributes:
        field: one of `FIELDS`.
        before: value of the job, or of the checkpoint.
        now: value of the node that is compared with it.
    """

    field: str
    before: Any
    now: Any

    def in_words(self, there: str) -> str:
        """As in "seed is 7 here and 0 in the job"; of a mapping only the entries that differ."""
        if isinstance(self.before, Mapping) and isinstance(self.now, Mapping):
            parts = [
                Difference(f"{self.field}.{name}", self.before.get(name), self.now.get(name))
                for name in sorted({*self.before, *self.now})
                if self.before.get(name) != self.now.get(name)
            ]
            return "; ".join(part.in_words(there) for part in parts)
        return f"{self.field} is {self.now!r} here and {self.before!r} {there}"

    def to_json(self, step: int) -> dict[str, Any]:
        """For the manifest of a checkpoint: the change was made at `step`."""
        return {"step": step, "field": self.field, "before": self.before, "after": self.now}


def differences(
    expected: Fingerprint, own: Fingerprint, ignored: Collection[str] = ()
) -> tuple[Difference, ...]:
    """Fields that both have with unequal values, in the order of `FIELDS`.

    Args:
        expected: of the job, or of a checkpoint; empty: not known, so nothing differs.
        own: of the node that is compared with it; empty: likewise.
        ignored: fields that may differ.
    """
    return tuple(
        Difference(name, expected[name], own[name])
        for name in FIELDS
        if name in expected and name in own and name not in ignored
        if expected[name] != own[name]
    )


def since_checkpoint(saved: Fingerprint, own: Fingerprint) -> tuple[Difference, ...]:
    """What has changed since a checkpoint with this fingerprint was written."""
    return differences(saved, own, LENGTH)


def moves_positions(changes: Iterable[Difference]) -> bool:
    """Whether the positions of an epoch stand for other samples after these changes."""
    return any(change.field in ORDER for change in changes)


def differences_in_words(changes: Sequence[Difference], there: str) -> str:
    """Each difference with both values."""
    return "; ".join(change.in_words(there) for change in changes)


#: What a node does: it would like some ranks; it has some; it has ended those of `generation`.
Phase = Literal["waiting", "running", "ended"]
#: How its ranks ended: the job is done; all at a safe point; otherwise.
Ending = Literal["", "finished", "left", "failed"]

#: After the last node came, so long others are waited for, in seconds.
GATHER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """What the user allows.

    Attributes:
        least: nodes that a world needs.
        most: nodes that it may have.
        gather_s: see `GATHER_S`.
        ranks: of each node.
        rows: of a step, of all ranks together; 0: not known, or each rank reads its own.
    """

    least: int
    most: int
    gather_s: float = GATHER_S
    ranks: int = 1
    rows: int = 0

    @property
    def room(self) -> int:
        """Nodes that a world has room for: each of its ranks needs a row of every step."""
        fed = self.rows // self.ranks if self.rows else self.most
        return max(self.least, min(self.most, fed))  # what `least` cannot do, its ranks say


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node that lives.

    Attributes:
        node: its id.
        joined: grows with each node that joins.
        seen_s: for how long it has been seen, in seconds.
        phase: what it does.
        generation: of its ranks, or of its last ones.
        ending: how these ended.
        failures: of these, on this node.
        snapshot: step of the newest snapshot in its memory that is of `generation`; -1: none.
        leaving: it wants to go.
        fingerprint: of its settings and job file; empty: it told none.
    """

    node: str
    joined: int = 0
    seen_s: float = 0.0
    phase: Phase = "waiting"
    generation: int = 0
    ending: Ending = ""
    failures: tuple[RankFailure, ...] = ()
    snapshot: int = -1
    leaving: bool = False
    fingerprint: Fingerprint = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class World:
    """One generation.

    Attributes:
        number: from 1.
        nodes: in the order of their ranks.
        origin: the checkpoint that it begins with; None: it begins at step 0.
        keeper: the node that has to write this checkpoint from its memory; empty: it is written,
            and has joined the history.
        failures: that are remembered of the generations before.
        barred: nodes that are left out for good.
        reason: why it was formed.
        fingerprint: that all its nodes have; empty: not known.
        untried: nodes that joined a running job and have not made a step in it.
    """

    number: int
    nodes: tuple[str, ...]
    origin: CheckpointEntry | None = None
    keeper: str = ""
    failures: tuple[RankFailure, ...] = ()
    barred: tuple[str, ...] = ()
    reason: str = ""
    fingerprint: Fingerprint = field(default_factory=dict)
    untried: tuple[str, ...] = ()

    @property
    def restored(self) -> int:
        """Step that it begins behind."""
        return 0 if self.origin is None else self.origin.step


@dataclass(frozen=True, slots=True)
class WorldProgress:
    """How far the world is.

    Attributes:
        stepped: its ranks have told of a step.
        left_s: seconds to the end of the job; None: not known.
        forming_s: what forming this world took, in seconds.
    """

    stepped: bool = False
    left_s: float | None = None
    forming_s: float = 0.0

    @property
    def near_end(self) -> bool:
        """Whether forming another world, for newcomers, would take longer than is left."""
        return self.left_s is not None and self.left_s < self.forming_s


@dataclass(frozen=True, slots=True)
class KeepWorld:
    """Nothing is to be done; `reason`: what is waited for, empty where nothing is."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecallWorld:
    """All nodes of generation `number` end their ranks: at a safe point, or `at_once`."""

    number: int
    at_once: bool
    reason: str


@dataclass(frozen=True, slots=True)
class FormWorld:
    """The next generation."""

    world: World


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job is done."""


WorldDecision = KeepWorld | RecallWorld | FormWorld | FinishJob | StopJob


def decide(
    limits: WorldLimits,
    world: World | None,
    members: Sequence[LiveNode],
    pace: WorldProgress,
    saved: CheckpointEntry | None,
    forgotten: bool = False,
    settled: bool = True,
) -> WorldDecision:
    """What is to be done now.

    Args:
        limits: of the user.
        world: the current generation; None: there has been none.
        members: the nodes that live, in the order in which they joined.
        pace: of the current generation.
        saved: the newest valid checkpoint on the disk; None: there is none.
        forgotten: the board has lost what it held of this generation.
        settled: the board has answered for long enough that who is not there is gone; else leases
            may have run out because nobody could prolong them.
    """
    if not settled and world is not None:
        known = {"", *(one.node for one in members)}
        needed = dict.fromkeys((*world.nodes, world.keeper))
        if missing := [node for node in needed if node not in known]:
            return KeepWorld(f"waiting for {', '.join(missing)}: the job board was away")
    if world is None:
        return _form(limits, World(0, ()), members, saved, "the job begins")
    alive = {one.node: one for one in members}
    own = [alive[node] for node in world.nodes if node in alive]
    if any(one.generation == world.number and one.ending == "finished" for one in own):
        return FinishJob()
    failures = _failures(world, alive)
    busy = [one.node for one in own if not _has_ended(one, world.number)]
    if not busy:
        return _next(limits, world, members, saved, failures, pace.stepped)
    if failures:
        return RecallWorld(world.number, True, failures[0].in_words())
    if forgotten:
        return RecallWorld(world.number, False, "the job board had lost its memory")
    if gone := [one.node for one in own if one.leaving]:
        return RecallWorld(world.number, False, f"node {gone[0]} leaves")
    if world.keeper and world.keeper not in alive:
        why = f"node {world.keeper} is gone, which had the checkpoint of step {world.restored}"
        return RecallWorld(world.number, False, why)
    if any(_has_ended(one, world.number) for one in own):
        return KeepWorld(f"waiting until the ranks of {', '.join(busy)} have ended")
    return _grow(limits, world, members, pace)


def is_over(world: World | None, members: Sequence[LiveNode]) -> bool:
    """Whether no node that lives has ranks of this world: then the next one can be formed."""
    if world is None:
        return True
    own = [one for one in members if one.node in world.nodes]
    return all(_has_ended(one, world.number) for one in own)


def has_members(world: World, members: Sequence[LiveNode]) -> bool:
    """Whether a node of this world lives: else what trains next is a new run of the job."""
    return any(one.node in world.nodes for one in members)


def expected_fingerprint(world: World | None, members: Sequence[LiveNode]) -> Fingerprint:
    """The fingerprint that a node needs to take part; empty: any will do.

    That of the world while one of its nodes lives, else that of the node that joined first.
    """
    if world is not None and has_members(world, members):
        return world.fingerprint
    staying = [one for one in members if not one.leaving]
    return min(staying, key=lambda one: one.joined).fingerprint if staying else {}


def _has_ended(member: LiveNode, number: int) -> bool:
    return member.phase == "ended" and member.generation >= number


def _failures(world: World, alive: dict[str, LiveNode]) -> tuple[RankFailure, ...]:
    """Of this generation: what nodes tell, first what is no consequence, then who is lost."""
    told = [
        failure
        for node in world.nodes
        if node in alive
        for failure in alive[node].failures
        if failure.generation == world.number
    ]
    lost = [
        RankFailure(world.number, node, how="lost", restored=world.restored)
        for node in world.nodes
        if node not in alive
    ]
    causes = [one for one in told if one.how != "adrift"]
    return (*causes, *lost) or tuple(told)  # who lost its peers saw only what followed


def _grow(
    limits: WorldLimits, world: World, members: Sequence[LiveNode], pace: WorldProgress
) -> WorldDecision:
    """Whether a world that runs is called back for newcomers."""
    new = [one for one in _candidates(world, members) if one.node not in world.nodes]
    if not new:
        return KeepWorld()
    names = ", ".join(one.node for one in new)
    room = limits.room - len(world.nodes)
    if room <= 0:
        why = f", as a step has {limits.rows} rows" if limits.room < limits.most else ""
        return KeepWorld(f"{names} in reserve: the world is full with {limits.room} nodes{why}")
    if pace.near_end:
        return KeepWorld(f"{names} in reserve: the job is near its end")
    if not pace.stepped:
        return KeepWorld(f"{names} to be taken in once generation {world.number} has made a step")
    if len(new) < room and any(one.seen_s < limits.gather_s for one in new):
        return KeepWorld(f"{names} to be taken in; others may be coming")
    return RecallWorld(world.number, False, f"{names} came")


def _next(
    limits: WorldLimits,
    world: World,
    members: Sequence[LiveNode],
    saved: CheckpointEntry | None,
    failures: tuple[RankFailure, ...],
    stepped: bool,
) -> WorldDecision:
    """All ranks of `world` have ended: who goes on?"""
    if not has_members(world, members):
        fresh = World(world.number, ())
        return _form(limits, fresh, members, saved, "the job goes on with other nodes")
    # What fails for good at a node that joined a healthy job says nothing against the job.
    counted = tuple(one for one in failures if not (one.is_final and one.node in world.untried))
    past = (*world.failures, *counted)[-REMEMBERED:]
    candidates = {one.node for one in _candidates(world, members)}
    reason, barred = failures[0].in_words() if failures else "", world.barred
    if counted:
        rung = react_to_failures(past, candidates, limits.least)
        if isinstance(rung, StopJob):
            return rung
        if isinstance(rung, ExcludeNode):
            barred, reason = (*barred, rung.node), rung.why
    untried = () if stepped else world.untried
    ended = replace(world, failures=past, barred=barred, untried=untried)
    return _form(limits, ended, members, saved, reason or _changed(world, members))


def _changed(world: World, members: Sequence[LiveNode]) -> str:
    """Why a world without a failure ended."""
    leaving = [one.node for one in members if one.leaving and one.node in world.nodes]
    new = [one.node for one in members if one.node not in world.nodes and not one.leaving]
    parts = [f"{', '.join(new)} came"] if new else []
    parts += [f"{', '.join(leaving)} left"] if leaving else []
    return "; ".join(parts) or "its ranks ended at a safe point"


def _form(
    limits: WorldLimits,
    ended: World,
    members: Sequence[LiveNode],
    saved: CheckpointEntry | None,
    reason: str,
) -> WorldDecision:
    candidates = _candidates(ended, members)
    stayed = [one for node in ended.nodes for one in candidates if one.node == node]
    new = sorted(
        (one for one in candidates if one.node not in ended.nodes), key=lambda one: one.joined
    )
    chosen = [*stayed, *new][: limits.room]
    if len(chosen) < limits.least:
        return KeepWorld(
            f"{len(chosen)} of at least {limits.least} nodes alive: start the same command on"
            " another; no deadline"
        )
    fresh = len(chosen) < limits.room and any(one.seen_s < limits.gather_s for one in new)
    if fresh and not any(one.failures for one in stayed):
        return KeepWorld(f"{len(chosen)} nodes; others, up to {limits.room}, may be coming")
    origin, keeper = _origin(ended, members, saved)
    return FormWorld(
        replace(
            ended,
            number=ended.number + 1,
            nodes=tuple(one.node for one in chosen),
            origin=origin,
            keeper=keeper,
            reason=reason,
            fingerprint=expected_fingerprint(ended, members),
            untried=tuple(
                one.node
                for one in chosen
                if one.node in ended.untried or (stayed and one not in stayed)
            ),
        )
    )


def _candidates(world: World, members: Sequence[LiveNode]) -> list[LiveNode]:
    expected = expected_fingerprint(world, members)
    return [
        one
        for one in members
        if not one.leaving and one.node not in world.barred
        if not differences(expected, one.fingerprint)
    ]


def _origin(
    ended: World, members: Sequence[LiveNode], saved: CheckpointEntry | None
) -> tuple[CheckpointEntry | None, str]:
    """The newest checkpoint that can be had, and who has to write it; "" where it is on the disk.

    One that is to be written has no name yet: the leader draws it.
    """
    holders = [
        one
        for one in members
        if one.generation == ended.number
        and one.snapshot > (saved.step if saved else 0)
        and ended.number
    ]
    if not holders:
        return saved, ""
    newest = max(one.snapshot for one in holders)
    holders = [one for one in holders if one.snapshot == newest]
    holders.sort(key=lambda one: (one.leaving, one.node not in ended.nodes))
    return CheckpointEntry("", newest), holders[0].node
