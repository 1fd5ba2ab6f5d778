"""A node's session at the job board, and its decisions while it is the leader.

While it trains, the supervisor never waits for Redis. It passes its facts and events to the session
and reads the latest view. A thread of the session sends heartbeats, reads the board, and leads if
elected. While Redis does not answer, the view stays the same, and `RendezvousSession.away` has the
reason.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

from ...coordinator.jobs import Generation, JobBoard, Node, NodeInfo, RankReport
from ...coordinator.jobs.schema import next_generation
from ...coordinator.store.records import Leads
from ...runtime.errors import CheckpointUnavailable, EdlError, WireError
from ...scheduler.students import failures
from ...scheduler.students.failures import StopJob
from ...scheduler.students.fingerprint import data_order
from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory
from ...scheduler.students.world import (
    FinishJob,
    FormWorld,
    KeepWorld,
    LiveNode,
    RecallWorld,
    World,
    WorldDecision,
    WorldLimits,
    WorldProgress,
    decide,
    recovered_world,
)
from ..checkpoint.storage import unique_name_of
from .checkpoints import NewestCheckpoint

log = logging.getLogger(__name__)

#: Seconds without a heartbeat after which a node is lost.
TTL_S: Final = 5.0
#: Seconds between reads of the board.
TICK_S: Final = 0.2
_BEATS_PER_TTL: Final = 5.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RendezvousView:
    """The state of the board, as a node has read it.

    Attributes:
        facts: facts of the live nodes by node id, in the order in which they joined.
        members: the live nodes in the form that `decide` takes, in the same order.
        generation: the current generation; None: the board has none, or an older one.
        newest: number of the newest generation that this node knows of; 0: none.
        outcome: how the job ended; None: it runs.
        reports: reports of the ranks of the current generation.
        fence: fence of this node's writes as the leader; None: this node does not lead.
        settled: whether the board has answered for at least a TTL since it was last away or lost
            data. If so, a missing node is lost; before, it may still join again.
    """

    facts: Mapping[str, NodeInfo] = field(default_factory=dict)
    members: Sequence[LiveNode] = ()
    generation: Generation | None = None
    newest: int = 0
    outcome: Mapping[str, Any] | None = None
    reports: tuple[RankReport, ...] = ()
    fence: Leads | None = None
    settled: bool = True

    @property
    def forgotten(self) -> bool:
        """Whether the board has lost the newest generation."""
        return self.generation is None and self.newest > 0

    @property
    def history(self) -> CheckpointHistory:
        """The history of the job's checkpoints."""
        return self.generation.history if self.generation else CheckpointHistory()


class RendezvousSession:
    """The session of a node; see the module.

    Args:
        board: job board of the mesh, or of this process for a single node.
        job: name of the training.
        node: id of this node.
        on_view: called with each view: with the first one by `start`, then in the session's thread.
        ttl_s: see `TTL_S`.
        tick_s: seconds between reads of the board.
    """

    def __init__(
        self,
        board: JobBoard,
        job: str,
        node: str,
        on_view: Callable[[RendezvousView], None],
        ttl_s: float = TTL_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._board, self._job, self._node, self._on_view = board, job, node, on_view
        self._ttl_s, self._tick_s = ttl_s, tick_s
        self._lock = threading.Lock()
        self._facts = NodeInfo()
        self._sent_facts: NodeInfo | None = None
        self._last_beat_s = 0.0
        # When the board last answered again or lost data, or this node joined again; None: never.
        self._back_s: float | None = None
        self._newest = 0  # number of the newest generation that this node or another has seen
        self._logged: set[str] = set()  # live nodes with invalid facts, which were logged
        self._reports: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._events: list[Mapping[str, Any]] = []
        self._view = RendezvousView()
        self._away: tuple[float, str] | None = None  # since when, and why; None: it answers
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-job-rendezvous", daemon=True)

    @property
    def view(self) -> RendezvousView:
        """The latest view."""
        return self._view

    @property
    def away(self) -> str:
        """For how long and why the board does not answer, as text; empty: it answers."""
        away = self._away
        return f"for {time.monotonic() - away[0]:.0f} s: {away[1]}" if away else ""

    def read_board(self) -> RendezvousView:
        """Read the board without joining.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        return self._read_board(None)

    def start(self) -> None:
        """Join and read the board once in the caller's thread; then start the session's thread.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        self._tick()
        self._thread.start()

    def update_facts(self, **changes: Any) -> None:
        """Change facts of this node; the session's thread publishes them soon."""
        with self._lock:
            facts = replace(self._facts, **changes)
            if facts == self._facts:
                return
            self._facts = facts
        self._wake.set()

    def report(self, generation: int, rank: int, facts: Mapping[str, Any]) -> None:
        """Set the latest report of a rank; the session's thread publishes it soon."""
        with self._lock:
            self._reports[generation, rank] = facts

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Append to the job's timeline, soon; the event can be lost if the board is unavailable."""
        with self._lock:
            self._events.append(event)
        self._wake.set()

    def stop(self) -> None:
        """Leave the board, and stop the thread."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        try:
            if self._away is None:
                self._send_events()
                self._board.resign(self._job, self._node)
                self._board.leave(self._job, self._node)
        except EdlError as error:
            log.warning("the job board did not record that this node leaves: %s", error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._tick_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._tick()
            except EdlError as error:
                self._note_away(str(error))
            except Exception as error:  # must not end the node
                log.exception("a bug: a step of the rendezvous failed")
                self._note_away(str(error))

    def _note_away(self, why: str) -> None:
        if self._away is None:
            log.warning("training goes on without the job board: %s", why)
        self._away = (self._away[0] if self._away else time.monotonic(), why)

    def _tick(self) -> None:
        self._beat()
        self._send_events()
        self._send_reports()
        view = self._read_board(self._board.lead(self._job, self._node, self._ttl_s))
        if self._away is not None:
            log.info("the job board answers again")
        if self._away is not None or (view.forgotten and not self._view.forgotten):
            self._back_s = time.monotonic()
            view = replace(view, settled=False)
        self._away = None
        self._view = view
        if not self._stopping.is_set():
            self._on_view(view)

    def _beat(self) -> None:
        with self._lock:
            facts = self._facts
        now_s = time.monotonic()
        # A board that was away may have lost data, or serve older data. So this node renews its
        # lease and facts, or joins again, before it reads the board.
        due_s = self._last_beat_s + self._ttl_s / _BEATS_PER_TTL
        if self._away is None and facts == self._sent_facts and now_s < due_s:
            return
        if self._sent_facts is None or not self._board.beat(
            self._job, self._node, self._ttl_s, facts.to_json()
        ):
            # `join` may delete the outcome of an earlier run: any outcome if `since` is 0, else
            # only that of a generation with a number below `since`. A node that joins again must
            # not delete the outcome of its own run: otherwise the job would start again.
            since = 0
            if self._sent_facts is not None:  # its lease expired, or the board has lost data
                self._back_s = now_s
                since = self._newest
            self._board.join(self._job, self._node, facts.to_json(), self._ttl_s, since)
        self._sent_facts, self._last_beat_s = facts, now_s

    def _send_events(self) -> None:
        with self._lock:
            events, self._events = self._events, []
        for event in events:
            self._board.add_event(self._job, event)

    def _send_reports(self) -> None:
        with self._lock:
            reports, self._reports = self._reports, {}
        for (generation, rank), facts in reports.items():
            self._board.report(self._job, generation, rank, facts)

    def _read_board(self, fence: Leads | None) -> RendezvousView:
        nodes = self._board.nodes(self._job)
        facts = {node.node_id: self._facts_of(node) for node in nodes}
        self._logged.intersection_update(facts)
        record = self._board.generation(self._job)
        number = 0 if record is None else record.number
        self._newest = max(self._newest, number, *(one.generation for one in facts.values()))
        if is_older := 0 < number < self._newest:
            record = None
        return RendezvousView(
            facts=facts,
            members=[facts[node.node_id].live_node(node) for node in nodes],
            generation=None if record is None else Generation.from_record(record),
            newest=self._newest,
            outcome=None if is_older else self._board.outcome(self._job),
            reports=tuple(self._board.reports(self._job)),
            fence=fence,
            settled=self._back_s is None or time.monotonic() - self._back_s > self._ttl_s,
        )

    def _facts_of(self, node: Node) -> NodeInfo:
        try:
            return NodeInfo.from_json(node.facts)
        except WireError as error:
            if node.node_id not in self._logged:
                self._logged.add(node.node_id)
                log.warning("node %s gets no ranks: %s", node.node_id, error)
            return NodeInfo(leaving=True)


class RendezvousLeader:
    """Decides about generations while this node leads. A session calls `step` with each view.

    Args:
        board: job board.
        job: name of the job.
        limits: limits of a world, from the user's settings.
        newest_saved: called with the number of the last generation (0: there was none) and its
            history; returns the newest valid checkpoint on disk, or None if it is not known yet.
            May raise EdlError.
        publish: publishes in this node's facts the generation that has to end (None: none), and
            what the leader waits for, as text.
    """

    def __init__(
        self,
        board: JobBoard,
        job: str,
        limits: WorldLimits,
        newest_saved: Callable[[int, CheckpointHistory], NewestCheckpoint | None],
        publish: Callable[[RecallWorld | None, str], None],
    ) -> None:
        self._board, self._job, self._limits = board, job, limits
        self._newest_saved, self._publish = newest_saved, publish
        self._first_seen_s: dict[str, float] = {}
        self._latest: Generation | None = None
        # When this node published the latest generation; 0: it did not, or ranks made a step since.
        self._published_s = 0.0
        self._forming_s = 0.0  # seconds from publishing a generation to its first step
        self._recall: RecallWorld | None = None

    def step(self, view: RendezvousView) -> None:
        """Decide, and execute the decision. A node that does not lead withdraws its recall."""
        self._latest = view.generation or self._latest
        if view.fence is None:
            self._publish_recall(None)
            return
        now_s = time.monotonic()
        self._first_seen_s = {node: self._first_seen_s.get(node, now_s) for node in view.facts}
        generation = self._generation(view)
        if view.outcome is not None:
            return
        progress = self._progress(view, generation, now_s)
        world = None if generation is None else _without_keeper_if_saved(generation)
        members = [
            replace(one, seen_s=now_s - self._first_seen_s[one.node]) for one in view.members
        ]
        self._learn_rows(view)

        def decision_with(saved: CheckpointEntry | None) -> WorldDecision:
            return decide(
                *(self._limits, world, members, progress, saved),
                forgotten=view.forgotten,
                settled=view.settled,
            )

        decision = decision_with(None)
        newest: NewestCheckpoint | None = None
        if isinstance(decision, FormWorld):  # else the search would be repeated for nothing
            why = "the newest checkpoint is being verified"
            try:
                newest = self._newest_saved(0 if world is None else world.number, view.history)
            except CheckpointUnavailable as error:
                why = f"no generation can begin: {error}"
            if newest is None:
                self._publish_recall(self._recall, why)
                return
            decision = decision_with(newest.entry)
        self._execute(decision, view, view.fence, generation, newest)

    def _generation(self, view: RendezvousView) -> Generation | None:
        """Return the current generation; if the board has lost it, from memory or nodes' facts."""
        if not view.forgotten:
            return view.generation
        latest = self._latest
        if latest is None or latest.number < view.newest:
            latest = Generation(World(view.newest, ()), ())
        return replace(latest, world=recovered_world(latest.world, view.members, view.settled))

    def _learn_rows(self, view: RendezvousView) -> None:
        """Learn from ranks' reports how many rows a step has: the feed may decide it."""
        rows = max((int(one.facts.get("total_batch", 0)) for one in view.reports), default=0)
        if rows:
            self._limits = replace(self._limits, rows=rows)

    def _progress(
        self, view: RendezvousView, generation: Generation | None, now_s: float
    ) -> WorldProgress:
        if generation is None:
            return WorldProgress()
        current = [one for one in view.reports if one.generation == generation.number]
        peers_s = {one.rank: float(one.facts.get("peers_s", 0.0)) for one in current}
        deadlocked = failures.deadlocked(peers_s, len(generation.endpoints), self._limits.hang_s)
        reports = [one.facts for one in current if one.facts.get("step", 0) > 0]
        if not reports:
            return WorldProgress(forming_s=self._forming_s, deadlocked=deadlocked)
        if self._published_s:
            self._forming_s, self._published_s = now_s - self._published_s, 0.0
            self._add_event("stepping", generation.number, after_s=round(self._forming_s, 3))
        left_s = [one["left_s"] for one in reports if one.get("left_s") is not None]
        return WorldProgress(True, min(left_s, default=None), self._forming_s, deadlocked)

    def _execute(
        self,
        decision: WorldDecision,
        view: RendezvousView,
        fence: Leads,
        generation: Generation | None,
        newest: NewestCheckpoint | None,
    ) -> None:
        match decision:
            case KeepWorld():
                self._publish_recall(self._recall, decision.reason)
            case RecallWorld():
                if decision != self._recall:
                    log.info("generation %d ends: %s", decision.number, decision.reason)
                    self._add_event(
                        "recall", decision.number, at_once=decision.at_once, why=decision.reason
                    )
                self._publish_recall(decision, decision.reason)
            case FormWorld():
                assert newest is not None  # `step` has set it
                self._form(decision.world, view, fence, generation, newest)
            case FinishJob():
                self._end(fence, generation, "finished", _result(view))
            case StopJob():
                self._end(fence, generation, "failed", asdict(decision))

    def _form(
        self,
        world: World,
        view: RendezvousView,
        fence: Leads,
        previous: Generation | None,
        newest: NewestCheckpoint,
    ) -> None:
        if world.keeper and world.origin is not None:
            name = unique_name_of(world.restored_step, world.number)
            world = replace(world, origin=replace(world.origin, name=name))
        # A snapshot in the memory of the keeper (see `World`) has the data order of this job; a
        # checkpoint on disk may have another.
        on_disk = None if world.keeper else newest.checkpoint
        saved = {} if on_disk is None else on_disk.provenance.fingerprint
        world = replace(world, data_order=data_order(world.fingerprint, saved))
        generation = next_generation(world, view.facts, previous)
        history = view.history.to_json(), CheckpointHistory(newest.entry).to_json()
        if not self._board.publish(self._job, fence, world.number, generation.to_json(), history):
            return  # another node leads, or a new save changed the history: the next view shows it
        self._latest = generation
        self._published_s = time.monotonic()
        self._add_event(
            "generation",
            world.number,
            nodes=list(world.nodes),
            ranks=len(generation.endpoints),
            restored=world.restored_step,
            why=world.reason,
        )
        self._publish_recall(None)

    def _end(
        self, fence: Leads, generation: Generation | None, kind: str, outcome: Mapping[str, Any]
    ) -> None:
        number = generation.number if generation else 0
        if self._board.finish(self._job, fence, number, {"kind": kind, **outcome}):
            self._add_event(kind, number, **outcome)

    def _publish_recall(self, recall: RecallWorld | None, waiting_for: str = "") -> None:
        self._recall = recall
        self._publish(recall, waiting_for)

    def _add_event(self, kind: str, generation: int, **more: Any) -> None:
        self._board.add_event(self._job, {"kind": kind, "generation": generation, **more})


def _without_keeper_if_saved(generation: Generation) -> World:
    """Return the generation's world, without its keeper once the keeper has saved its snapshot.

    The keeper is the node that must write the starting checkpoint from a snapshot in its memory. It
    has done so if the history has any entry of this generation, because a generation with a keeper
    always adds that snapshot first.
    """
    newest = generation.history.newest
    if newest is not None and newest.generation >= generation.number:
        return replace(generation.world, keeper="")
    return generation.world


def _result(view: RendezvousView) -> Mapping[str, Any]:
    """Return the result of the finished job, as one of the nodes reports it."""
    return next((facts.result for facts in view.facts.values() if facts.result), {})
