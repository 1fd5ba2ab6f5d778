"""The queue within one process: the twin of the one in Redis."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..jobs import checks
from ..jobs.board import Facts
from ..registry.keys import event_place
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


@dataclass(slots=True)
class _Stream:
    """Entries whose ids grow even where the clock does not, as in Redis; texts are JSON."""

    kept: int
    entries: list[tuple[str, str]] = field(default_factory=list)
    last: tuple[int, int] = (0, 0)

    def add(self, now_ms: int, text: str) -> str:
        self.last = max((now_ms, 0), (self.last[0], self.last[1] + 1))
        entry_id = f"{self.last[0]}-{self.last[1]}"
        self.entries.append((entry_id, text))
        del self.entries[: -self.kept]
        return entry_id

    def read(self, since: str, count: int) -> list[Entry]:
        place = event_place(since)
        found = [
            Entry(entry_id, event_place(entry_id)[0], checks.read(text))
            for entry_id, text in self.entries
            if event_place(entry_id) > place
        ]
        return found[:count]


@dataclass(slots=True)
class _Job:
    """What is known of one job; texts are JSON, as in Redis."""

    number: int
    spec: str
    at_ms: int
    wish: str = "{}"
    progress: str = "{}"
    ended: bool = False
    log: _Stream = field(default_factory=lambda: _Stream(PIECES_KEPT))


class MemoryQueue:
    """See `QueueBoard`.

    Args:
        clock: seconds since 1970.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._number = 0
        self._jobs: dict[str, _Job] = {}
        self._runner: tuple[str, str, float] = ("", "{}", 0.0)  # id, facts, deadline
        self._reserved: dict[str, tuple[int, int, float]] = {}  # slots, number, deadline
        self._reservation = 0
        self._events = _Stream(EVENTS_KEPT)

    def time_ms(self) -> int:
        return int(self._clock() * 1000)

    # --- what operators do

    def submit(self, name: str, spec: Facts) -> int | None:
        text = checks.written(spec)
        keys.check_name("job", name)
        with self._lock:
            if name in self._jobs and not self._jobs[name].ended:
                return None
            over = [one for one, job in self._jobs.items() if job.ended and one != name]
            over.sort(key=lambda one: self._jobs[one].number)
            for one in over[: max(0, len(over) - ENDED_KEPT)]:
                del self._jobs[one]
            self._number += 1
            self._jobs[name] = _Job(self._number, text, self.time_ms())
            return self._number

    def wish(self, name: str, wish: Wish) -> bool:
        text = checks.written(wish.to_json())
        with self._lock:
            job = self._jobs.get(keys.check_name("job", name))
            if job is None or job.ended:
                return False
            job.wish = text
            return True

    def jobs(self) -> list[QueuedJob]:
        with self._lock:
            found = [
                QueuedJob(
                    name,
                    job.number,
                    checks.read(job.spec),
                    job.at_ms,
                    Wish.from_json(checks.read(job.wish)),
                    Progress.from_json(checks.read(job.progress)),
                )
                for name, job in self._jobs.items()
            ]
        return sorted(found, key=lambda job: job.number)

    def runner(self) -> Runner | None:
        with self._lock:
            runner_id, facts, until_s = self._runner
            left_s = until_s - self._clock()
            return Runner(runner_id, checks.read(facts), left_s) if self._holder() else None

    # --- reservations

    def reserve(self, name: str, slots: int, ttl_s: float) -> int:
        keys.check_name("reservation", name)
        slots, until_s = keys.check_slots(slots), checks.check_ttl(ttl_s) / 1000 + self._clock()
        with self._lock:
            known = self._living().get(name)
            if known is None:
                self._reservation += 1
            number = known[1] if known else self._reservation
            self._reserved[name] = (slots, number, until_s)
            return number

    def unreserve(self, name: str) -> None:
        with self._lock:
            self._reserved.pop(keys.check_name("reservation", name), None)

    def reservations(self) -> list[Reservation]:
        with self._lock:
            living = [
                Reservation(name, slots, number, until_s - self._clock())
                for name, (slots, number, until_s) in self._living().items()
            ]
        return sorted(living, key=lambda one: one.number)

    # --- what the runner does

    def take(self, runner_id: str, facts: Facts, ttl_s: float) -> bool:
        text, ttl_s = checks.written(facts), checks.check_ttl(ttl_s) / 1000
        keys.check_name("runner", runner_id)
        with self._lock:
            if self._holder() not in ("", runner_id):
                return False
            self._runner = (runner_id, text, self._clock() + ttl_s)
            return True

    def resign(self, runner_id: str) -> None:
        with self._lock:
            if self._holder() == keys.check_name("runner", runner_id):
                self._runner = ("", "{}", 0.0)

    def tell(self, runner_id: str, name: str, number: int, progress: Progress) -> bool:
        keys.check_name("runner", runner_id)
        text = checks.written(progress.to_json())
        with self._lock:
            job = self._jobs.get(keys.check_name("job", name))
            if job is None or job.number != number or self._holder() != runner_id:
                return False
            job.progress, job.ended = text, progress.ended
            return True

    def log(self, runner_id: str, name: str, lines: Sequence[str]) -> bool:
        keys.check_name("runner", runner_id)
        text = checks.written({"lines": list(lines)})
        with self._lock:
            job = self._jobs.get(keys.check_name("job", name))
            if job is None or self._holder() != runner_id:
                return False
            job.log.add(self.time_ms(), text)
            return True

    # --- what happened

    def lines(self, name: str, since: str = "", count: int = 100) -> list[Entry]:
        event_place(since)
        with self._lock:
            job = self._jobs.get(keys.check_name("job", name))
            return job.log.read(since, count) if job else []

    def note(self, event: Mapping[str, Any]) -> str:
        text = checks.written(event)
        with self._lock:
            return self._events.add(self.time_ms(), text)

    def events(self, since: str = "", count: int = 100) -> list[Entry]:
        with self._lock:
            return self._events.read(since, count)

    def close(self) -> None:
        pass

    # --- within the lock

    def _holder(self) -> str:
        runner_id, _, until_s = self._runner
        return runner_id if until_s > self._clock() else ""

    def _living(self) -> dict[str, tuple[int, int, float]]:
        now_s = self._clock()
        self._reserved = {name: one for name, one in self._reserved.items() if one[2] > now_s}
        return self._reserved
