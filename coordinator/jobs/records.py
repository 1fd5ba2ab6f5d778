"""The values of a job board, and what nodes and leaders write there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from ...runtime.errors import WireError
from ...scheduler.students.failures import RankFailure
from ...scheduler.students.fingerprint import Fingerprint
from ...scheduler.students.saving import CheckpointEntry, CheckpointHistory
from ...scheduler.students.world import Ending, LiveNode, Phase, RecallWorld, World
from ..store.facts import Facts

#: How long what a board holds of a job outlives the last sign of its nodes.
KEEP_S: Final = 86_400.0
#: Events of a job that are kept, the last ones.
EVENTS_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive.

    Attributes:
        node_id: its name within the job.
        facts: what it told of itself.
        joined: grows with each node that joins; who joined first has the smallest.
        expires_in_s: seconds until it is dead, unless it beats before.
    """

    node_id: str
    facts: Facts = field(default_factory=dict)
    joined: int = 0
    expires_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """The current world.

    Attributes:
        number: from 1; the next one is one more.
        body: what its leader wrote: the nodes, their ranks, the checkpoint, why.
        at_ms: when it was published, by the board's clock, milliseconds since 1970.
        history: of the job's checkpoints; {}: nothing is known.
    """

    number: int
    body: Facts
    at_ms: int
    history: Facts = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RankReport:
    """What a rank told last."""

    generation: int
    rank: int
    facts: Facts
    at_ms: int


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An entry of a job's timeline; `event_id` orders them, and is where reading goes on."""

    event_id: str
    at_ms: int
    body: Facts


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
