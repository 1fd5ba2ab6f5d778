"""The names of all Redis keys, and what may stand in them.

`{s}` is a cluster hash tag: every key of one service lies in one slot, so one script may touch them
all. The managers' keys share the slot of `edl:managers` by the same means.

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
| `edl:{s}:admitted` | hash, expires | teacher id -> incarnation that was probed well |
| `edl:{s}:plan` | hash, expires | content_id, next_content_id, at, version, since_ms |
| `edl:{s}:desired` | hash, expires | count, reason, since_ms, at_ms: teachers it should have |
| `edl:{s}:events` | stream, capped, expires | the log: the fields of message `Event` |
| `edl:write-check` | list | nothing, ever: RPUSHX tries a write without making one |

A name that begins with `=` is none that a member could have: among changes, `=` and an id is a
member that ended its lease by its own wish.
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
    """Return the name of a service; raises UsageError when it cannot stand in a key."""
    return records.check_name("the name of a service", service)


def check_member(kind: Kind, member: str) -> str:
    """Return the id of a member; raises UsageError when it cannot stand in a key."""
    return records.check_member(f"the id of a {_SINGULAR[kind]}", member)


def is_service(service: str) -> bool:
    """Whether the name of a service that was read could have been written by us."""
    return records.is_name(service)


def leases(kind: Kind, service: str) -> str:
    """Key of the zset of deadlines of one kind of members."""
    return MANAGERS if kind == "managers" else f"{_prefix(kind, service)}:{kind}"


def facts_prefix(kind: Kind, service: str) -> str:
    """What the keys of all members' facts begin with."""
    return f"{_prefix(kind, service)}:{_SINGULAR[kind]}:"


def changes(kind: Kind, service: str) -> str:
    """Key of the zset that numbers the changes of one kind of members."""
    return f"{_prefix(kind, service)}:{kind}:changes"


def leader(service: str) -> str:
    """Key of the lease to compute a service's assignments."""
    return _of_service(service, "leader")


def assignment(service: str) -> str:
    """Key of the hash of assignments."""
    return _of_service(service, "assignment")


def assignment_changes(service: str) -> str:
    """Key of the zset that numbers the changes of assignments."""
    return _of_service(service, "assignment:changes")


def admitted(service: str) -> str:
    """Key of the hash of teachers that were probed well."""
    return _of_service(service, "admitted")


def plan(service: str) -> str:
    """Key of the hash that says which content a service is meant to serve."""
    return _of_service(service, "plan")


def desired(service: str) -> str:
    """Key of the hash that says how many teachers a service should have."""
    return _of_service(service, "desired")


def events(service: str) -> str:
    """Key of a service's log."""
    return _of_service(service, "events")


def check_epochs(expected: Epoch, epoch: Epoch, rows: Sized) -> None:
    """Raises UsageError when readers of a table could not see that it was written."""
    if epoch < expected or (rows and epoch == expected) or min(*expected, *epoch) < 0:
        raise UsageError(f"a table at {expected} cannot be written as {epoch}: epochs only grow")


def _of_service(service: str, name: str) -> str:
    return f"edl:{{{check_service(service)}}}:{name}"


def _prefix(kind: Kind, service: str) -> str:
    return f"edl:{{{MANAGERS if kind == 'managers' else check_service(service)}}}"
