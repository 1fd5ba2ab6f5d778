"""Redis keys of the registry, and the names that they may contain.

`{s}` is a cluster hash tag: all keys of one service are in one slot, so that scripts can use them
together. The managers' keys share the slot of `edl:managers` in the same way.

| key | type | holds |
|---|---|---|
| `edl:services` | zset | service -> time of its last registration (ms, Redis time) |
| `edl:managers` | zset | manager address -> deadline (ms, Redis time) |
| `edl:{edl:managers}:manager:<address>` | hash, expires | facts of a manager |
| `edl:{s}:teachers` | zset, expires | teacher id -> deadline |
| `edl:{s}:teacher:<id>` | hash, expires | facts of a teacher: the fields of message `Teacher` |
| `edl:{s}:students` | zset, expires | student id -> deadline |
| `edl:{s}:student:<job/rank>` | hash, expires | its last report: the fields of `StudentReport` |
| `edl:{s}:teachers:changes`, `edl:{s}:students:changes` | zset, expires | member -> change number |
| `edl:{s}:leader` | hash, expires | the manager that assigns: holder, token, until_ms |
| `edl:{s}:assignment` | hash, expires | id -> row (JSON); `=term`, `=counter`, `=floor`, `=write` |
| `edl:{s}:assignment:changes` | zset, expires | student id -> counter of its last change |
| `edl:{s}:admitted` | hash, expires | teacher id -> incarnation that passed its probe |
| `edl:{s}:plan` | hash, expires | content_id, next_content_id, at, version, since_ms |
| `edl:{s}:desired` | hash, expires | count, reason, since_ms, at_ms: teachers it should have |
| `edl:{s}:events` | stream, capped, expires | the log: the fields of message `Event` |
| `edl:write-check` | list | always missing: RPUSHX tests whether writes are accepted |

No member id begins with `=`. Among changes, `=` and an id stand for a member that ended its lease.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from ...runtime.errors import UsageError
from ..store import records
from .records import Epoch, Kind

SERVICES: Final = "edl:services"
MANAGERS: Final = "edl:managers"

_SINGULAR: Final[dict[Kind, str]] = {
    "teachers": "teacher",
    "students": "student",
    "managers": "manager",
}


def check_service(service: str) -> str:
    """Return a valid name of a service. Raises UsageError if it is invalid."""
    return records.check_name("the name of a service", service)


def check_member(kind: Kind, member: str) -> str:
    """Return a valid id of a member. Raises UsageError if it is invalid."""
    return records.check_member(f"the id of a {_SINGULAR[kind]}", member)


def is_service(service: str) -> bool:
    """Return whether a text is a valid name of a service."""
    return records.is_name(service)


def leases(kind: Kind, service: str) -> str:
    """Return the key of the members' deadlines."""
    return MANAGERS if kind == "managers" else f"{_prefix(kind, service)}:{kind}"


def facts_prefix(kind: Kind, service: str) -> str:
    """Return the prefix of the keys of the members' facts."""
    return f"{_prefix(kind, service)}:{_SINGULAR[kind]}:"


def changes(kind: Kind, service: str) -> str:
    """Return the key of the members' change numbers."""
    return f"{_prefix(kind, service)}:{kind}:changes"


def leader(service: str) -> str:
    """Return the key of the leadership of a service."""
    return _of_service(service, "leader")


def assignment(service: str) -> str:
    """Return the key of the assignment table."""
    return _of_service(service, "assignment")


def assignment_changes(service: str) -> str:
    """Return the key of the change numbers of the assignment table."""
    return _of_service(service, "assignment:changes")


def admitted(service: str) -> str:
    """Return the key of the admitted teachers."""
    return _of_service(service, "admitted")


def plan(service: str) -> str:
    """Return the key of the declared content of a service."""
    return _of_service(service, "plan")


def desired(service: str) -> str:
    """Return the key of the desired number of teachers of a service."""
    return _of_service(service, "desired")


def events(service: str) -> str:
    """Return the key of the log of a service."""
    return _of_service(service, "events")


def check_epochs(expected: Epoch, epoch: Epoch, rows: Sized) -> None:
    """Raise UsageError if the epochs would hide a write from readers of the table."""
    if epoch < expected or (rows and epoch == expected) or min(*expected, *epoch) < 0:
        raise UsageError(f"a table at {expected} cannot be written as {epoch}: epochs must grow")


def _of_service(service: str, name: str) -> str:
    return f"edl:{{{check_service(service)}}}:{name}"


def _prefix(kind: Kind, service: str) -> str:
    return f"edl:{{{MANAGERS if kind == 'managers' else check_service(service)}}}"
