"""The job board: what the nodes of one elastic training know of each other.

A *node* is one supervisor with its ranks, alive as long as it beats. One of them leads, and
publishes *generations*: each names a world, numbered nodes and so ranks. What ranks lease of an
epoch, and all else that is said in a generation's name, counts only while it is the current one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...runtime.errors import GenerationSuperseded, RegistryUnavailable, UsageError
from ...scheduler.students.shards import Shard
from ..store import (
    AddRanked,
    Append,
    Change,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leads,
    MemberBeat,
    Put,
    ShardKeys,
    Stamp,
    Store,
)
from ..store.facts import Facts, check_ttl, dump_facts, load_facts
from ..store.records import number
from . import keys
from .records import EVENTS_KEPT, KEEP_S, GenerationRecord, JobEvent, Node, RankReport

#: A shard's place among all is a whole double: epoch * EPOCH_PLACES + start.
_EPOCH_PLACES: Final = 1 << 32
_EPOCHS: Final = 1 << 20


class JobBoard:
    """See the module. Every method may be called from any thread.

    All raise UsageError where a name cannot stand in a key (1 to 128 letters, digits, '.', '_' or
    '-' for a job, 1 to 200 letters, digits or '._-:/@+[]' for a node), and RegistryUnavailable,
    Unauthenticated or Forbidden where the store does not do it.

    Args:
        store: where it is kept.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- nodes

    def join(self, job: str, node_id: str, facts: Facts, ttl_s: float, since: int = 0) -> None:
        """Be a node of the job, alive for `ttl_s` after this and each beat.

        A node that joins under a name that lives takes it over, with a new `Node.joined`. Where no
        other node lives, the outcome of an earlier run of the job is forgotten: of any, where
        `since` is 0, and else of one whose last generation was before that number, which this node
        has seen.
        """
        own = {"incarnation": "0", "facts": dump_facts(facts)}
        ttl_s = check_ttl(ttl_s)
        key, node_id = keys.of_job(job, "generation"), keys.check_node(node_id)
        if all(node.node_id == node_id for node in self.nodes(job)):
            (stands,) = self.store.read(key)
            outcome = stands.get("outcome", "")
            if outcome and (not since or number(stands.get("number", "")) < since):
                self.store.commit([FieldIs(key, "outcome", outcome)], [Put(key, {"outcome": None})])
        self.store.leases.register(keys.nodes(job), {node_id: own}, ttl_s)
        self.store.sign(keys.JOBS, job, KEEP_S)

    def beat(self, job: str, node_id: str, ttl_s: float, facts: Facts | None = None) -> bool:
        """Prolong the life of a node; `facts` replace the former ones.

        Returns:
            False where the node is dead or was never there, and nothing was done: it has to join.
        """
        told = {} if facts is None else {"facts": dump_facts(facts)}
        beat = MemberBeat(keys.check_node(node_id), 0, told)
        return bool(self.store.leases.beat(keys.nodes(job), beat, check_ttl(ttl_s)))

    def leave(self, job: str, node_id: str) -> None:
        """End being a node, and leading; without effect where it is none."""
        self.resign(job, node_id)
        self.store.leases.leave(keys.nodes(job), node_id)

    def nodes(self, job: str) -> list[Node]:
        """Those alive, in the order in which they joined."""
        living = [
            Node(one.member, load_facts(one.facts.get("facts", "")), one.joined, one.remaining_s)
            for one in self.store.leases.members(keys.nodes(job))
        ]
        return sorted(living, key=lambda node: node.joined)

    # --- the lead, and generations

    def lead(self, job: str, node_id: str, ttl_s: float) -> Leads | None:
        """Take the lead if it is free, or prolong this node's own.

        Returns:
            What the leader's writes carry; None where another node leads.
        """
        key = keys.of_job(job, "leader")
        kept = {keys.of_job(job, name): KEEP_S for name in keys.KEPT}
        led = self.store.lead(key, keys.check_node(node_id), check_ttl(ttl_s), keep_s=kept)
        if not led.change:
            return None
        self.store.sign(keys.JOBS, job, KEEP_S)
        return Leads(key, led.holder, led.token)

    def resign(self, job: str, node_id: str) -> None:
        """Give the lead back; without effect where another node has it."""
        self.store.resign(keys.of_job(job, "leader"), keys.check_node(node_id))

    def generation(self, job: str) -> GenerationRecord | None:
        """The current one; None before the first."""
        (found,) = self.store.read(keys.of_job(job, "generation"))
        if "number" not in found:
            return None
        try:
            return GenerationRecord(
                int(found["number"]),
                load_facts(found["body"]),
                int(found["at_ms"]),
                load_facts(found.get("history", "")),
            )
        except (KeyError, ValueError):
            raise RegistryUnavailable(
                f"what {self.store.url} holds as the generation of job {job} was not written by us;"
                " delete that key, or name the job otherwise"
            ) from None

    def publish(
        self,
        job: str,
        fence: Leads,
        number: int,
        body: Facts,
        history: tuple[Facts, Facts] | None = None,
    ) -> bool:
        """Begin generation `number`: all that was leased or filled under the former one is void.

        Args:
            job: its name.
            fence: of the leader.
            number: of the generation.
            body: what it is.
            history: of the checkpoints: what it has to be before, and what it is from then on;
                None: it stays.

        Returns:
            Whether it was done: the node leads, `number` is the current one's + 1 (where the board
            knows none, as Redis was emptied, any from 1), and the history was the given one.
        """
        key = keys.of_job(job, "generation")
        fields: dict[str, str | int | None] = {"number": number, "body": dump_facts(body)}
        current = self.store.fields(key, ["number"])[0] or ""
        if number < 1 or (current and current != str(number - 1)):
            return False
        conditions: list[Condition] = [fence, FieldIs(key, "number", current)]
        if history is not None:
            conditions.append(FieldIs(key, "history", _dump_history(history[0])))
            fields["history"] = _dump_history(history[1])
        void = [keys.of_job(job, name) for name in ("shards", "held", "filled", "reports")]
        changes: list[Change] = [
            Put(key, fields),
            Stamp(key, "at_ms"),
            Delete(void),
            Keep([key], KEEP_S),
        ]
        return self.store.commit(conditions, changes) == 0

    def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
        """Replace the history of the job's checkpoints, if it is `known`; whether it was.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """
        key = keys.of_job(job, "generation")
        conditions = [self._current(job, generation), FieldIs(key, "history", _dump_history(known))]
        changes: list[Change] = [Put(key, {"history": _dump_history(history)}), Keep([key], KEEP_S)]
        return self._checked(job, generation, self.store.commit(conditions, changes))

    # --- shards

    def fill(self, job: str, generation: int, epoch: int, shards: Sequence[Shard]) -> bool:
        """Lay out the shards of an epoch; in a generation the first wins, others change nothing.

        Returns:
            Whether these were laid out now.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """
        _check_shards(shards)
        free, filled = keys.of_job(job, "shards"), keys.of_job(job, "filled")
        first = _check_epoch(epoch) * _EPOCH_PLACES
        ranked = {f"{epoch}:{start}:{stop}": first + start for start, stop in shards}
        conditions = [self._current(job, generation), FieldIs(filled, str(epoch), "")]
        changes: list[Change] = [
            AddRanked(free, ranked),
            Put(filled, {str(epoch): len(shards)}),
            Keep([free, filled], KEEP_S),
        ]
        return self._checked(job, generation, self.store.commit(conditions, changes))

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
        where = ShardKeys(*(keys.of_job(job, name) for name in ("generation", "shards", "held")))
        epoch = _check_epoch(epoch)
        found = self.store.lease_shard(where, generation, epoch, rank, question, most, KEEP_S)
        if isinstance(found, str):
            raise _superseded(job, generation, found)
        return found and Shard(*found)

    def done(self, job: str, generation: int, epoch: int, rank: int, start: int, stop: int) -> bool:
        """The rank has trained all of a shard; False where it does not have that shard.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """
        held, shard = keys.of_job(job, "held"), f"{_check_epoch(epoch)}:{start}:{stop}"
        conditions = [self._current(job, generation), FieldIs(held, shard, str(rank))]
        done = self.store.commit(conditions, [Put(held, {shard: None})])
        return self._checked(job, generation, done)

    # --- what is told

    def report(self, job: str, generation: int, rank: int, facts: Facts) -> bool:
        """Say how a rank does; False, and nothing is kept, if the generation is not the current."""
        key = keys.of_job(job, "reports")
        changes: list[Change] = [
            Put(key, {str(rank): dump_facts(facts)}),
            Stamp(key, f"{rank}.at_ms"),
            Keep([key], KEEP_S),
        ]
        return self.store.commit([self._current(job, generation)], changes) == 0

    def reports(self, job: str) -> list[RankReport]:
        """The last one of each rank of the current generation, by rank."""
        generation, found = self.store.read(
            keys.of_job(job, "generation"), keys.of_job(job, "reports")
        )
        current = number(generation.get("number", ""))
        told = [
            RankReport(current, int(rank), load_facts(text), int(at_ms))
            for rank, text in found.items()
            if rank.isdigit() and (at_ms := found.get(f"{rank}.at_ms", "")).isdigit()
        ]
        return sorted(told, key=lambda report: report.rank)

    def note(self, job: str, event: Facts) -> str:
        """Append to the job's timeline, of which the last ones are kept; returns the event's id."""
        body = {"body": dump_facts(event)}
        return self.store.append(Append(keys.of_job(job, "events"), body, EVENTS_KEPT, KEEP_S))

    def events(self, job: str, since: str = "", count: int = 100) -> list[JobEvent]:
        """The first `count` events behind the one of id `since`, oldest first; "" is before all."""
        found = self.store.log(keys.of_job(job, "events"), since, count)
        return [
            JobEvent(one.id, one.time_ms, load_facts(one.fields.get("body", ""))) for one in found
        ]

    def outcome(self, job: str) -> Facts | None:
        """How the job ended; None while it has not."""
        text = self.store.fields(keys.of_job(job, "generation"), ["outcome"])[0]
        return None if text is None else load_facts(text)

    def finish(self, job: str, fence: Leads, number: int, outcome: Facts) -> bool:
        """Say that the job ended in generation `number`, and how.

        Returns:
            Whether it was done: the node leads, `number` is the current generation, where the board
            knows one, and nobody has said so before.
        """
        key, text = keys.of_job(job, "generation"), dump_facts(outcome)
        current = self.store.fields(key, ["number"])[0] or ""
        if current not in ("", str(number)):
            return False
        goes_on = FieldIs(key, "number", current), FieldIs(key, "outcome", "")
        changes: list[Change] = [Put(key, {"outcome": text}), Keep([key], KEEP_S)]
        return self.store.commit([fence, *goes_on], changes) == 0

    def jobs(self) -> list[str]:
        """Names of the jobs that gave a sign within `KEEP_S`, sorted."""
        since_ms = self.store.time_ms() - round(KEEP_S * 1000)
        return [job for job in self.store.signed(keys.JOBS, since_ms) if keys.is_job(job)]

    def close(self) -> None:
        """End the connections that it keeps."""
        self.store.close()

    def _current(self, job: str, generation: int) -> FieldIs:
        return FieldIs(keys.of_job(job, "generation"), "number", str(generation))

    def _checked(self, job: str, generation: int, failed: int) -> bool:
        """Whether a commit whose first condition is `_current` was done."""
        if failed == 1:
            current = self.store.fields(keys.of_job(job, "generation"), ["number"])[0]
            raise _superseded(job, generation, current or "")
        return not failed


def _dump_history(history: Facts) -> str:
    return dump_facts(history) if history else ""


def _check_epoch(epoch: int) -> int:
    if not 0 <= epoch < _EPOCHS:
        raise UsageError(f"epochs count from 0 to {_EPOCHS - 1}, {epoch!r} is none")
    return epoch


def _check_shards(shards: Sequence[Shard]) -> None:
    """Raise UsageError where shards overlap, or one is empty."""
    end = 0
    for start, stop in sorted(shards):
        if start < end or stop <= start or stop > _EPOCH_PLACES:
            raise UsageError(
                f"shards are ranges of positions that share none, [{start}, {stop}) is not one"
            )
        end = stop


def _superseded(job: str, generation: int, current: str) -> GenerationSuperseded:
    """The error of whoever speaks for a generation that is not the current one."""
    now = f"generation {current} is the current one" if current.isdigit() else "there is none now"
    return GenerationSuperseded(
        f"generation {generation} of job {job} is over: {now}; its ranks end, and go on there"
    )
