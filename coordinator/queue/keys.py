"""The names of a queue's Redis keys. All of one queue lie in one slot, so that a script may do all.

| key | type | holds |
|---|---|---|
| `edl:{queue:q}:specs` | hash, expires | job -> `number submitted_ms JSON`; `=number`: last one |
| `edl:{queue:q}:wishes` | hash, expires | job -> what operators ask of it (JSON) |
| `edl:{queue:q}:progress` | hash, expires | job -> what the runner says of it (`ended JSON`) |
| `edl:{queue:q}:runner` | hash, expires | the runner: holder, token, until_ms, facts (JSON) |
| `edl:{queue:q}:reservations` | zset, expires | name -> deadline (ms, Redis time) |
| `edl:{queue:q}:reservation:<name>` | hash, expires | slots, joined |
| `edl:{queue:q}:events` | stream, capped, expires | the timeline: body (JSON) |
| `edl:{queue:q}:log:<job>` | stream, capped, expires | what a job printed: body (JSON) |

The colon in the hash tag keeps a queue apart from a service of its name. The log of a job that is
forgotten or submitted anew is deleted with it.
"""

from __future__ import annotations

import re
from typing import Final

from ...runtime.errors import UsageError
from ..store import LeaseSet

#: Of one fleet.
MOST_SLOTS: Final = 65_536
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(what: str, name: str) -> str:
    """Return the name of a queue, a job, a runner or a reservation.

    Raises:
        UsageError: it cannot stand in a key.
    """
    if not is_name(name):
        raise UsageError(
            f"the name of a {what} is 1 to 64 letters, digits, '.', '_' or '-', and begins with a"
            f" letter or digit; {name!r:.160} is none"
        )
    return name


def is_name(name: str) -> bool:
    """Whether it is a name: of a queue, a job, a service, a student, a runner, a reservation."""
    return _NAME.fullmatch(name) is not None


def of_queue(queue: str, name: str) -> str:
    """A key of a queue."""
    return f"edl:{{queue:{check_name('queue', queue)}}}:{name}"


def of_any_queue() -> str:
    """The pattern, of Redis, of all keys of all queues."""
    return "edl:{queue:*}:*"


def log_of(queue: str, job: str) -> str:
    """Key of what a job printed."""
    return of_queue(queue, f"log:{check_name('job', job)}")


def reservations(queue: str) -> LeaseSet:
    """The reservations of a queue; they end at their deadlines."""
    return LeaseSet(of_queue(queue, "reservations"), of_queue(queue, "reservation:"))


def check_slots(slots: int) -> int:
    """Return how many slots are asked for; raises UsageError where that is no number of them."""
    if not 1 <= slots <= MOST_SLOTS:
        raise UsageError(f"a reservation is of 1 to {MOST_SLOTS} slots, not {slots!r}")
    return slots
