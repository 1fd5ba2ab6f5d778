"""A node at the job board: what it says of itself, the generations, and its session.

The supervisor itself never waits for Redis. It gives its facts to the session and reads the last
view; a thread of the session beats, looks around, and leads if it is elected. While Redis is away
the view stays as it was, and `RendezvousSession.away` says since when and why.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Self

from ...coordinator.jobs import GenerationRecord, JobBoard, Node, RankReport
from ...coordinator.store import Leads
from ...errors import EdlError, WireError
from ...scheduler.students.failures import RankFailure
from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory
from ...scheduler.students.world import Ending, Fingerprint, LiveNode, Phase, RecallWorld, World


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """What a node says of itself.

    Attributes:
        host: of the machine, for people.
        endpoints: host:port for each of its ranks in the next generation.
        phase: what it does; see `scheduler.students.world`.
        generation: of its ranks, or of its last ones.
        ending: how these ended.
        failures: of these.
        snapshot: step of the newest snapshot in its memory; -1: none.
        saved: step of the newest checkpoint on the disk that it knows of; 0: none.
        leaving: it wants to go.
        result: what its ranks said at the end of the job: step and metrics.
        recall: of the leader: which generation is to end, and why.
        says: of the leader: what is waited for.
        fingerprint: of its settings and job file (`scheduler/students/world.py`).
    """

    host: str = ""
    endpoints: tuple[str, ...] = ()
    phase: Phase = "waiting"
    generation: int = 0
    ending: Ending = ""
    failures: tuple[RankFailure, ...] = ()
    snapshot: int = -1
    saved: int = 0
    leaving: bool = False
    result: Mapping[str, Any] = field(default_factory=dict)
    recall: RecallWorld | None = None
    says: str = ""
    fingerprint: Fingerprint = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            **{one.name: getattr(self, one.name) for one in fields(self)},
            "endpoints": list(self.endpoints),
            "failures": [one.to_json() for one in self.failures],
            "result": dict(self.result),
            "fingerprint": dict(self.fingerprint),
            "recall": None if self.recall is None else _recall_to_json(self.recall),
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """What `to_json` told; fields of a newer version are passed over.

        Raises:
            WireError: it is something else.
        """
        try:
            given = _known(cls, value)
            recall = given.pop("recall", None)
            return cls(
                **{
                    **given,
                    "endpoints": tuple(given.get("endpoints", ())),
                    "failures": tuple(map(RankFailure.from_json, given.get("failures", ()))),
                    "recall": None if recall is None else _recall_from_json(recall),
                }
            )
        except (TypeError, AttributeError) as error:
            raise WireError(f"not what a node tells of itself: {error}") from error

    def member(self, node: Node, seen_s: float = 0.0) -> LiveNode:
        """As the reducer of worlds sees this node."""
        return LiveNode(
            node.node_id,
            node.joined,
            seen_s,
            self.phase,
            self.generation,
            self.ending,
            self.failures,
            self.snapshot,
            self.leaving,
            self.fingerprint,
        )


@dataclass(frozen=True, slots=True)
class NodeEndpoints:
    """A node in a generation, and where its ranks listen."""

    node: str
    endpoints: tuple[str, ...]
    host: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """What a leader publishes: the world, and what its nodes need to start it.

    Attributes:
        world: see `scheduler.students.world`.
        places: of its nodes, in the order of their ranks.
        previous_ranks: ranks of the generation before; 0: there was none.
        history: of the job's checkpoints, as the board has it.
    """

    world: World
    places: tuple[NodeEndpoints, ...]
    previous_ranks: int = 0
    history: CheckpointHistory = field(default_factory=CheckpointHistory)

    @property
    def number(self) -> int:
        return self.world.number

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Of all ranks, by rank."""
        return tuple(endpoint for place in self.places for endpoint in place.endpoints)

    def first_rank(self, node: str) -> int:
        """The number of a node's first rank."""
        before = self.places[: self.world.nodes.index(node)]
        return sum(len(place.endpoints) for place in before)

    def to_json(self) -> dict[str, Any]:
        world = self.world
        return {
            "nodes": [
                {"node": place.node, "endpoints": list(place.endpoints), "host": place.host}
                for place in self.places
            ],
            "previous_ranks": self.previous_ranks,
            "restored": world.restored,
            "origin": None if world.origin is None else asdict(world.origin),
            "keeper": world.keeper,
            "failures": [one.to_json() for one in world.failures],
            "barred": list(world.barred),
            "reason": world.reason,
            "fingerprint": dict(world.fingerprint),
            "untried": list(world.untried),
            "data_order": dict(world.data_order),
        }

    @classmethod
    def from_record(cls, record: GenerationRecord) -> Self:
        """The generation that a board holds. Raises WireError if it is none."""
        number, body = record.number, record.body
        try:
            places = tuple(
                NodeEndpoints(one["node"], tuple(one["endpoints"]), one.get("host", ""))
                for one in body["nodes"]
            )
            world = World(
                number,
                tuple(place.node for place in places),
                None if (origin := body.get("origin")) is None else CheckpointEntry(**origin),
                body["keeper"],
                tuple(map(RankFailure.from_json, body["failures"])),
                tuple(body["barred"]),
                body["reason"],
                body.get("fingerprint", {}),
                tuple(body.get("untried", ())),
                body.get("data_order", {}),
            )
            history = CheckpointHistory.from_json(record.history)
            return cls(world, places, body["previous_ranks"], history)
        except (TypeError, KeyError, AttributeError) as error:
            raise WireError(f"generation {number} at the board is none: {error!r}") from error


def generation_of(
    world: World, facts: Mapping[str, NodeInfo], previous: Sequence[str] | None
) -> Generation:
    """A world that is to begin, where its nodes said; `previous`: endpoints of the last one."""
    places = tuple(
        NodeEndpoints(node, facts[node].endpoints, facts[node].host) for node in world.nodes
    )
    return Generation(world, places, len(previous or ()))


def _recall_to_json(recall: RecallWorld) -> dict[str, Any]:
    told = {**asdict(recall), "hung": list(recall.hung)}
    if not recall.hung:  # older versions refuse a recall with a field that they do not know
        del told["hung"]
    return told


def _recall_from_json(value: Mapping[str, Any]) -> RecallWorld:
    given = _known(RecallWorld, value)
    return RecallWorld(**{**given, "hung": tuple(given.get("hung", ()))})


def _known(cls: type[Any], value: Mapping[str, Any]) -> dict[str, Any]:
    names = {one.name for one in fields(cls)}
    return {name: told for name, told in value.items() if name in names}


log = logging.getLogger(__name__)

#: A node that has not beaten for so long is lost.
TTL_S: Final = 5.0
TICK_S: Final = 0.2
_BEATS_PER_TTL: Final = 5.0
_STOP_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class RendezvousView:
    """What a node saw at the board.

    Attributes:
        nodes: that live, in the order in which they joined.
        facts: what each of them told.
        generation: the current one; None: the board knows none.
        outcome: how the job ended; None: it goes on.
        reports: of ranks, of the current generation.
        fence: what this node's writes as the leader carry; None: another one leads.
        seen_s: when, by the monotonic clock; 0: nothing was seen yet.
        settled: the board has answered for long enough that who is not there is gone.
    """

    nodes: tuple[Node, ...] = ()
    facts: Mapping[str, NodeInfo] = field(default_factory=dict)
    generation: Generation | None = None
    outcome: Mapping[str, Any] | None = None
    reports: tuple[RankReport, ...] = ()
    fence: Leads | None = None
    seen_s: float = 0.0
    settled: bool = True

    @property
    def members(self) -> list[LiveNode]:
        """The nodes that live, as the reducer of worlds sees them."""
        return [self.facts[node.node_id].member(node) for node in self.nodes]


class RendezvousSession:
    """See the module.

    Args:
        board: of the mesh, or of this process where there is one node.
        job: name of the training.
        node: this node's id.
        look: called in the seat's thread with each view.
        ttl_s: see `TTL_S`.
        tick_s: between two looks.
    """

    def __init__(
        self,
        board: JobBoard,
        job: str,
        node: str,
        look: Callable[[RendezvousView], None],
        ttl_s: float = TTL_S,
        tick_s: float = TICK_S,
    ) -> None:
        self._board, self._job, self._node, self._on_view = board, job, node, look
        self._ttl_s, self._tick_s = ttl_s, tick_s
        self._lock = threading.Lock()
        self._facts = NodeInfo()
        self._told: NodeInfo | None = None
        self._beaten_s = 0.0
        self._back_s: float | None = None  # when the board answered again
        self._reports: dict[tuple[int, int], Mapping[str, Any]] = {}
        self._view = RendezvousView()
        self._away: tuple[float, str] | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-job-seat", daemon=True)

    @property
    def view(self) -> RendezvousView:
        """What was seen last."""
        return self._view

    @property
    def away(self) -> str:
        """Since when and why the board does not answer, in words; empty: it does."""
        away = self._away
        return f"for {time.monotonic() - away[0]:.0f} s: {away[1]}" if away else ""

    def look(self) -> RendezvousView:
        """What the board shows, for a node that has not joined.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        return self._look(None)

    def start(self) -> None:
        """Join, and look once, in the caller's thread; then begin.

        Raises:
            EdlError: the board does not answer, or refuses.
        """
        self._tick()
        self._thread.start()

    def tell(self, **changes: Any) -> None:
        """Change what this node says of itself."""
        with self._lock:
            facts = replace(self._facts, **changes)
            if facts == self._facts:
                return
            self._facts = facts
        self._wake.set()

    def report(self, generation: int, rank: int, facts: Mapping[str, Any]) -> None:
        """What a rank told last, to be seen by all."""
        with self._lock:
            self._reports[generation, rank] = facts

    def note(self, event: Mapping[str, Any]) -> None:
        """Add to the job's timeline, if the board answers."""
        try:
            self._board.note(self._job, event)
        except EdlError as error:
            log.debug("not noted in the timeline, %s: %s", error, event)

    def stop(self) -> None:
        """End being a node."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        try:
            if self._away is None:
                self._board.resign(self._job, self._node)
                self._board.leave(self._job, self._node)
        except EdlError as error:
            log.warning("the job board was not told that this node leaves: %s", error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._tick_s)
            self._wake.clear()
            if self._stopping.is_set():
                return
            try:
                self._tick()
            except EdlError as error:
                self._miss(str(error))
            except Exception as error:  # the node must not be lost for it
                log.exception("the job board could not be read")
                self._miss(str(error))

    def _miss(self, why: str) -> None:
        if self._away is None:
            log.warning("training goes on without the job board: %s", why)
        self._away = (self._away[0] if self._away else time.monotonic(), why)

    def _tick(self) -> None:
        self._beat()
        self._pass_reports()
        view = self._look(self._board.lead(self._job, self._node, self._ttl_s))
        if self._away is not None:
            log.info("the job board answers again")
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
        if self._told is not None and facts == self._told:
            # A board that was away may have lost its memory, or have an older one: what it says of
            # the job counts only once it knows this node again.
            due_s = self._beaten_s + self._ttl_s / _BEATS_PER_TTL
            if self._away is None and now_s < due_s:
                return
            alive = self._board.beat(self._job, self._node, self._ttl_s)
        else:
            alive = self._told is not None and self._board.beat(
                self._job, self._node, self._ttl_s, facts.to_json()
            )
        if not alive:
            since = 0  # else how the job has ended meanwhile would be forgotten, and it begin again
            if self._told is not None:  # one of both was away, or the board has lost its memory
                self._back_s = now_s
                since = self._view.generation.world.number if self._view.generation else 0
            self._board.join(self._job, self._node, facts.to_json(), self._ttl_s, since)
        self._told, self._beaten_s = facts, now_s

    def _pass_reports(self) -> None:
        with self._lock:
            reports, self._reports = self._reports, {}
        for (generation, rank), facts in reports.items():
            self._board.report(self._job, generation, rank, facts)

    def _look(self, fence: Leads | None) -> RendezvousView:
        nodes = tuple(self._board.nodes(self._job))
        record = self._board.generation(self._job)
        return RendezvousView(
            nodes,
            {node.node_id: _facts_of(node) for node in nodes},
            None if record is None else Generation.from_record(record),
            self._board.outcome(self._job),
            tuple(self._board.reports(self._job)),
            fence,
            now_s := time.monotonic(),
            self._back_s is None or now_s - self._back_s > self._ttl_s,
        )


def _facts_of(node: Node) -> NodeInfo:
    try:
        return NodeInfo.from_json(node.facts)
    except WireError as error:
        log.warning("node %s: %s", node.node_id, error)
        return NodeInfo(leaving=True)
