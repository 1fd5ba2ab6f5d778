"""The job board within one process: the twin of the one in Redis, and what one node alone uses."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...scheduler.students.shards import Shard
from . import checks, keys
from .board import EVENTS_KEPT, KEEP_S, Facts, GenerationRecord, JobEvent, Node, RankReport


@dataclass(slots=True)
class _Member:
    joined: int
    ttl_s: float
    deadline_s: float
    facts: str


@dataclass(slots=True)
class _Job:
    """All that is known of one job; texts are JSON, as in Redis."""

    sign_s: float = 0.0
    joined: int = 0
    members: dict[str, _Member] = field(default_factory=dict)
    leader: tuple[str, float] = ("", 0.0)
    number: int | None = None
    body: str = checks.NO_FACTS
    at_ms: int = 0
    history: str = checks.NO_FACTS
    free: dict[int, set[Shard]] = field(default_factory=dict)  # by epoch, once it is filled
    held: dict[tuple[int, Shard], int] = field(default_factory=dict)
    answered: dict[int, tuple[int, Shard]] = field(default_factory=dict)  # by rank, the last one
    reports: dict[int, tuple[int, str]] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)  # id, JSON
    told: tuple[int, int] = (0, 0)  # the last id: ms, number
    outcome: str | None = None


class MemoryBoard:
    """See `JobBoard`. Several nodes of one process may share it.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}

    # --- nodes

    def join(self, job: str, node_id: str, facts: Facts, ttl_s: float, since: int = 0) -> int:
        ttl_s = checks.check_ttl(ttl_s) / 1000
        text = checks.written(facts)
        keys.check_node(node_id)
        with self._lock:
            held, now_s = self._of(job), self._clock()
            earlier = not since or (held.number or 0) < since
            if earlier and not any(node != node_id for node in self._living(held)):
                held.outcome = None
            held.joined += 1
            held.members[node_id] = _Member(held.joined, ttl_s, now_s + ttl_s, text)
            return held.joined

    def beat(self, job: str, node_id: str, facts: Facts | None = None) -> bool:
        text = None if facts is None else checks.written(facts)
        with self._lock:
            held, now_s = self._of(job), self._clock()
            member = self._living(held).get(keys.check_node(node_id))
            if member is None:
                return False
            member.deadline_s = now_s + member.ttl_s
            if text is not None:
                member.facts = text
            return True

    def leave(self, job: str, node_id: str) -> None:
        with self._lock:
            held = self._of(job)
            held.members.pop(keys.check_node(node_id), None)
            if held.leader[0] == node_id:
                held.leader = ("", 0.0)

    def nodes(self, job: str) -> list[Node]:
        with self._lock:
            held, now_s = self._of(job, sign=False), self._clock()
            found = [
                Node(node_id, checks.read(m.facts), m.joined, m.deadline_s - now_s)
                for node_id, m in self._living(held).items()
            ]
        return sorted(found, key=lambda node: node.joined)

    # --- the lead, and generations

    def lead(self, job: str, node_id: str, ttl_s: float) -> bool:
        ttl_s = checks.check_ttl(ttl_s) / 1000
        keys.check_node(node_id)
        with self._lock:
            held = self._of(job)
            if self._leader(held) not in ("", node_id):
                return False
            held.leader = (node_id, self._clock() + ttl_s)
            return True

    def resign(self, job: str, node_id: str) -> None:
        with self._lock:
            held = self._of(job)
            if held.leader[0] == keys.check_node(node_id):
                held.leader = ("", 0.0)

    def generation(self, job: str) -> GenerationRecord | None:
        with self._lock:
            held = self._of(job, sign=False)
            if held.number is None:
                return None
            return GenerationRecord(
                held.number, checks.read(held.body), held.at_ms, checks.read(held.history)
            )

    def publish(
        self,
        job: str,
        node_id: str,
        number: int,
        body: Facts,
        history: tuple[Facts, Facts] | None = None,
    ) -> bool:
        text = checks.written(body)
        with self._lock:
            held = self._of(job)
            expected = number if held.number is None else held.number + 1
            if self._leader(held) != node_id or number != expected or number < 1:
                return False
            if history is not None:
                if held.history != checks.written(history[0]):
                    return False
                held.history = checks.written(history[1])
            held.number, held.body, held.at_ms = number, text, self._now_ms()
            held.free, held.held, held.answered, held.reports = {}, {}, {}, {}
            return True

    def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
        text = checks.written(history)
        with self._lock:
            held = self._current(job, generation)
            if held.history != checks.written(known):
                return False
            held.history = text
            return True

    # --- shards

    def fill(self, job: str, generation: int, epoch: int, shards: Sequence[Shard]) -> bool:
        checks.check_shards(shards)
        with self._lock:
            held = self._current(job, generation)
            if checks.check_epoch(epoch) in held.free:
                return False
            held.free[epoch] = {Shard(*shard) for shard in shards}
            return True

    def lease(
        self,
        job: str,
        generation: int,
        epoch: int,
        rank: int,
        question: int | None = None,
        most: int | None = None,
    ) -> Shard | None:
        with self._lock:
            held = self._current(job, generation)
            free = held.free.get(checks.check_epoch(epoch))
            if question is not None and rank in held.answered:
                number, answer = held.answered[rank]
                if question <= number:
                    return answer
            if not free:
                return None
            shard = min(free)
            free.remove(shard)
            if most and shard.rows > most:
                free.add(Shard(shard.start + most, shard.stop))
                shard = Shard(shard.start, shard.start + most)
            held.held[epoch, shard] = rank
            if question is not None:
                held.answered[rank] = (question, shard)
            return shard

    def done(self, job: str, generation: int, epoch: int, rank: int, start: int, stop: int) -> bool:
        with self._lock:
            held = self._current(job, generation)
            key = (checks.check_epoch(epoch), Shard(start, stop))
            if held.held.get(key) != rank:
                return False
            del held.held[key]
            return True

    # --- what is told

    def report(self, job: str, generation: int, rank: int, facts: Facts) -> bool:
        text = checks.written(facts)
        with self._lock:
            held = self._of(job)
            if held.number != generation:
                return False
            held.reports[rank] = (self._now_ms(), text)
            return True

    def reports(self, job: str) -> list[RankReport]:
        with self._lock:
            held = self._of(job, sign=False)
            return [
                RankReport(held.number or 0, rank, checks.read(text), at_ms)
                for rank, (at_ms, text) in sorted(held.reports.items())
            ]

    def note(self, job: str, event: Facts) -> str:
        text = checks.written(event)
        with self._lock:
            held = self._of(job)
            # As in Redis, ids grow even where the clock does not.
            held.told = max((self._now_ms(), 0), (held.told[0], held.told[1] + 1))
            event_id = f"{held.told[0]}-{held.told[1]}"
            held.events.append((event_id, text))
            del held.events[:-EVENTS_KEPT]
            return event_id

    def events(self, job: str, since: str = "", count: int = 100) -> list[JobEvent]:
        place = keys.event_place(since)
        with self._lock:
            held = self._of(job, sign=False)
            found = [
                JobEvent(event_id, keys.event_place(event_id)[0], checks.read(text))
                for event_id, text in held.events
                if keys.event_place(event_id) > place
            ]
        return found[:count]

    def outcome(self, job: str) -> Facts | None:
        with self._lock:
            text = self._of(job, sign=False).outcome
            return None if text is None else checks.read(text)

    def finish(self, job: str, node_id: str, number: int, outcome: Facts) -> bool:
        text = checks.written(outcome)
        with self._lock:
            held = self._of(job)
            stale = held.number is not None and held.number != number
            if stale or held.outcome is not None or self._leader(held) != keys.check_node(node_id):
                return False
            held.outcome = text
            return True

    def jobs(self) -> list[str]:
        with self._lock:
            since = self._clock() - KEEP_S
            return sorted(job for job, held in self._jobs.items() if held.sign_s > since)

    def close(self) -> None:
        pass

    # --- within the lock

    def _of(self, job: str, sign: bool = True) -> _Job:
        """What is known of a job, made where there is nothing; `sign`: one of its nodes asks."""
        keys.check_job(job)
        now_s = self._clock()
        held = self._jobs.get(job)
        if held is None or held.sign_s <= now_s - KEEP_S:
            held = _Job()
            if sign:
                self._jobs[job] = held
        if sign:
            held.sign_s = now_s
        return held

    def _current(self, job: str, generation: int) -> _Job:
        held = self._of(job)
        if held.number != generation:
            raise checks.superseded(job, generation, held.number)
        return held

    def _living(self, held: _Job) -> dict[str, _Member]:
        now_s = self._clock()
        held.members = {n: m for n, m in held.members.items() if m.deadline_s > now_s}
        return held.members

    def _leader(self, held: _Job) -> str:
        node_id, until_s = held.leader
        return node_id if until_s > self._clock() else ""

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)
