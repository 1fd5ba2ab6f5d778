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
"""

from __future__ import annotations

import re
from typing import Final

from ..errors import UsageError
from .registry import Kind

SERVICES: Final = "edl:services"
MANAGERS: Final = "edl:managers"

_SINGULAR: Final[dict[Kind, str]] = {
    "teachers": "teacher",
    "students": "student",
    "managers": "manager",
}
_SERVICE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
_MEMBER: Final = re.compile(r"[A-Za-z0-9._:/@+\[\]-]{1,200}")


def check_service(service: str) -> str:
    """Return the name of a service; raises UsageError when it cannot stand in a key."""
    if not is_service(service):
        raise UsageError(
            "the name of a service is 1 to 128 letters, digits, '.', '_' or '-', "
            f"not {service!r:.160}"
        )
    return service


def check_member(kind: Kind, member: str) -> str:
    """Return the id of a member; raises UsageError when it cannot stand in a key."""
    if not is_member(member):
        raise UsageError(
            f"the id of a {_SINGULAR[kind]} is 1 to 200 letters, digits or '._-:/@+[]', "
            f"not {member!r:.240}"
        )
    return member


def is_member(member: str) -> bool:
    """Whether an id that was read from the registry could have been written by us."""
    return _MEMBER.fullmatch(member) is not None


def is_service(service: str) -> bool:
    """Whether the name of a service that was read could have been written by us."""
    return _SERVICE.fullmatch(service) is not None


def leases(kind: Kind, service: str) -> str:
    """Key of the zset of deadlines of one kind of members."""
    return MANAGERS if kind == "managers" else f"{_prefix(kind, service)}:{kind}"


def facts(kind: Kind, service: str, member: str) -> str:
    """Key of the hash of one member's facts."""
    return f"{_prefix(kind, service)}:{_SINGULAR[kind]}:{check_member(kind, member)}"


def changes(kind: Kind, service: str) -> str:
    """Key of the zset that numbers the changes of one kind of members."""
    return f"{_prefix(kind, service)}:{kind}:changes"


def _prefix(kind: Kind, service: str) -> str:
    return f"edl:{{{MANAGERS if kind == 'managers' else check_service(service)}}}"
