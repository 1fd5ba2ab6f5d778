"""The reducer of the leading node: which nodes form the next world of a training, and when.

A *world* is a numbered list of nodes, whose ranks train together: one generation. The leader
*recalls* a world, which ends its ranks: at once when a rank fails, a node is lost, or all ranks
wait for each other; at a safe point when a node wants to leave, a new node waits, or the job board
has lost its data. When all living nodes of the world have ended their ranks, the next world is
formed, within the limits. It starts from the newest checkpoint: one on disk, or a newer snapshot in
the memory of a node (the *keeper*), which then writes it. If the keeper is gone before that, the
world is recalled at a safe point. `failures.py` decides what to do about a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Final, Literal

from .failures import ExcludeNode, RankFailure, StopJob, react_to_failures, remembered
from .fingerprint import Fingerprint, differences
from .saving import CheckpointEntry

#: State of a node. "waiting": it has no ranks yet; "running": its ranks run; "ended": it has ended
#: its ranks of `generation`.
Phase = Literal["waiting", "running", "ended"]
#: How the ranks of a node ended. "": not yet; "finished": the job is done; "left": all left at a
#: safe point; "failed": otherwise.
Ending = Literal["", "finished", "left", "failed"]

#: Seconds to wait for further nodes after the latest node came.
GATHER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class WorldLimits:
    """Limits that the user sets.

    Attributes:
        min_nodes: smallest number of nodes of a world.
        max_nodes: largest number of nodes of a world.
        gather_s: see `GATHER_S`.
        ranks: ranks of the leading node, and of nodes that have not come.
        rows: rows of a step, of all ranks; 0: unknown, or each rank reads its own.
        hang_s: see `failures.py`.
    """

    min_nodes: int
    max_nodes: int
    gather_s: float = GATHER_S
    ranks: int = 1
    rows: int = 0
    hang_s: float = inf

    @property
    def capacity(self) -> int:
        """Largest number of nodes of a world if all have `ranks` ranks."""
        with_rows = self.rows // self.ranks if self.rows else self.max_nodes
        return max(self.min_nodes, min(self.max_nodes, with_rows))

    def choose(self, nodes: Sequence[LiveNode]) -> list[LiveNode]:
        """Return the first of `nodes` for which there is room: each rank needs a row of every step.

        If a step has too few rows for `min_nodes`, return so many all the same: their ranks fail.
        """
        chosen: list[LiveNode] = []
        for node in nodes:
            if len(chosen) < self.max_nodes and _ranks([*chosen, node]) <= (self.rows or inf):
                chosen.append(node)
        return chosen if len(chosen) >= self.min_nodes else list(nodes[: self.min_nodes])

    def is_full(self, nodes: Sequence[LiveNode]) -> bool:
        """Whether a world of `nodes` has no room for a further node of `ranks` ranks."""
        has_rows = not self.rows or _ranks(nodes) + self.ranks <= self.rows
        return len(nodes) >= self.max_nodes or not has_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """The state of a node, as it publishes it.

    Attributes:
        phase: its state.
        generation: generation of its present or latest ranks.
        ending: how these ranks ended.
        failures: failures of these ranks.
        snapshot: step of the newest snapshot of `generation` in its memory; -1: none.
        leaving: it wants to leave.
        fingerprint: of its settings and job file (`fingerprint.py`); empty: unknown.
    """

    phase: Phase = "waiting"
    generation: int = 0
    ending: Ending = ""
    failures: tuple[RankFailure, ...] = ()
    snapshot: int = -1
    leaving: bool = False
    fingerprint: Fingerprint = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LiveNode(NodeState):
    """A living node.

    Attributes:
        node: its id.
        joined: grows with each node that joins.
        seen_s: seconds since the leader first saw it.
        ranks: number of its ranks.
    """

    node: str
    joined: int = 0
    seen_s: float = 0.0
    ranks: int = 1


def _ranks(nodes: Iterable[LiveNode]) -> int:
    return sum(node.ranks for node in nodes)


@dataclass(frozen=True, slots=True)
class World:
    """One generation.

    Attributes:
        number: from 1.
        nodes: in the order of their ranks.
        origin: the checkpoint that it starts from; None: it starts at step 0.
        keeper: the node that must write this checkpoint from its memory; empty: no node must.
        failures: remembered failures of earlier generations.
        barred: nodes that are excluded from all later worlds.
        reason: why it was formed.
        fingerprint: fingerprint of all its nodes; empty: unknown.
        untried: nodes that joined a running job and had not made a step in it before this world.
        data_order: see `fingerprint.data_order`; empty: unknown, as an older version formed the
            world.
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
    data_order: Mapping[str, Any] = field(default_factory=dict)

    @property
    def restored_step(self) -> int:
        """Step of the checkpoint that it starts from; 0: there is none."""
        return 0 if self.origin is None else self.origin.step

    def spares_others(self, failure: RankFailure) -> bool:
        """Whether the job goes on without the node of a failure that must not be retried.

        The node joined a running job and failed before its first step: no evidence against the job.
        """
        is_first = failure.step in (0, failure.restored + 1)
        return failure.is_final and failure.node in self.untried and is_first


@dataclass(frozen=True, slots=True)
class WorldProgress:
    """Progress of the world.

    Attributes:
        stepped: its ranks have reported a step.
        left_s: seconds to the end of the job; None: unknown.
        forming_s: seconds that forming this world took.
        deadlocked: all its ranks if they wait for each other; else empty.
    """

    stepped: bool = False
    left_s: float | None = None
    forming_s: float = 0.0
    deadlocked: tuple[int, ...] = ()

    @property
    def near_end(self) -> bool:
        """Whether forming another world for new nodes would take longer than the job still runs."""
        return self.left_s is not None and self.left_s < self.forming_s


@dataclass(frozen=True, slots=True)
class KeepWorld:
    """Do nothing now. `reason`: what the leader waits for; empty: nothing."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class RecallWorld:
    """All nodes of generation `number` must end their ranks: at a safe point, or `at_once`.

    Attributes:
        hung: ranks that wait for each other; their nodes treat them as failed.
    """

    number: int
    at_once: bool
    reason: str
    hung: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FormWorld:
    """Start the next generation."""

    world: World


@dataclass(frozen=True, slots=True)
class FinishJob:
    """The job is done."""


WorldDecision = KeepWorld | RecallWorld | FormWorld | FinishJob | StopJob


def decide(
    limits: WorldLimits,
    world: World | None,
    members: Sequence[LiveNode],
    progress: WorldProgress,
    saved: CheckpointEntry | None,
    forgotten: bool = False,
    settled: bool = True,
) -> WorldDecision:
    """Decide what to do now.

    Args:
        limits: set by the user.
        world: the current generation; None: there is none yet.
        members: the living nodes, in the order of joining.
        progress: of the current generation.
        saved: the newest valid checkpoint on disk; None: there is none, or it is not known yet, as
            it is needed only to form a world.
        forgotten: the job board has lost its data of this generation; `world` is from
            `recovered_world`.
        settled: the job board has answered for so long that missing nodes are gone. If False,
            leases may have expired because nodes could not renew them.
    """
    if not settled and world is not None:
        known = {"", *(member.node for member in members)}
        needed = dict.fromkeys((*world.nodes, world.keeper))
        missing = [node for node in needed if node not in known]
        if missing or not world.nodes:
            names = ", ".join(missing) or f"the nodes of generation {world.number}"
            return KeepWorld(f"waiting for {names}: the job board was unavailable")
    if world is None:
        return _form(limits, World(0, ()), members, saved, "the job begins")
    alive = {member.node: member for member in members}
    own = [alive[node] for node in world.nodes if node in alive]
    if any(member.generation == world.number and member.ending == "finished" for member in own):
        return FinishJob()
    failures = _failures(world, alive)
    busy = [member.node for member in own if not _has_ended(member, world.number)]
    if not busy:
        return _next(limits, world, members, saved, failures, progress.stepped)
    if failures:
        return RecallWorld(world.number, True, failures[0].in_words())
    if progress.deadlocked and settled:
        why = f"all {len(progress.deadlocked)} ranks waited for each other"
        return RecallWorld(world.number, True, why, progress.deadlocked)
    if forgotten:
        return RecallWorld(world.number, False, "the job board had lost its data")
    if leaving := [member.node for member in own if member.leaving]:
        return RecallWorld(world.number, False, f"node {leaving[0]} leaves")
    if world.keeper and world.keeper not in alive:
        step = world.restored_step
        why = f"node {world.keeper}, which had the checkpoint of step {step}, is gone"
        return RecallWorld(world.number, False, why)
    if any(_has_ended(member, world.number) for member in own):
        return KeepWorld(f"waiting until the ranks of {', '.join(busy)} have ended")
    return _grow(limits, world, members, progress)


def recovered_world(world: World, members: Sequence[LiveNode], settled: bool) -> World:
    """Return the world of a generation that the job board has lost.

    Args:
        world: the world as this node remembers it; without nodes: it knows only the number.
        members: the living nodes.
        settled: see `decide`. If so, a node that has not begun the generation never will. If not,
            nodes that are not remembered may be missing: the result has none.
    """
    if world.nodes:
        late = {one.node for one in members if settled and one.generation < world.number}
        return replace(world, nodes=tuple(node for node in world.nodes if node not in late))
    begun = [one for one in members if one.generation == world.number and one.phase != "waiting"]
    own = begun if settled else []
    fingerprint = own[0].fingerprint if own else {}
    return replace(world, nodes=tuple(one.node for one in own), fingerprint=fingerprint)


def has_members(world: World, members: Sequence[LiveNode]) -> bool:
    """Whether a node of this world lives. If not, the next world is a new run of the job."""
    return any(member.node in world.nodes for member in members)


def expected_fingerprint(world: World | None, members: Sequence[LiveNode]) -> Fingerprint:
    """Return the fingerprint that a node needs to take part; empty: any.

    It is that of the world while a node of the world lives. Else it is that of the node that joined
    first, without nodes that leave.
    """
    if world is not None and has_members(world, members):
        return world.fingerprint
    staying = [member for member in members if not member.leaving]
    return min(staying, key=lambda member: member.joined).fingerprint if staying else {}


def _has_ended(member: LiveNode, number: int) -> bool:
    return member.phase == "ended" and member.generation >= number


def _failures(world: World, alive: dict[str, LiveNode]) -> tuple[RankFailure, ...]:
    """Return the failures of this generation: causes first, then lost nodes."""
    reported = [
        failure
        for node in world.nodes
        if node in alive
        for failure in alive[node].failures
        if failure.generation == world.number
    ]
    lost = [
        RankFailure(world.number, node, how="lost", restored=world.restored_step)
        for node in world.nodes
        if node not in alive
    ]
    causes = [failure for failure in reported if failure.how != "adrift"]
    # Ranks that lost their peers count only without a cause: they saw a consequence of it.
    return (*causes, *lost) or tuple(reported)


def _grow(
    limits: WorldLimits, world: World, members: Sequence[LiveNode], progress: WorldProgress
) -> WorldDecision:
    """Decide whether to recall a running world for new nodes."""
    others = [member for member in _candidates(world, members) if member.node not in world.nodes]
    if not others:
        return KeepWorld()
    own = [member for member in members if member.node in world.nodes]
    chosen = limits.choose([*own, *others])
    new = [member for member in others if member in chosen]
    names = ", ".join(member.node for member in new or others)
    if not new:
        why = f"the world is full with {len(own)} nodes"
        if len(own) < limits.max_nodes:
            ranks = _ranks([*own, others[0]])
            why = f"a step has {limits.rows} rows, too few for {ranks} ranks"
        return KeepWorld(f"{names} in reserve: {why}")
    if progress.near_end:
        return KeepWorld(f"{names} in reserve: the job is near its end")
    if not progress.stepped:
        return KeepWorld(f"{names} may join once generation {world.number} has made a step")
    if not limits.is_full(chosen) and any(member.seen_s < limits.gather_s for member in new):
        return KeepWorld(f"{names} may join; further nodes may come")
    return RecallWorld(world.number, False, f"{names} came")


def _next(
    limits: WorldLimits,
    world: World,
    members: Sequence[LiveNode],
    saved: CheckpointEntry | None,
    failures: tuple[RankFailure, ...],
    stepped: bool,
) -> WorldDecision:
    """Decide what follows after all ranks of `world` have ended."""
    if not has_members(world, members):
        fresh = World(world.number, ())
        return _form(limits, fresh, members, saved, "the job goes on with other nodes")
    counted = tuple(failure for failure in failures if not world.spares_others(failure))
    past = (*world.failures, *counted)
    candidates = {member.node for member in _candidates(world, members)}
    reason, barred = failures[0].in_words() if failures else "", world.barred
    if counted:
        reaction = react_to_failures(past, candidates, limits.min_nodes)
        if isinstance(reaction, StopJob):
            return reaction
        if isinstance(reaction, ExcludeNode):
            barred, reason = (*barred, reaction.node), reaction.why
    untried = () if stepped else world.untried
    ended = replace(world, failures=remembered(past), barred=barred, untried=untried)
    return _form(limits, ended, members, saved, reason or _changed(world, members))


def _changed(world: World, members: Sequence[LiveNode]) -> str:
    """Explain why a world without a failure ended."""
    leaving = [member.node for member in members if member.leaving and member.node in world.nodes]
    new = [
        member.node for member in members if member.node not in world.nodes and not member.leaving
    ]
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
    stayed = [member for node in ended.nodes for member in candidates if member.node == node]
    new = sorted(
        (member for member in candidates if member.node not in ended.nodes),
        key=lambda member: member.joined,
    )
    chosen = limits.choose([*stayed, *new])
    if len(chosen) < limits.min_nodes:
        return KeepWorld(
            f"{len(chosen)} of at least {limits.min_nodes} nodes: waiting without a limit; start"
            " the same command on another node"
        )
    is_early = not limits.is_full(chosen) and any(member.seen_s < limits.gather_s for member in new)
    if is_early and not any(member.failures for member in stayed):
        return KeepWorld(f"{len(chosen)} nodes; further nodes, up to {limits.capacity}, may come")
    origin, keeper = _origin(ended, members, saved)
    return FormWorld(
        replace(
            ended,
            number=ended.number + 1,
            nodes=tuple(member.node for member in chosen),
            origin=origin,
            keeper=keeper,
            reason=reason,
            fingerprint=expected_fingerprint(ended, members),
            untried=tuple(
                member.node
                for member in chosen
                if member.node in ended.untried or (stayed and member not in stayed)
            ),
        )
    )


def _candidates(world: World, members: Sequence[LiveNode]) -> list[LiveNode]:
    expected = expected_fingerprint(world, members)
    return [
        member
        for member in members
        if not member.leaving and member.node not in world.barred
        if not differences(expected, member.fingerprint)
    ]


def _origin(
    ended: World, members: Sequence[LiveNode], saved: CheckpointEntry | None
) -> tuple[CheckpointEntry | None, str]:
    """Return the newest available checkpoint, and the node that must write it ("": it is on disk).

    A checkpoint that must still be written has no name yet: the leader chooses it.
    """
    holders = [
        member
        for member in members
        if member.generation == ended.number
        and member.snapshot > (saved.step if saved else 0)
        and ended.number
        and member.node not in ended.barred  # it leaves at once and writes nothing
    ]
    if not holders:
        return saved, ""
    newest = max(member.snapshot for member in holders)
    holders = [member for member in holders if member.snapshot == newest]
    holders.sort(key=lambda member: (member.leaving, member.node not in ended.nodes))
    return CheckpointEntry("", newest), holders[0].node
