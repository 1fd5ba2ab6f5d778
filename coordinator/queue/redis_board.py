"""The queue in Redis or Valkey: one script for each thing that is done, in Redis time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ..jobs import checks
from ..jobs.board import Facts
from ..registry.keys import event_place
from ..registry.redis_session import RedisSession
from . import keys
from .board import (
    ENDED_KEPT,
    EVENTS_KEPT,
    PIECES_KEPT,
    Entry,
    Progress,
    QueuedJob,
    Reservation,
    Runner,
    Wish,
)


class RedisQueue(RedisSession):
    """See `QueueBoard`.

    Args:
        url: any that `redis_url.parse` takes.
        queue: its name.
        timeout_s: seconds for a connection, and for each answer.
    """

    scripts: ClassVar[str] = __package__

    def __init__(self, url: str, queue: str = "main", timeout_s: float = 1.0) -> None:
        super().__init__(url, timeout_s)
        self._queue = keys.check_name("queue", queue)
        self._keys = keys.all_of_queue(queue)

    # --- what operators do

    def submit(self, name: str, spec: Facts) -> int | None:
        logs = keys.of_queue(self._queue, "log:")
        number = self._of_job("submit", name, checks.written(spec), ENDED_KEPT, logs)
        return int(number) or None

    def wish(self, name: str, wish: Wish) -> bool:
        keys.check_name("job", name)
        return bool(self._of("wish", name, checks.written(wish.to_json())))

    def jobs(self) -> list[QueuedJob]:
        found = self._of("jobs")
        jobs = []
        for name, spec, wish, progress in zip(*(found[n::4] for n in range(4)), strict=True):
            number, _, rest = spec.partition(" ")
            at_ms, _, text = rest.partition(" ")
            if not (keys.is_name(name) and number.isdigit() and at_ms.isdigit()):
                continue
            told = Progress.from_json(checks.read(progress.partition(" ")[2]))
            asked = Wish.from_json(checks.read(wish))
            jobs.append(QueuedJob(name, int(number), checks.read(text), int(at_ms), asked, told))
        return sorted(jobs, key=lambda job: job.number)

    def runner(self) -> Runner | None:
        found = self._of("runner")
        if not found:
            return None
        runner_id, _, facts = found[0].partition(" ")
        return Runner(runner_id, checks.read(facts), int(found[1]) / 1000)

    # --- reservations

    def reserve(self, name: str, slots: int, ttl_s: float) -> int:
        keys.check_name("reservation", name)
        slots = keys.check_slots(slots)
        return int(self._of("reserve", name, slots, checks.check_ttl(ttl_s)))

    def unreserve(self, name: str) -> None:
        keys.check_name("reservation", name)
        with self._translated():
            self._redis.hdel(keys.of_queue(self._queue, "reserved"), name)

    def reservations(self) -> list[Reservation]:
        found = self._of("reservations")
        living = [
            Reservation(name, int(slots), int(number), int(left_ms) / 1000)
            for name, slots, number, left_ms in zip(*(found[n::4] for n in range(4)), strict=True)
            if keys.is_name(name)
        ]
        return sorted(living, key=lambda one: one.number)

    # --- what the runner does

    def take(self, runner_id: str, facts: Facts, ttl_s: float) -> bool:
        keys.check_name("runner", runner_id)
        return bool(self._of("take", runner_id, checks.written(facts), checks.check_ttl(ttl_s)))

    def resign(self, runner_id: str) -> None:
        self._of("resign", keys.check_name("runner", runner_id))

    def tell(self, runner_id: str, name: str, number: int, progress: Progress) -> bool:
        keys.check_name("runner", runner_id)
        keys.check_name("job", name)
        text = checks.written(progress.to_json())
        return bool(self._of("tell", runner_id, name, number, int(progress.ended), text))

    def log(self, runner_id: str, name: str, lines: Sequence[str]) -> bool:
        keys.check_name("runner", runner_id)
        body = checks.written({"lines": list(lines)})
        return bool(self._of_job("log", name, runner_id, body, PIECES_KEPT))

    # --- what happened

    def lines(self, name: str, since: str = "", count: int = 100) -> list[Entry]:
        return self._entries(keys.log_of(self._queue, name), since, count)

    def note(self, event: Mapping[str, Any]) -> str:
        return str(self._of("note", checks.written(event), EVENTS_KEPT))

    def events(self, since: str = "", count: int = 100) -> list[Entry]:
        return self._entries(keys.of_queue(self._queue, "events"), since, count)

    # --- how it is done

    def _of(self, name: str, *args: str | int) -> Any:
        """A script over the keys of the queue."""
        return self._run(name, self._keys, *args)

    def _of_job(self, name: str, job: str, *args: str | int) -> Any:
        """A script over these and a job's log."""
        return self._run(name, [*self._keys, keys.log_of(self._queue, job)], job, *args)

    def _entries(self, key: str, since: str, count: int) -> list[Entry]:
        event_place(since)
        with self._translated():
            found: Any = self._redis.xrange(key, f"({since}" if since else "-", count=count)
        return [
            Entry(entry_id, event_place(entry_id)[0], checks.read(fields.get("body", "")))
            for entry_id, fields in found
        ]
