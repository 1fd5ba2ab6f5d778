"""The job board: what the nodes of one elastic training know of each other; the contract.

A *node* is one supervisor with its ranks, alive as long as it beats. One of them leads, and
publishes *generations*: each names a world, numbered nodes and so ranks. What ranks lease of an
epoch, and all else that is said in a generation's name, counts only while it is the current one.
`redis_board.py` keeps a board in Redis, in Redis time; `memory_board.py` is its twin for one
process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from ...scheduler.students.shards import Shard

#: How long what a board holds of a job outlives the last sign of its nodes.
KEEP_S: Final = 86_400.0
#: Events of a job that are kept, the last ones.
EVENTS_KEPT: Final = 1000

#: What travels as JSON: texts, numbers, lists, dicts, None.
Facts = Mapping[str, Any]


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


class JobBoard(Protocol):
    """See the module. Every method may be called from any thread.

    All raise UsageError where a name cannot stand in a key (1 to 128 letters, digits, '.', '_' or
    '-' for a job, 1 to 200 letters, digits or '._-:/@+[]' for a node), and RegistryUnavailable,
    Unauthenticated or Forbidden where Redis does not do it.
    """

    def join(self, job: str, node_id: str, facts: Facts, ttl_s: float, since: int = 0) -> int:
        """Be a node of the job, alive for `ttl_s` after this and each beat; returns `Node.joined`.

        Who joins under a name that lives takes it over, with a new number. Where no other node
        lives, the outcome of an earlier run of the job is forgotten: of any, where `since` is 0,
        and else of one whose last generation was before that number, which this node has seen.
        """

    def beat(self, job: str, node_id: str, facts: Facts | None = None) -> bool:
        """Prolong the life of a node; `facts` replace the former ones.

        Returns:
            False where the node is dead or was never there, and nothing was done: it has to join.
        """

    def leave(self, job: str, node_id: str) -> None:
        """End being a node, and leading; without effect where it is none."""

    def nodes(self, job: str) -> list[Node]:
        """Those alive, in the order in which they joined."""

    def lead(self, job: str, node_id: str, ttl_s: float) -> bool:
        """Take the lead if it is free, or prolong this node's own; whether it has it now."""

    def resign(self, job: str, node_id: str) -> None:
        """Give the lead back; without effect where another node has it."""

    def generation(self, job: str) -> GenerationRecord | None:
        """The current one; None before the first."""

    def publish(
        self,
        job: str,
        node_id: str,
        number: int,
        body: Facts,
        history: tuple[Facts, Facts] | None = None,
    ) -> bool:
        """Begin generation `number`: all that was leased or filled under the former one is void.

        Args:
            job: its name.
            node_id: who leads.
            number: of the generation.
            body: what it is.
            history: of the checkpoints: what it has to be before, and what it is from then on;
                None: it stays.

        Returns:
            Whether it was done: the node leads, `number` is the current one's + 1 (where the board
            knows none, as Redis was emptied, any from 1), and the history was the given one.
        """

    def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
        """Replace the history of the job's checkpoints, if it is `known`; whether it was.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """

    def fill(self, job: str, generation: int, epoch: int, shards: Sequence[Shard]) -> bool:
        """Lay out the shards of an epoch; in a generation the first wins, others change nothing.

        Returns:
            Whether these were laid out now.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """

    def lease(
        self,
        job: str,
        generation: int,
        epoch: int,
        rank: int,
        question: int | None = None,
        most: int | None = None,
    ) -> Shard | None:
        """The first shard of the epoch that nobody has had; None where there is none (any more).

        Args:
            job: its name.
            generation: in whose name it is asked.
            epoch: its number, from 0.
            rank: who gets it.
            question: number of the rank's question in this generation, growing. Asked again, as
                the answer may have been lost on its way, it is answered by the same shard. None:
                each is a new one.
            most: rows that it has use for: of a larger shard the first ones, and the rest stays.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """

    def done(self, job: str, generation: int, epoch: int, rank: int, start: int, stop: int) -> bool:
        """The rank has trained all of a shard; False where it does not have that shard.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """

    def report(self, job: str, generation: int, rank: int, facts: Facts) -> bool:
        """Say how a rank does; False, and nothing is kept, if the generation is not the current."""

    def reports(self, job: str) -> list[RankReport]:
        """The last one of each rank of the current generation, by rank."""

    def note(self, job: str, event: Facts) -> str:
        """Append to the job's timeline, of which the last ones are kept; returns the event's id."""

    def events(self, job: str, since: str = "", count: int = 100) -> list[JobEvent]:
        """The first `count` events behind the one of id `since`, oldest first; "" is before all."""

    def outcome(self, job: str) -> Facts | None:
        """How the job ended; None while it has not."""

    def finish(self, job: str, node_id: str, number: int, outcome: Facts) -> bool:
        """Say that the job ended in generation `number`, and how.

        Returns:
            Whether it was done: the node leads, `number` is the current generation, where the board
            knows one, and nobody has said so before.
        """

    def jobs(self) -> list[str]:
        """Names of the jobs that gave a sign within `KEEP_S`, sorted."""

    def close(self) -> None:
        """End the connections that it keeps."""
