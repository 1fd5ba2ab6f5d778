"""The values that a registry takes and hands out, and which changed facts are news."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ..store import Leads, LogRecord

Kind = Literal["teachers", "students", "managers"]

#: (term, counter): orders the states of an assignment table; one never written is at (0, 0).
Epoch = tuple[int, int]

#: Fact of a teacher whose lease was given up for it: why, in words.
GIVEN_UP: Final = "given_up"


@dataclass(frozen=True, slots=True)
class ServiceLeadership:
    """Who computes the assignments of a service, and the epoch of the table.

    Attributes:
        fence: the leader, under its fencing token; its writes carry it.
        epoch: (term, counter) of the table, which the next write has to expect; (0, 0): no table.
        registry_id: changes when another server process answers: restarted, or after a fail-over.
        time_ms: the registry's clock, milliseconds since 1970.
    """

    fence: Leads
    epoch: Epoch
    registry_id: str
    time_ms: int = 0

    @property
    def leader(self) -> str:
        """Name of the leader."""
        return self.fence.holder


@dataclass(frozen=True, slots=True)
class Row:
    """The assignment of one student.

    Attributes:
        teachers: ids of the teachers that it is advised to send to.
        lost: ids of teachers known dead: what they have in flight is resent at once.
        content_id: content that all of `teachers` serve.
        next_content_id: content that the student moves to at its next epoch; empty: it stays.
        data_epoch: of the report that this was made from.
        counter: second part of the epoch of the write that brought it.
        reason: why it is what it is, in words.
        incarnation: of the student that it was made for.
    """

    teachers: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0
    counter: int = 0
    reason: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the assignment table.

    Attributes:
        epoch: of the whole table.
        rows: student id -> row; all, or those written since the epoch that was asked from.
        gone: ids of students whose rows were taken out since; empty when `full`.
        full: `rows` are all that there are.
    """

    epoch: Epoch = (0, 0)
    rows: Mapping[str, Row] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    full: bool = True


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One event of a service's log; `id` and `time_ms` are given by the registry.

    Attributes:
        kind: "registered", "left", "lost", "draining", ... (message `Event`).
        subject: who it is about.
        text: what happened and why, in words.
        before: for "assigned": ids of the set before.
        after: ids of the set after.
        id: its place in the log; grows with time.
        time_ms: when, milliseconds since 1970 of the registry's clock.
    """

    kind: str
    subject: str
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    id: str = ""
    time_ms: int = 0


@dataclass(frozen=True, slots=True)
class DesiredCount:
    """How many teachers a service should have, as its leader has said last.

    Attributes:
        count: so many.
        reason: why, in words.
        since_ms: since when it is so many, by the registry's clock; given by the registry.
        at_ms: when the leader said so last, by the same.
    """

    count: int
    reason: str = ""
    since_ms: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Which content a service is meant to serve; an upgrade runs while `next_content_id` is set.

    Attributes:
        content_id: the declared content; empty: whatever came first.
        next_content_id: what it moves to; empty: no upgrade runs.
        at: "epoch": each student when it begins its next one; "now": at once.
        version: grows with each change; 0: nobody declared anything.
        since_ms: when it was changed last, by the registry's clock; given by the registry.
    """

    content_id: str = ""
    next_content_id: str = ""
    at: str = ""
    version: int = 0
    since_ms: int = 0


def pack_row(row: Row) -> str:
    """A row as JSON."""
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


def unpack_row(text: str) -> Row | None:
    """The row that `pack_row` made; None for what no leader of ours would write."""
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


def log_entry(record: LogRecord) -> LogEntry:
    """An entry of the log as the store keeps it."""
    told = record.fields
    return LogEntry(
        told.get("kind", ""),
        told.get("subject", ""),
        told.get("text", ""),
        tuple(told.get("before", "").split()),
        tuple(told.get("after", "").split()),
        record.id,
        record.time_ms,
    )


#: Facts of a teacher that change with every batch.
_VOLATILE: Final = frozenset({"in_flight", "samples_per_second"})
#: Facts of a student on which assignments depend.
_WANTED: Final = frozenset(
    {
        "want", "min", "priority", "needed", "state", "unreachable", "unavailable", "cut_off",
        "data_epoch", "content_id", "incarnation", "t_t_seconds", "t_s_seconds", "host", "owner",
        "secret",
    }
)  # fmt: skip
#: Measured: only a move by more than a tenth is news.
_MEASURED: Final = frozenset({"t_t_seconds", "t_s_seconds"})
_NEWS: Final = 0.1


def are_volatile(facts: Iterable[str]) -> bool:
    """Whether these facts of a teacher change all the time, so that they may be told late."""
    return _VOLATILE.issuperset(facts)


def concerns_managers(
    kind: Kind, facts: Iterable[str] | Mapping[str, str], noted: Mapping[str, str] | None = None
) -> bool:
    """Whether a change of these facts is noted for managers.

    Args:
        kind: whose facts.
        facts: those that changed; their names are enough without `noted`.
        noted: the facts as they were when managers were last told, not merely last written, so
            that many small steps add up. With it, a measured time that moved by less than a tenth
            is no news, nor is a student's state that changes between others than "starved".
    """
    told = set(facts)
    concerning = told & _WANTED if kind == "students" else told - _VOLATILE
    if noted is None or not isinstance(facts, Mapping):
        return bool(concerning)
    return any(_is_news(kind, name, noted.get(name), facts[name]) for name in concerning)


def _is_news(kind: Kind, name: str, before: str | None, now: str) -> bool:
    if before is None or before == now:
        return before is None
    if name in _MEASURED:
        return _moved(before, now)
    if name == "state" and kind == "students":
        return (before == "starved") != (now == "starved")
    return True


def _moved(before: str, now: str) -> bool:
    try:
        old, new = float(before), float(now)
    except ValueError:
        return True
    if not (math.isfinite(old) and math.isfinite(new)):
        return True
    return abs(new - old) > _NEWS * abs(old)
