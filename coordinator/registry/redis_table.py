"""The assignment table on Redis: who may write it, its rows, the log, the plan."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from . import keys
from .records import DesiredCount, Epoch, Leadership, LogEntry, Plan, Row, Table
from .redis_session import RedisSession

#: How long things outlive the last leader: beyond that, readers' reports say more than the table.
_TABLE_MS: Final = 3_600_000
_LOG_MS: Final = 7 * 86_400_000
_PLAN_MS: Final = 30 * 86_400_000
_DESIRED_MS: Final = 600_000
#: Events that the log keeps, and changes after which a reader that lags reads the whole table.
_KEPT: Final = 10_000


class RedisTables(RedisSession):
    """See `Registry`: its part that is about assignments."""

    def lead(self, service: str, token: str, ttl_s: float) -> Leadership:
        where = [
            keys.leader(service), keys.assignment(service), keys.assignment_changes(service),
            keys.admitted(service), keys.events(service), keys.plan(service),
        ]  # fmt: skip
        ttl_ms = max(1, round(ttl_s * 1000))
        answer = self._run("lead", where, token, ttl_ms, _TABLE_MS, _LOG_MS, _PLAN_MS)
        leader, term, counter, registry_id, time_ms = answer
        return Leadership(leader, int(term), int(counter), registry_id, int(time_ms))

    def resign(self, service: str, token: str) -> bool:
        return bool(self._run("resign", [keys.leader(service)], token))

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
        where = [
            keys.leader(service), keys.assignment(service), keys.assignment_changes(service),
            keys.admitted(service), keys.events(service),
        ]  # fmt: skip
        probed = admitted or {}
        args: list[str | int] = [
            token, secrets.token_hex(8), *expected, *epoch,
            _TABLE_MS, _LOG_MS, _KEPT, len(rows), len(probed),
        ]  # fmt: skip
        for student, row in rows.items():
            args += [keys.check_member("students", student), "" if row is None else _packed(row)]
        for teacher, incarnation in probed.items():
            args += [teacher, "" if incarnation is None else incarnation]
        for event in events:
            sets = [" ".join(event.before), " ".join(event.after)]
            args += [event.kind, event.subject, event.text, *sets]
        return bool(self._run("write", where, *args))

    def table(self, service: str, since: Epoch | None = None) -> Table:
        where = [keys.assignment(service), keys.assignment_changes(service)]
        if since is not None and self._stands_at(service, since):
            return Table(since, full=False)
        full, term, counter, flat = self._run("table", where, *(since or ("", 0)))
        rows: dict[str, Row] = {}
        gone: list[str] = []
        for student, text in zip(flat[::2], flat[1::2], strict=True):
            if not keys.is_member(student):
                continue
            row = _unpacked(text) if text else None
            if row is not None:
                rows[student] = row
            elif not full:
                gone.append(student)
        return Table((int(term), int(counter)), rows, tuple(gone), bool(full))

    def _stands_at(self, service: str, epoch: Epoch) -> bool:
        """Whether the table does; a script for it would cost many times as much."""
        with self._translated():
            found: Any = self._redis.hmget(keys.assignment(service), ["=term", "=counter"])
        return bool(found == [str(part) for part in epoch])

    def admitted(self, service: str) -> dict[str, int]:
        with self._translated():
            found: Any = self._redis.hgetall(keys.admitted(service))
        return {
            teacher: _number(incarnation)
            for teacher, incarnation in found.items()
            if keys.is_member(teacher) and incarnation.isdigit()
        }

    def events(self, service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        keys.event_place(after)
        key, start = keys.events(service), f"({after}" if after else "-"
        with self._translated():
            found: Any
            if last:
                found = self._redis.xrevrange(key, "+", start, count=last)
                found.reverse()
            else:
                found = self._redis.xrange(key, start, "+")
        return [_entry(event_id, fields or {}) for event_id, fields in found]

    def plan(self, service: str) -> Plan:
        with self._translated():
            found: Any = self._redis.hgetall(keys.plan(service))
        return Plan(
            found.get("content_id", ""),
            found.get("next_content_id", ""),
            found.get("at", ""),
            _number(found.get("version", "")),
            _number(found.get("since_ms", "")),
        )

    def set_plan(self, service: str, plan: Plan, expected_version: int) -> bool:
        contents = plan.content_id, plan.next_content_id, plan.at
        where = [keys.plan(service)]
        return bool(self._run("plan", where, expected_version, *contents, _PLAN_MS))

    def move_plan(
        self, service: str, token: str, epoch: Epoch, plan: Plan, entry: LogEntry
    ) -> bool:
        where = [
            keys.leader(service), keys.assignment(service), keys.plan(service),
            keys.events(service),
        ]  # fmt: skip
        args: list[str | int] = [
            token, *epoch, plan.version, plan.content_id, plan.next_content_id, plan.at,
            _PLAN_MS, _LOG_MS, _KEPT, entry.kind, entry.subject, entry.text,
        ]  # fmt: skip
        return bool(self._run("move_plan", where, *args))

    def desired(self, service: str) -> DesiredCount | None:
        with self._translated():
            found: Any = self._redis.hgetall(keys.desired(service))
        count = found.get("count", "")
        if not (count.isascii() and count.isdigit() and len(count) <= 9):
            return None
        since_ms, at_ms = _number(found.get("since_ms", "")), _number(found.get("at_ms", ""))
        return DesiredCount(int(count), found.get("reason", ""), since_ms, at_ms)

    def set_desired(
        self, service: str, token: str, count: int, reason: str, entry: LogEntry | None = None
    ) -> bool:
        where = [keys.leader(service), keys.desired(service), keys.events(service)]
        args: list[str | int] = [token, count, reason, _DESIRED_MS, _LOG_MS, _KEPT]
        if entry is not None:
            args += [entry.kind, entry.subject, entry.text]
        return bool(self._run("desired", where, *args))


def _packed(row: Row) -> str:
    values = {
        "teachers": row.teachers,
        "lost": row.lost,
        "content_id": row.content_id,
        "next_content_id": row.next_content_id,
        "data_epoch": row.data_epoch,
        "counter": row.counter,
        "reason": row.reason,
        "incarnation": row.incarnation,
    }
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def _unpacked(text: str) -> Row | None:
    """The row; None for what no leader of ours would write."""
    try:
        values = json.loads(text)
        row = Row(
            **{**values, "teachers": tuple(values["teachers"]), "lost": tuple(values["lost"])}
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (*row.teachers, *row.lost, row.content_id, row.next_content_id, row.reason)
    numbers = (row.data_epoch, row.counter, row.incarnation)
    sound = all(isinstance(part, str) for part in texts) and all(
        type(part) is int and 0 <= part < 2**64 for part in numbers
    )
    return row if sound else None


def _entry(event_id: str, fields: Mapping[str, str]) -> LogEntry:
    return LogEntry(
        fields.get("kind", ""),
        fields.get("subject", ""),
        fields.get("text", ""),
        tuple(fields.get("before", "").split()),
        tuple(fields.get("after", "").split()),
        event_id,
        int(event_id.split("-")[0]),
    )


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
