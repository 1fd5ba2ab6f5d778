"""The assignment table within one process: who may write it, its rows, the log, the plan."""

from __future__ import annotations

import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from . import keys
from .records import DesiredCount, Epoch, Leadership, LogEntry, Plan, Row, Table

EVENTS = 10_000
_DESIRED_S = 600.0


@dataclass(slots=True)
class _Service:
    """What one service's leader writes."""

    leader: str = ""
    leads_until_s: float = 0.0
    epoch: Epoch = (0, 0)
    rows: dict[str, Row] = field(default_factory=dict)
    changed: dict[str, int] = field(default_factory=dict)
    admitted: dict[str, int] = field(default_factory=dict)
    events: list[LogEntry] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    desired: DesiredCount | None = None


class MemoryTables:
    """See `Registry`: its part that is about assignments.

    Args:
        clock: seconds since 1970.
        check: raises RegistryUnavailable during an outage.
        events: how many the log of a service keeps.
    """

    def __init__(self, clock: Callable[[], float], check: Callable[[], None], events: int) -> None:
        self._clock = clock
        self._events = events
        self._check = check
        self._lock = threading.RLock()
        self._services: defaultdict[str, _Service] = defaultdict(_Service)
        self._registry_id = secrets.token_hex(20)

    def lead(self, service: str, token: str, ttl_s: float) -> Leadership:
        with self._lock:
            held, now = self._open(service)
            if self._leader(held, now) in ("", token):
                held.leader, held.leads_until_s = token, now + ttl_s
            return Leadership(held.leader, *held.epoch, self._registry_id, int(now * 1000))

    def resign(self, service: str, token: str) -> bool:
        with self._lock:
            held, now = self._open(service)
            if self._leader(held, now) != token:
                return False
            held.leader = ""
            return True

    def write(
        self,
        service: str,
        token: str,
        expected: Epoch,
        epoch: Epoch,
        rows: Mapping[str, Row | None],
        events: Sequence[LogEntry] = (),
        admitted: Mapping[str, int | None] | None = None,
    ) -> bool:
        keys.check_epochs(expected, epoch, rows)
        for student in rows:
            keys.check_member("students", student)
        with self._lock:
            held, now = self._open(service)
            if self._leader(held, now) != token or held.epoch != expected:
                return False
            if epoch[0] != expected[0]:
                held.changed.clear()
            held.epoch = epoch
            for student, row in rows.items():
                held.rows.pop(student, None)
                if row is not None:
                    held.rows[student] = row
                held.changed[student] = epoch[1]
            for teacher, incarnation in (admitted or {}).items():
                held.admitted.pop(teacher, None)
                if incarnation is not None:
                    held.admitted[teacher] = incarnation
            for event in events:
                self._append(held, event, int(now * 1000))
            return True

    def table(self, service: str, since: Epoch | None = None) -> Table:
        with self._lock:
            held, _ = self._open(service)
            if since is None or since[0] != held.epoch[0] or since[1] > held.epoch[1]:
                return Table(held.epoch, dict(held.rows))
            changed = [student for student, at in held.changed.items() if at > since[1]]
            rows = {student: held.rows[student] for student in changed if student in held.rows}
            gone = tuple(student for student in changed if student not in held.rows)
            return Table(held.epoch, rows, gone, full=False)

    def admitted(self, service: str) -> dict[str, int]:
        with self._lock:
            return dict(self._open(service)[0].admitted)

    def events(self, service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        start = keys.event_place(after)
        with self._lock:
            found = [e for e in self._open(service)[0].events if keys.event_place(e.id) > start]
            return found[-last:] if last else found

    def plan(self, service: str) -> Plan:
        with self._lock:
            return self._open(service)[0].plan

    def set_plan(self, service: str, plan: Plan, expected_version: int) -> bool:
        with self._lock:
            held, now = self._open(service)
            if held.plan.version != expected_version:
                return False
            held.plan = replace(plan, version=expected_version + 1, since_ms=int(now * 1000))
            return True

    def move_plan(
        self, service: str, token: str, epoch: Epoch, plan: Plan, entry: LogEntry
    ) -> bool:
        with self._lock:
            held, now = self._open(service)
            if self._leader(held, now) != token or held.epoch != epoch:
                return False
            if not self.set_plan(service, plan, plan.version):
                return False
            self._append(held, entry, int(now * 1000))
            return True

    def desired(self, service: str) -> DesiredCount | None:
        with self._lock:
            held, now = self._open(service)
            if held.desired is not None and now * 1000 >= held.desired.at_ms + _DESIRED_S * 1000:
                held.desired = None
            return held.desired

    def set_desired(
        self, service: str, token: str, count: int, reason: str, entry: LogEntry | None = None
    ) -> bool:
        with self._lock:
            before = self.desired(service)
            held, now = self._open(service)
            if self._leader(held, now) != token:
                return False
            now_ms = int(now * 1000)
            same = before is not None and before.count == count
            since_ms = before.since_ms if before is not None and same else now_ms
            held.desired = DesiredCount(count, reason, since_ms, now_ms)
            if entry is not None:
                self._append(held, entry, now_ms)
            return True

    def clear(self) -> None:
        """Forget everything, as another server process that kept nothing."""
        with self._lock:
            self._services.clear()
            self._registry_id = secrets.token_hex(20)

    def _open(self, service: str) -> tuple[_Service, float]:
        keys.check_service(service)
        self._check()
        return self._services[service], self._clock()

    def _leader(self, held: _Service, now: float) -> str:
        return held.leader if held.leads_until_s > now else ""

    def _append(self, held: _Service, event: LogEntry, now_ms: int) -> None:
        last_ms, number = keys.event_place(held.events[-1].id) if held.events else (0, 0)
        place = (now_ms, 0) if now_ms > last_ms else (last_ms, number + 1)
        held.events.append(replace(event, id=f"{place[0]}-{place[1]}", time_ms=place[0]))
        del held.events[: -self._events]
