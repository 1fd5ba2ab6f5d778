"""The job board: the shared state of the nodes of one elastic training.

A *node* is a supervisor with its ranks and a TTL lease. One node leads and publishes *generations*.
Each generation names a world: an order of nodes, which numbers their ranks. Leased shards and
reports belong to a generation, and count only while it is the current one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ...runtime.errors import GenerationSuperseded, RedisUnavailable, UsageError
from ...scheduler.students.shards import Range
from ..store import Store
from ..store.records import (
    AddToSortedSet,
    Change,
    Condition,
    Delete,
    Facts,
    FieldIs,
    Keep,
    Leads,
    MemberBeat,
    NumberIs,
    Once,
    Put,
    ShardKeys,
    Stamp,
    TimelineEntry,
    check_ttl,
    dump_facts,
    is_name,
    is_number,
    load_facts,
    number,
    read_timeline,
    timeline_entry,
)
from .schema import (
    EVENTS_KEPT,
    JOBS,
    KEEP_S,
    KEPT,
    GenerationRecord,
    Node,
    RankReport,
    check_node,
    job_key,
    node_leases,
)

#: Sort key of a shard, exact as a double: epoch * _EPOCH_ROWS + start.
_EPOCH_ROWS: Final = 1 << 32
_MAX_EPOCHS: Final = 1 << 20


class JobBoard:
    """The job board; its methods may be called from any thread.

    All raise RedisUnavailable, Unauthenticated or Forbidden as the store does. They raise
    UsageError if a name is invalid: the name of a job must have 1 to 128 letters, digits, '.', '_'
    or '-'; the id of a node must have 1 to 200 letters, digits or '._-:/@+[]'.

    Args:
        store: the store.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    # --- nodes

    def join(self, job: str, node_id: str, facts: Facts, ttl_s: float, since: int = 0) -> None:
        """Register a node; its lease ends `ttl_s` seconds after this and after each heartbeat.

        A node that joins under the name of a live one replaces it, with a new `Node.joined`. If no
        other node is alive, the outcome of an earlier run is deleted. `since` is the number of a
        generation that this node has seen, 0 if none: outcomes of this and later generations stay.
        """
        node_facts = {"incarnation": "0", "facts": dump_facts(facts)}
        ttl_s = check_ttl(ttl_s)
        key, node_id = job_key(job, "generation"), check_node(node_id)
        if all(node.node_id == node_id for node in self.nodes(job)):
            (generation,) = self.store.read(key)
            outcome = generation.get("outcome", "")
            if outcome and (not since or number(generation.get("number", "")) < since):
                self.store.commit([FieldIs(key, "outcome", outcome)], [Put(key, {"outcome": None})])
        self.store.leases.register(node_leases(job), node_id, node_facts, ttl_s)
        self.store.record_use(JOBS, job, KEEP_S)

    def beat(self, job: str, node_id: str, ttl_s: float, facts: Facts | None = None) -> bool:
        """Renew the lease of a node; `facts` replace the former ones.

        Returns:
            False if the node has no lease: nothing was done, and it has to join.
        """
        changed = {} if facts is None else {"facts": dump_facts(facts)}
        beat = MemberBeat(check_node(node_id), 0, changed)
        return bool(self.store.leases.beat(node_leases(job), beat, check_ttl(ttl_s)))

    def leave(self, job: str, node_id: str) -> None:
        """End the lease and the leadership of a node; no effect if it has none."""
        self.resign(job, node_id)
        self.store.leases.leave(node_leases(job), node_id)

    def nodes(self, job: str) -> list[Node]:
        """Return the live nodes, in the order in which they joined."""
        living = [
            Node(
                member.member,
                load_facts(member.facts.get("facts", "")),
                member.joined,
                member.remaining_s,
            )
            for member in self.store.leases.members(node_leases(job))
        ]
        return sorted(living, key=lambda node: node.joined)

    # --- leadership and generations

    def lead(self, job: str, node_id: str, ttl_s: float) -> Leads | None:
        """Take the leadership if it is free, or renew ours.

        Returns:
            The fence of the leader's writes; None if another node leads.
        """
        key = job_key(job, "leader")
        kept = {job_key(job, name): KEEP_S for name in KEPT}
        leadership = self.store.lead(key, check_node(node_id), check_ttl(ttl_s), keep_s=kept)
        if not leadership.change:
            return None
        self.store.record_use(JOBS, job, KEEP_S)
        return Leads(key, leadership.holder, leadership.token)

    def resign(self, job: str, node_id: str) -> None:
        """Give the leadership back; no effect if another node has it."""
        self.store.resign(job_key(job, "leader"), check_node(node_id))

    def generation(self, job: str) -> GenerationRecord | None:
        """Return the current generation; None before the first."""
        (record,) = self.store.read(job_key(job, "generation"))
        if "number" not in record:
            return None
        try:
            return GenerationRecord(
                int(record["number"]),
                load_facts(record["body"]),
                int(record["at_ms"]),
                load_facts(record.get("history", "")),
            )
        except (KeyError, ValueError):
            raise RedisUnavailable(
                f"the generation of job {job} at {self.store.url} is invalid: another program wrote"
                f" it; delete the key {job_key(job, 'generation')}, or give the job another name"
            ) from None

    def publish(
        self,
        job: str,
        fence: Leads,
        number: int,
        body: Facts,
        history: tuple[Facts, Facts] | None = None,
    ) -> bool:
        """Begin generation `number`; delete the shards, shard leases and reports of the former one.

        Args:
            job: name of the job.
            fence: fence of the leader.
            number: number of the generation.
            body: its contents.
            history: expected and new history of the checkpoints; None: the current history stays.

        Returns:
            Whether it was published. The node must lead, and `number` must be that of the current
            generation + 1; then the history must be the expected one. If the board has an older
            generation or none, as after a loss of Redis's data, any history is replaced.
        """
        key = job_key(job, "generation")
        fields: dict[str, str | int | None] = {"number": number, "body": dump_facts(body)}
        fields["outcome"] = None  # only older data can have one
        current = self.store.fields(key, ["number"])[0] or "0"
        if not is_number(current) or number <= int(current):
            return False
        conditions: list[Condition] = [fence, Once(key), NumberIs(key, "number", int(current))]
        if history is not None:
            if number == int(current) + 1:
                conditions.append(FieldIs(key, "history", _dump_history(history[0])))
            fields["history"] = _dump_history(history[1])
        outdated = [job_key(job, name) for name in ("shards", "held", "filled", "reports")]
        changes: list[Change] = [
            Put(key, fields),
            Stamp(key, "at_ms"),
            Delete(outdated),
            Keep([key], KEEP_S),
        ]
        return self.store.commit(conditions, changes) == 0

    def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
        """Replace the history of the job's checkpoints if it is `known`; return whether it was.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
        """
        key = job_key(job, "generation")
        conditions = [self._current(job, generation), FieldIs(key, "history", _dump_history(known))]
        changes: list[Change] = [Put(key, {"history": _dump_history(history)}), Keep([key], KEEP_S)]
        return self._checked(job, generation, self.store.commit(conditions, changes))

    # --- shards

    def fill(self, job: str, generation: int, epoch: int, shards: Sequence[Range]) -> bool:
        """Create the shards of an epoch; only the first call for it in a generation has an effect.

        Returns:
            Whether this call created them.

        Raises:
            GenerationSuperseded: `generation` is not the current one.
            UsageError: `epoch` is out of range, or shards are empty, overlap or are out of range.
        """
        _check_shards(shards)
        free, filled = job_key(job, "shards"), job_key(job, "filled")
        first = _check_epoch(epoch) * _EPOCH_ROWS
        scores = {f"{epoch}:{start}:{stop}": first + start for start, stop in shards}
        conditions = [self._current(job, generation), FieldIs(filled, str(epoch), "")]
        changes: list[Change] = [
            AddToSortedSet(free, scores),
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
        request_number: int | None = None,
        most: int | None = None,
    ) -> Range | None:
        """Lease the first free shard of an epoch; None if no shard is free.

        Args:
            job: name of the job.
            generation: generation of the rank.
            epoch: number of the epoch, from 0.
            rank: the rank that gets the shard.
            request_number: number of the shard among those that the rank gets in this generation,
                from 1. A repeated number returns the same shard, as the answer may have been lost.
                None: the request is never repeated.
            most: greatest number of rows. Of a larger shard the first rows are leased, and the rest
                stays free.

        Raises:
            GenerationSuperseded: `generation` is not the current one. Or the board has not filled
                the epoch, or lacks an earlier lease of the rank, so it has returned with older
                data and might deal shards twice.
            UsageError: `epoch` is out of range.
        """
        keys = ShardKeys(
            generation=job_key(job, "generation"),
            free=job_key(job, "shards"),
            leased=job_key(job, "held"),
            filled=job_key(job, "filled"),
        )
        epoch = _check_epoch(epoch)
        leased = self.store.lease_shard(keys, generation, epoch, rank, request_number, most, KEEP_S)
        if isinstance(leased, str):
            raise _superseded(job, generation, leased)
        return leased

    # --- reports and events

    def report(self, job: str, generation: int, rank: int, facts: Facts) -> bool:
        """Write the report of a rank; False if the generation is not the current one."""
        key = job_key(job, "reports")
        changes: list[Change] = [
            Put(key, {str(rank): dump_facts(facts)}),
            Stamp(key, f"{rank}.at_ms"),
            Keep([key], KEEP_S),
        ]
        return self.store.commit([self._current(job, generation)], changes) == 0

    def reports(self, job: str) -> list[RankReport]:
        """Return the latest report of each rank of the current generation, sorted by rank."""
        generation, stored = self.store.read(job_key(job, "generation"), job_key(job, "reports"))
        current = number(generation.get("number", ""))
        reports = [
            RankReport(current, number(rank), load_facts(text), number(at_ms))
            for rank, text in stored.items()
            if is_number(rank) and is_number(at_ms := stored.get(f"{rank}.at_ms", ""))
        ]
        return sorted(reports, key=lambda report: report.rank)

    def add_event(self, job: str, event: Facts) -> str:
        """Append to the job's timeline, which keeps the last events; return the event's id."""
        entry = timeline_entry(job_key(job, "events"), event, EVENTS_KEPT, KEEP_S)
        return self.store.append(entry)

    def events(self, job: str, since: str = "", count: int = 100) -> list[TimelineEntry]:
        """Return the first `count` events after id `since`, oldest first; "": from the start."""
        return read_timeline(self.store, job_key(job, "events"), since, count)

    def outcome(self, job: str) -> Facts | None:
        """Return how the job ended; None while it runs."""
        text = self.store.fields(job_key(job, "generation"), ["outcome"])[0]
        return None if text is None else load_facts(text)

    def finish(self, job: str, fence: Leads, number: int, outcome: Facts) -> bool:
        """End the job in generation `number`: write its outcome.

        Returns:
            Whether it was written. The node must lead, and the board must have no newer generation
            and no outcome yet. The outcome of an older generation is replaced.
        """
        key = job_key(job, "generation")
        fields: dict[str, str | int | None] = {"outcome": dump_facts(outcome)}
        current = self.store.fields(key, ["number"])[0] or ""
        conditions: list[Condition] = [fence, Once(key), FieldIs(key, "number", current)]
        if is_number(current) and int(current) < number:  # older data
            fields["number"] = number
        elif current in ("", str(number)):
            conditions.append(FieldIs(key, "outcome", ""))
        else:
            return False
        changes: list[Change] = [Put(key, fields), Keep([key], KEEP_S)]
        return self.store.commit(conditions, changes) == 0

    def jobs(self) -> list[str]:
        """Return the names of the jobs that were active within `KEEP_S`, sorted."""
        since_ms = self.store.time_ms() - round(KEEP_S * 1000)
        return [job for job in self.store.used_names(JOBS, since_ms) if is_name(job)]

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def _current(self, job: str, generation: int) -> FieldIs:
        return FieldIs(job_key(job, "generation"), "number", str(generation))

    def _checked(self, job: str, generation: int, failed: int) -> bool:
        """Return whether a commit succeeded. Its first condition must be that of `_current`.

        `failed` is the result of the commit: the position of the failed condition, or 0.

        Raises:
            GenerationSuperseded: the first condition failed.
        """
        if failed == 1:
            current = self.store.fields(job_key(job, "generation"), ["number"])[0]
            raise _superseded(job, generation, current or "")
        return not failed


def _dump_history(history: Facts) -> str:
    return dump_facts(history) if history else ""


def _check_epoch(epoch: int) -> int:
    if not 0 <= epoch < _MAX_EPOCHS:
        raise UsageError(f"an epoch must be 0 to {_MAX_EPOCHS - 1}, not {epoch!r}")
    return epoch


def _check_shards(shards: Sequence[Range]) -> None:
    """Raise UsageError if shards are empty, overlap or are out of range."""
    end = 0
    for start, stop in sorted(shards):
        if start < end or stop <= start or stop > _EPOCH_ROWS:
            raise UsageError(
                f"shards must be non-empty ranges below {_EPOCH_ROWS} that do not overlap;"
                f" [{start}, {stop}) is not"
            )
        end = stop


def _superseded(job: str, generation: int, current: str) -> GenerationSuperseded:
    """Return the error for a generation that is not the current one."""
    now = f"generation {current} is the current one" if current.isdigit() else "there is none now"
    if current == str(generation):
        now = "the job board has returned with older data"
    return GenerationSuperseded(
        f"generation {generation} of job {job} is over ({now}): its ranks end and continue in the "
        "next generation"
    )
