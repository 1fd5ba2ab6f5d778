"""What the leading node does: shows the reducer what it sees, and carries out what that decides."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...coordinator.jobs import JobBoard
from ...coordinator.store import Leads
from ...errors import CheckpointUnavailable
from ...scheduler.students import failures
from ...scheduler.students.failures import StopJob
from ...scheduler.students.saving import CheckpointHistory
from ...scheduler.students.world import (
    FinishJob,
    FormWorld,
    KeepWorld,
    RecallWorld,
    World,
    WorldDecision,
    WorldLimits,
    WorldProgress,
    data_order,
    decide,
    is_over,
)
from ..checkpoint.names import unique_name_of
from .checkpoints import NewestCheckpoint
from .rendezvous import Generation, NodeEndpoints, RendezvousView, generation_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LeaderOrders:
    """What a leader tells of the generation: who is to end it, what is waited for."""

    recall: RecallWorld | None = None
    says: str = ""


class RendezvousLeader:
    """Used by the seat's thread alone.

    Args:
        board: of the job.
        job: its name.
        limits: of the user.
        newest_saved: the newest valid checkpoint on the disk, for what follows a generation (0: the
            first one) and continues a history; None: not known yet. May raise EdlError.
        say: tells all nodes, in this node's facts.
    """

    def __init__(
        self,
        board: JobBoard,
        job: str,
        limits: WorldLimits,
        newest_saved: Callable[[int, CheckpointHistory], NewestCheckpoint | None],
        say: Callable[[LeaderOrders], None],
    ) -> None:
        self._board, self._job, self._limits = board, job, limits
        self._newest_saved, self._say = newest_saved, say
        self._since_s: dict[str, float] = {}
        self._known: Generation | None = None
        self._published_s = 0.0
        self._forming_s = 0.0
        self._orders = LeaderOrders()

    def step(self, view: RendezvousView) -> None:
        """Decide and carry it out. A node that leads no more withdraws its former orders."""
        if view.fence is None:
            self._tell(LeaderOrders())
            return
        now_s = time.monotonic()
        self._since_s = {
            node.node_id: self._since_s.get(node.node_id, now_s) for node in view.nodes
        }
        generation = self._generation(view)
        if view.outcome is not None:
            return
        pace = self._pace(view, generation, now_s)
        world = None if generation is None else _as_written(generation)
        members = [
            view.facts[node.node_id].member(node, now_s - self._since_s[node.node_id])
            for node in view.nodes
        ]
        newest: NewestCheckpoint | None = None
        why = "the newest checkpoint is being verified"
        if is_over(world, members):
            try:
                history = view.generation.history if view.generation else CheckpointHistory()
                newest = self._newest_saved(0 if world is None else world.number, history)
            except CheckpointUnavailable as error:
                why = f"no generation can begin: {error}"
            if newest is None:
                self._tell(replace(self._orders, says=why))
                return
        forgotten = view.generation is None and generation is not None
        self._learn_rows(view)
        saved = newest.entry if newest else None
        decision = decide(
            self._limits, world, members, pace, saved, forgotten=forgotten, settled=view.settled
        )
        self._do(decision, view, view.fence, generation, newest)

    def _generation(self, view: RendezvousView) -> Generation | None:
        """The current one; where the board has lost it, as this node or the others remember it."""
        if view.generation is not None:
            self._known = view.generation
        elif self._known is None:
            running = [(facts.generation, node) for node, facts in view.facts.items()]
            number = max((one for one, _ in running), default=0)
            if number:
                nodes = tuple(node for one, node in running if one == number)
                places = tuple(
                    NodeEndpoints(node, view.facts[node].endpoints, view.facts[node].host)
                    for node in nodes
                )
                fingerprint = view.facts[nodes[0]].fingerprint
                self._known = Generation(World(number, nodes, fingerprint=fingerprint), places)
        return self._known

    def _learn_rows(self, view: RendezvousView) -> None:
        """How many rows a step has, where the feed alone says it; remembered between worlds."""
        rows = max((int(one.facts.get("total_batch", 0)) for one in view.reports), default=0)
        if rows:
            self._limits = replace(self._limits, rows=rows)

    def _pace(
        self, view: RendezvousView, generation: Generation | None, now_s: float
    ) -> WorldProgress:
        if generation is None:
            return WorldProgress()
        current = [one for one in view.reports if one.generation == generation.number]
        peers_s = {one.rank: float(one.facts.get("peers_s", 0.0)) for one in current}
        blocked = failures.blocked(peers_s, len(generation.endpoints), self._limits.hang_s)
        told = [one.facts for one in current if one.facts.get("step", 0) > 0]
        if not told:
            return WorldProgress(forming_s=self._forming_s, blocked=blocked)
        if self._published_s:
            self._forming_s, self._published_s = now_s - self._published_s, 0.0
            self._note("stepping", generation.number, after_s=round(self._forming_s, 3))
        left = [one["left_s"] for one in told if one.get("left_s") is not None]
        return WorldProgress(True, min(left, default=None), self._forming_s, blocked)

    def _do(
        self,
        decision: WorldDecision,
        view: RendezvousView,
        fence: Leads,
        generation: Generation | None,
        newest: NewestCheckpoint | None,
    ) -> None:
        match decision:
            case KeepWorld():
                self._tell(replace(self._orders, says=decision.reason))
            case RecallWorld():
                if decision != self._orders.recall:
                    log.info("generation %d ends: %s", decision.number, decision.reason)
                    self._note(
                        "recall", decision.number, at_once=decision.at_once, why=decision.reason
                    )
                self._tell(LeaderOrders(decision, decision.reason))
            case FormWorld():
                assert newest is not None  # the last world is over
                self._form(decision.world, view, fence, generation, newest)
            case FinishJob():
                self._end(fence, {"kind": "finished", **_result(view)})
            case StopJob():
                self._end(fence, {"kind": "failed", **asdict(decision)})

    def _form(
        self,
        world: World,
        view: RendezvousView,
        fence: Leads,
        before: Generation | None,
        newest: NewestCheckpoint,
    ) -> None:
        if world.keeper and world.origin is not None:
            name = unique_name_of(world.restored, world.number)
            world = replace(world, origin=replace(world.origin, name=name))
        # What a keeper writes was trained in the order of this very job.
        on_disk = None if world.keeper else newest.checkpoint
        saved = {} if on_disk is None else on_disk.provenance.fingerprint
        world = replace(world, data_order=data_order(world.fingerprint, saved))
        following = generation_of(world, view.facts, before.endpoints if before else None)
        history = newest.history.to_json(), CheckpointHistory(newest.entry).to_json()
        if not self._board.publish(self._job, fence, world.number, following.to_json(), history):
            return  # another leads, or was faster, or a save joined: the next look shows it
        self._known = following
        self._published_s = time.monotonic()
        self._note(
            "generation",
            world.number,
            nodes=list(world.nodes),
            ranks=len(following.endpoints),
            restored=world.restored,
            why=world.reason,
        )
        self._tell(LeaderOrders())

    def _end(self, fence: Leads, outcome: Mapping[str, Any]) -> None:
        number = self._known.number if self._known else 0
        if self._board.finish(self._job, fence, number, outcome):
            self._note(
                str(outcome["kind"]), number, **{k: outcome[k] for k in outcome if k != "kind"}
            )

    def _tell(self, orders: LeaderOrders) -> None:
        if orders != self._orders:
            self._orders = orders
            self._say(orders)

    def _note(self, kind: str, generation: int, **more: Any) -> None:
        self._board.note(self._job, {"kind": kind, "generation": generation, **more})


def _as_written(generation: Generation) -> World:
    """The world; without its keeper once the keeper's snapshot has joined the history.

    That snapshot is the first that this generation adds.
    """
    newest = generation.history.newest
    if newest is not None and newest.generation >= generation.number:
        return replace(generation.world, keeper="")
    return generation.world


def _result(view: RendezvousView) -> Mapping[str, Any]:
    """What the ranks said at the end of the job."""
    return next((facts.result for facts in view.facts.values() if facts.result), {})
