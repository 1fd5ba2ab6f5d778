"""The schema of the registry: Redis keys, stored values, and which changes managers have to see.

`{s}` is a cluster hash tag: all keys of one service are in one slot, so that scripts can use them
together. The managers' keys share the slot of `edl:managers` in the same way.

| key | type | holds |
|---|---|---|
| `edl:services` | zset | service -> time of its last recorded use (ms, Redis time) |
| `edl:managers` | zset, expires | manager address -> deadline (ms, Redis time) |
| `edl:{edl:managers}:manager:<address>` | hash, expires | facts of a manager |
| `edl:{edl:managers}:managers:changes` | zset, expires | manager address -> change number |
| `edl:{s}:teachers` | zset, expires | teacher id -> deadline |
| `edl:{s}:teacher:<id>` | hash, expires | facts of a teacher: `Teacher` and others |
| `edl:{s}:students` | zset, expires | student id -> deadline |
| `edl:{s}:student:<job/rank>` | hash, expires | `StudentReport`, owner, secret, manager |
| `edl:{s}:teachers:changes`, `edl:{s}:students:changes` | zset, expires | member -> change number |
| `edl:{s}:leader` | hash, expires | the manager that assigns: holder, token, until_ms |
| `edl:{s}:assignment` | hash, expires | student id -> row (JSON); `=term`, `=counter`, ... |
| `edl:{s}:assignment:changes` | zset, expires | student id -> counter of its last change |
| `edl:{s}:admitted` | hash, expires | teacher id -> admitted incarnation (0: any), or refusal |
| `edl:{s}:plan` | hash, expires | content_id, next_content_id, at, version, since_ms, `=write` |
| `edl:{s}:desired` | hash, expires | desired teachers: count, reason, since_ms, at_ms, `=write` |
| `edl:{s}:events` | stream, capped, expires | the log: the fields of message `Event` |
| `edl:write-check` | list | always missing: RPUSHX tests whether writes are accepted |

No member id begins with `=`. In a hash, `=term` and `=counter` are the version, changes up to
number `=floor` are deleted, and `=write` is the id of the latest write (`store.records.Once`). In a
zset of changes, `=` and an id stand for a member that ended its lease.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Final, Literal

from ...proto.dataclass_json import from_plain
from ...runtime.errors import WireError
from ...scheduler.rates import is_notable_change
from ..store.records import Leads, LeaseSet, LogRecord, check_name
from ..store.records import check_member as check_member_id

Kind = Literal["teachers", "students", "managers"]

#: (term, counter): the version of an assignment table; (0, 0): it was never written.
TableVersion = tuple[int, int]

#: Fact of a teacher whose sidecar ended its lease as if it had died: the reason, as text.
GIVEN_UP: Final = "given_up"

SERVICES: Final = "edl:services"
MANAGERS: Final = "edl:managers"

_SINGULAR: Final[dict[Kind, str]] = {
    "teachers": "teacher",
    "students": "student",
    "managers": "manager",
}


def check_service(service: str) -> str:
    """Return `service`. Raises UsageError if the name is invalid."""
    return check_name("the name of a service", service)


def check_member(kind: Kind, member: str) -> str:
    """Return `member`. Raises UsageError if the id is invalid."""
    return check_member_id(f"the id of a {_SINGULAR[kind]}", member)


@lru_cache(maxsize=4096)
def lease_set(kind: Kind, service: str) -> LeaseSet:
    """Return the lease set of members of a service; managers read its changes.

    Raises:
        UsageError: the name of the service is invalid.
    """
    slot = MANAGERS if kind == "managers" else check_service(service)
    prefix = f"edl:{{{slot}}}:"
    return LeaseSet(
        MANAGERS if kind == "managers" else f"{prefix}{kind}",
        f"{prefix}{_SINGULAR[kind]}:",
        f"{prefix}{kind}:changes",
    )


@lru_cache(maxsize=1 << 15)
def service_key(service: str, name: str) -> str:
    """Return the key `name` of a service. Raises UsageError if the service's name is invalid."""
    return f"edl:{{{check_service(service)}}}:{name}"


@dataclass(frozen=True, slots=True)
class ServiceLeadership:
    """The leader of a service, and the version of the assignment table.

    Attributes:
        fence: the leader and its fencing token; all its writes carry it.
        table_version: version of the table, as the next write expects it.
        registry_id: id of the Redis process, which changes with a restart or failover.
        time_ms: the registry's clock, milliseconds since 1970.
    """

    fence: Leads
    table_version: TableVersion
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
        teachers: ids of the teachers that it should use.
        lost: ids of teachers known to be dead: their requests in flight are sent again at once.
        content_id: content that all of `teachers` serve.
        next_content_id: content that the student moves to at its next epoch; empty: none.
        data_epoch: epoch of the student's data, in the report that the row is based on.
        counter: counter of the table's version when the row was written.
        reason: reason of the assignment, as text.
        incarnation: incarnation of the student.
    """

    teachers: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    content_id: str = ""
    next_content_id: str = ""
    data_epoch: int = 0
    counter: int = 0
    reason: str = ""
    incarnation: int = 0


_ROW_FIELDS: Final = tuple(row_field.name for row_field in fields(Row))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of the assignment table.

    Attributes:
        version: version of the table.
        rows: student id -> row; all rows, or those written since the requested version.
        gone: ids of students whose rows were deleted since then; empty if `full`.
        full: `rows` are all rows of the table.
    """

    version: TableVersion = (0, 0)
    rows: Mapping[str, Row] = field(default_factory=dict)
    gone: tuple[str, ...] = ()
    full: bool = True


@dataclass(frozen=True, slots=True)
class LogEntry:
    """An event of a service's log; the registry sets `id` and `time_ms`.

    Attributes:
        kind: "registered", "left", "lost", "draining", ... (message `Event`).
        subject: the member that it concerns.
        text: what happened and why.
        before: for "assigned": ids of the former teachers.
        after: for "assigned": ids of the new teachers.
        id: id of the entry; grows with time.
        time_ms: time in milliseconds since 1970, by the registry's clock.
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
    """The number of teachers that a service should have, as its leader last wrote it.

    Attributes:
        count: number of teachers.
        reason: reason, as text.
        since_ms: when the number last changed, by the registry's clock, which sets it.
        at_ms: when the leader last wrote it, by the same clock.
    """

    count: int
    reason: str = ""
    since_ms: int = 0
    at_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredContentPlan:
    """The content plan of a service: its declared content, and a running upgrade.

    Attributes:
        content_id: the declared content; empty: none is declared.
        next_content_id: content of the upgrade; empty: no upgrade runs.
        at: "epoch": each student moves when it begins its next epoch; "now": at once.
        version: grows with each change; 0: there was none.
        since_ms: when it last changed, by the registry's clock, which sets it.
    """

    content_id: str = ""
    next_content_id: str = ""
    at: str = ""
    version: int = 0
    since_ms: int = 0


def pack_row(row: Row) -> str:
    """Return a row as JSON."""
    values = {name: getattr(row, name) for name in _ROW_FIELDS}
    return json.dumps(values, ensure_ascii=False, separators=(",", ":"))


def unpack_row(text: str) -> Row | None:
    """Parse the row of `pack_row`; None if the text is invalid."""
    try:
        values = json.loads(text)
        row = from_plain(Row, values, defaults=True)
    except (ValueError, RecursionError, WireError):
        return None
    numbers = (row.data_epoch, row.counter, row.incarnation)
    valid = {"teachers", "lost"} <= values.keys() and all(0 <= n < 2**64 for n in numbers)
    return row if valid else None


def log_entry(record: LogRecord) -> LogEntry:
    """Parse a stored entry of the log."""
    values = record.fields
    return LogEntry(
        kind=values.get("kind", ""),
        subject=values.get("subject", ""),
        text=values.get("text", ""),
        before=tuple(values.get("before", "").split()),
        after=tuple(values.get("after", "").split()),
        id=record.id,
        time_ms=record.time_ms,
    )


#: Facts of a teacher that change with every batch.
_VOLATILE: Final = frozenset({"in_flight", "samples_per_second"})
#: Facts of a student that managers need: for assignments, and to check the owner of its id.
_FOR_MANAGERS: Final = frozenset(
    {
        "want", "min", "priority", "needed", "state", "unreachable", "unavailable", "cut_off",
        "data_epoch", "content_id", "incarnation", "t_t_seconds", "t_s_seconds", "host", "owner",
        "secret",
    }
)  # fmt: skip
#: Measured times: managers see only changes of more than a tenth.
_MEASURED: Final = frozenset({"t_t_seconds", "t_s_seconds"})


def are_volatile(facts: Iterable[str]) -> bool:
    """Return whether all these facts change all the time, so that a report of them may be late."""
    return _VOLATILE.issuperset(facts)


def concerns_managers(kind: Kind, facts: Mapping[str, str], notified: Mapping[str, str]) -> bool:
    """Return whether managers have to be notified of a change of these facts.

    They are not notified of: a teacher's volatile facts, facts of a student that managers do not
    need, a measured time that changed by at most a tenth, and a change of a student's state that
    neither begins nor ends starvation.

    Args:
        kind: kind of the member.
        facts: changed facts.
        notified: facts of which managers were last notified, not those last written, so that
            many small changes add up.
    """
    concerning = facts.keys() & _FOR_MANAGERS if kind == "students" else facts.keys() - _VOLATILE
    return any(_is_news(kind, name, notified.get(name), facts[name]) for name in concerning)


def _is_news(kind: Kind, name: str, before: str | None, now: str) -> bool:
    if before is None:
        return True
    if before == now:
        return False
    if name in _MEASURED:
        return _time_changed(before, now)
    if name == "state" and kind == "students":
        return (before == "starved") != (now == "starved")
    return True


def _time_changed(before: str, now: str) -> bool:
    try:
        old, new = float(before), float(now)
    except ValueError:
        return True
    if not (math.isfinite(old) and math.isfinite(new)):
        return True
    return is_notable_change(old, new)
