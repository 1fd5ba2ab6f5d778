"""The job board in Redis or Valkey: one script for each thing that is done, in Redis time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final

from ...errors import RegistryUnavailable
from ...scheduler.students.shards import Shard
from ..registry.redis_session import RedisSession
from . import checks, keys
from .board import EVENTS_KEPT, KEEP_S, Facts, GenerationRecord, JobEvent, Node, RankReport

_KEEP_MS: Final = round(KEEP_S * 1000)


class RedisBoard(RedisSession):
    """See `JobBoard`."""

    scripts: ClassVar[str] = __package__

    # --- nodes

    def join(self, job: str, node_id: str, facts: Facts, ttl_s: float, since: int = 0) -> int:
        ttl_ms = checks.check_ttl(ttl_s)
        text, node = checks.written(facts), keys.check_node(node_id)
        joined = int(self._of(job, "join", node, ttl_ms, text, since))
        self._sign(job)
        return joined

    def beat(self, job: str, node_id: str, facts: Facts | None = None) -> bool:
        told = () if facts is None else (checks.written(facts),)
        return bool(self._of(job, "beat", keys.check_node(node_id), *told))

    def leave(self, job: str, node_id: str) -> None:
        self._of(job, "leave", keys.check_node(node_id))

    def nodes(self, job: str) -> list[Node]:
        now_ms, *found = self._of(job, "nodes")
        living = []
        for node_id, deadline, text in zip(found[::3], found[1::3], found[2::3], strict=True):
            joined, _, facts = text.partition(" ")
            if keys.is_node(node_id) and joined.isdigit():
                left_s = (float(deadline) - int(now_ms)) / 1000
                told = checks.read(facts.partition(" ")[2])
                living.append(Node(node_id, told, int(joined), left_s))
        return sorted(living, key=lambda node: node.joined)

    # --- the lead, and generations

    def lead(self, job: str, node_id: str, ttl_s: float) -> bool:
        node = keys.check_node(node_id)
        leads = bool(self._of(job, "lead", node, checks.check_ttl(ttl_s)))
        if leads:
            self._sign(job)
        return leads

    def resign(self, job: str, node_id: str) -> None:
        self._of(job, "resign", keys.check_node(node_id))

    def generation(self, job: str) -> GenerationRecord | None:
        with self._translated():
            found: Any = self._redis.hgetall(keys.of_job(job, "generation"))
        if not found:
            return None
        try:
            return GenerationRecord(
                int(found["number"]),
                checks.read(found["body"]),
                int(found["at_ms"]),
                checks.read(found.get("history", checks.NO_FACTS)),
            )
        except (KeyError, ValueError):
            raise RegistryUnavailable(
                f"what Redis at {self.url} holds as the generation of job {job} was not written by"
                " us; delete that key, or name the job otherwise"
            ) from None

    def publish(
        self,
        job: str,
        node_id: str,
        number: int,
        body: Facts,
        history: tuple[Facts, Facts] | None = None,
    ) -> bool:
        node, text = keys.check_node(node_id), checks.written(body)
        histories = [checks.written(one) for one in history or ()]
        return bool(self._of(job, "publish", node, number, text, *histories))

    def replace_history(self, job: str, generation: int, known: Facts, history: Facts) -> bool:
        texts = checks.written(known), checks.written(history)
        return bool(self._asked(job, "history", generation, *texts))

    # --- shards

    def fill(self, job: str, generation: int, epoch: int, shards: Sequence[Shard]) -> bool:
        laid = " ".join(f"{start}:{stop}" for start, stop in checks.check_shards(shards))
        return bool(self._asked(job, "fill", generation, checks.check_epoch(epoch), laid))

    def lease(
        self,
        job: str,
        generation: int,
        epoch: int,
        rank: int,
        question: int | None = None,
        most: int | None = None,
    ) -> Shard | None:
        asked = "" if question is None else question
        epoch = checks.check_epoch(epoch)
        found = self._asked(job, "lease", generation, epoch, rank, asked, most or "")
        return Shard(int(found[0]), int(found[1])) if found else None

    def done(self, job: str, generation: int, epoch: int, rank: int, start: int, stop: int) -> bool:
        shard = f"{checks.check_epoch(epoch)}:{start}:{stop}"
        return bool(self._asked(job, "done", generation, shard, rank))

    # --- what is told

    def report(self, job: str, generation: int, rank: int, facts: Facts) -> bool:
        return bool(self._of(job, "report", generation, rank, checks.written(facts)))

    def reports(self, job: str) -> list[RankReport]:
        number, *found = self._of(job, "reports")
        told = []
        for rank, text in zip(found[::2], found[1::2], strict=True):
            at_ms, _, facts = text.partition(" ")
            if rank.isdigit() and at_ms.isdigit():
                told.append(RankReport(int(number), int(rank), checks.read(facts), int(at_ms)))
        return sorted(told, key=lambda report: report.rank)

    def note(self, job: str, event: Facts) -> str:
        return str(self._of(job, "note", checks.written(event), EVENTS_KEPT))

    def events(self, job: str, since: str = "", count: int = 100) -> list[JobEvent]:
        keys.event_place(since)
        with self._translated():
            found: Any = self._redis.xrange(
                keys.of_job(job, "events"), f"({since}" if since else "-", count=count
            )
        return [
            JobEvent(event_id, keys.event_place(event_id)[0], checks.read(fields.get("body", "")))
            for event_id, fields in found
        ]

    def outcome(self, job: str) -> Facts | None:
        with self._translated():
            text: Any = self._redis.get(keys.of_job(job, "outcome"))
        return None if text is None else checks.read(text)

    def finish(self, job: str, node_id: str, number: int, outcome: Facts) -> bool:
        node, text = keys.check_node(node_id), checks.written(outcome)
        return bool(self._of(job, "finish", node, number, text))

    def jobs(self) -> list[str]:
        since_ms = self.time_ms() - _KEEP_MS
        with self._translated():
            found: Any = self._redis.zrangebyscore(keys.JOBS, since_ms, "+inf")
        return sorted(job for job in found if keys.is_job(job))

    # --- how it is done

    def _of(self, job: str, name: str, *args: str | int) -> Any:
        """A script over the keys of one job."""
        return self._run(name, keys.all_of_job(job), *args)

    def _asked(self, job: str, name: str, generation: int, *args: str | int) -> Any:
        """A script in the name of a generation; it answers in text where that is another one."""
        answer = self._of(job, name, generation, *args)
        if isinstance(answer, str):
            raise checks.superseded(job, generation, int(answer) if answer.isdigit() else None)
        return answer

    def _sign(self, job: str) -> None:
        """Note that the job lives; in another slot than its own keys."""
        now_ms = self.time_ms()
        with self._translated(), self._redis.pipeline(transaction=False) as pipe:
            pipe.zadd(keys.JOBS, {job: now_ms})
            pipe.zremrangebyscore(keys.JOBS, "-inf", now_ms - _KEEP_MS)
            pipe.pexpire(keys.JOBS, _KEEP_MS)
            pipe.execute()
