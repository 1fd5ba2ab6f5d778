"""The schema of the job board: its Redis keys, and the values that nodes and leaders write.

All keys of one job are in one hash slot of Redis Cluster, so that scripts can use them together.

| key | type | holds |
|---|---|---|
| `edl:jobs` | zset, expires | job -> time of its last activity (ms, Redis time) |
| `edl:{job:j}:nodes` | zset, expires | node id -> deadline (ms, Redis time) |
| `edl:{job:j}:node:<id>` | hash, expires | facts of a node (JSON), joined, incarnation |
| `edl:{job:j}:leader` | hash, expires | the node that leads: holder, token, until_ms |
| `edl:{job:j}:generation` | hash, expires | number, body, at_ms, history, outcome, `=write` |
| `edl:{job:j}:shards` | zset, expires | free shards: `epoch:start:stop` -> sort key |
| `edl:{job:j}:held` | hash, expires | `=rank` -> number of its shards, and the last one |
| `edl:{job:j}:filled` | hash, expires | epoch -> number of its shards |
| `edl:{job:j}:reports` | hash, expires | rank -> its report (JSON); `rank.at_ms` -> its time |
| `edl:{job:j}:events` | stream, capped, expires | the timeline: body (JSON) |

Shards, their leases and reports belong to the current generation: publishing the next one deletes
them. `=write` is the id of the latest write (`store.records.Once`). The colon in the hash tag
separates a job from a service of the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Self

from ...proto.dataclass_json import from_plain, to_plain
from ...runtime.errors import WireError
from ...scheduler.students.saving import CheckpointHistory
from ...scheduler.students.world import LiveNode, NodeState, RecallWorld, World
from ..store.records import Facts, LeaseSet, check_member, check_name

JOBS: Final = "edl:jobs"
#: Redis pattern of all keys of all jobs.
ANY_JOB: Final = "edl:{job:*}:*"

#: Keys that the leading node keeps alive.
KEPT: Final = ("generation", "shards", "held", "filled", "reports", "events")


def check_node(node_id: str) -> str:
    """Return `node_id`. Raises UsageError if it is invalid."""
    return check_member("the id of a node", node_id)


def job_key(job: str, name: str) -> str:
    """Return the key `name` of a job. Raises UsageError if the job's name is invalid."""
    check_name("the name of a job", job, "; give another one with --job NAME")
    return f"edl:{{job:{job}}}:{name}"


def node_leases(job: str) -> LeaseSet:
    """Return the lease set of a job's nodes; these leases end at their deadlines."""
    return LeaseSet(job_key(job, "nodes"), job_key(job, "node:"))


#: Seconds for which the state of a job stays after the last activity of its nodes.
KEEP_S: Final = 86_400.0
#: Number of kept events per job.
EVENTS_KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Node:
    """A live node.

    Attributes:
        node_id: its name within the job.
        facts: the facts that it published.
        joined: grows with each node that joins; the oldest node has the smallest.
        expires_in_s: seconds until its lease expires without a heartbeat.
    """

    node_id: str
    facts: Facts = field(default_factory=dict)
    joined: int = 0
    expires_in_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GenerationRecord:
    """The current generation, as it is stored.

    Attributes:
        number: counts from 1.
        body: what its leader wrote, except the number and the history; see `Generation`.
        at_ms: when it was published, in milliseconds since 1970 by the store's clock.
        history: history of the job's checkpoints; {}: unknown.
    """

    number: int
    body: Facts
    at_ms: int
    history: Facts = field(default_factory=dict)

    def checkpoint_history(self) -> CheckpointHistory:
        """Parse the history.

        Raises:
            WireError: it is invalid, or has other fields than a history of this version. A
                compare-and-set of this version would never match it.
        """
        history = from_plain(CheckpointHistory, self.history, defaults=True)
        if to_plain(history.to_json()) != self.history:
            raise WireError("its history of checkpoints is not of this version")
        return history


@dataclass(frozen=True, slots=True)
class RankReport:
    """The latest report of a rank."""

    generation: int
    rank: int
    facts: Facts
    at_ms: int


@dataclass(frozen=True, slots=True)
class NodeInfo(NodeState):
    """The facts that a node publishes.

    Attributes:
        host: host name of the machine, for display.
        endpoints: host:port of each of its ranks in the next generation.
        saved: step of the checkpoint of `generation`, once the node sees it; 0: not yet, or none.
        result: result of its ranks at the end of the job: step and metrics.
        recall: the generation that has to end, and why; only the leader sets it.
        says: what the leader waits for, as text for display; only the leader sets it. The name is
            a key in Redis.
    """

    host: str = ""
    endpoints: tuple[str, ...] = ()
    saved: int = 0
    result: Mapping[str, Any] = field(default_factory=dict)
    recall: RecallWorld | None = None
    says: str = ""

    def to_json(self) -> dict[str, Any]:
        recall = None if self.recall is None else _recall_to_json(self.recall)
        return {**asdict(self), "recall": recall}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse `to_json`; fields of newer versions are ignored. Raises WireError if invalid."""
        return from_plain(cls, value, defaults=True)

    def live_node(self, node: Node) -> LiveNode:
        """Return this node in the form of `scheduler.students.world`."""
        state = {
            state_field.name: getattr(self, state_field.name) for state_field in fields(NodeState)
        }
        return LiveNode(node.node_id, node.joined, ranks=len(self.endpoints), **state)


@dataclass(frozen=True, slots=True)
class NodeEndpoints:
    """A node of a generation, and the endpoints of its ranks."""

    node: str
    endpoints: tuple[str, ...]
    host: str = ""


#: Fields of a generation's body that every version writes.
_ALWAYS_WRITTEN: Final = frozenset(
    {"nodes", "keeper", "failures", "barred", "reason", "previous_ranks"}
)


@dataclass(frozen=True, slots=True)
class Generation:
    """What a leader publishes: the world, and what its nodes need to start it.

    Attributes:
        world: see `scheduler.students.world`.
        node_endpoints: endpoints of its nodes, in the order of their ranks.
        previous_ranks: number of ranks of the previous generation; 0: there was none.
        history: history of the job's checkpoints on the board.
    """

    world: World
    node_endpoints: tuple[NodeEndpoints, ...]
    previous_ranks: int = 0
    history: CheckpointHistory = field(default_factory=CheckpointHistory)

    @property
    def number(self) -> int:
        return self.world.number

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The endpoints of all ranks, by rank."""
        return tuple(endpoint for node in self.node_endpoints for endpoint in node.endpoints)

    def first_rank(self, node: str) -> int:
        """Return the number of a node's first rank."""
        before = self.node_endpoints[: self.world.nodes.index(node)]
        return sum(len(earlier.endpoints) for earlier in before)

    def to_json(self) -> dict[str, Any]:
        body: dict[str, Any] = to_plain(self.world)
        del body["number"]  # the board has it in a field of its own
        body["nodes"] = to_plain(self.node_endpoints)
        body["previous_ranks"] = self.previous_ranks
        body["restored"] = self.world.restored_step
        return body

    @classmethod
    def from_record(cls, record: GenerationRecord) -> Self:
        """Parse the generation of a board. Raises WireError if it is invalid."""
        number, body = record.number, record.body
        try:
            if missing := _ALWAYS_WRITTEN - body.keys():
                raise WireError(f"it has no {', '.join(sorted(missing))}")
            nodes = from_plain(list[NodeEndpoints], body["nodes"], defaults=True)
            stored = {**body, "number": number, "nodes": [entry.node for entry in nodes]}
            world = from_plain(World, stored, defaults=True)
            history = record.checkpoint_history()
        except WireError as error:
            raise WireError(f"generation {number} on the board is invalid: {error}") from error
        return cls(world, tuple(nodes), body["previous_ranks"], history)


def next_generation(
    world: World, facts: Mapping[str, NodeInfo], before: Generation | None
) -> Generation:
    """Return the generation of `world`; `before`: the last generation, None: there was none."""
    nodes = tuple(
        NodeEndpoints(node, facts[node].endpoints, facts[node].host) for node in world.nodes
    )
    return Generation(world, nodes, 0 if before is None else len(before.endpoints))


def _recall_to_json(recall: RecallWorld) -> dict[str, Any]:
    written = {**asdict(recall), "hung": list(recall.hung)}
    if not recall.hung:  # older versions refuse unknown fields in a recall
        del written["hung"]
    return written
