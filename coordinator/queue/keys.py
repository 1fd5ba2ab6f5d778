"""Redis keys of a queue. All keys of one queue are in one slot, for scripts that use several.

| key | type | holds |
|---|---|---|
| `edl:{queue:q}:specs` | hash, expires | job -> `number submitted_ms JSON`; `=number`: last one |
| `edl:{queue:q}:wishes` | hash, expires | job -> its desired state (JSON) |
| `edl:{queue:q}:progress` | hash, expires | job -> its progress (`ended JSON`) |
| `edl:{queue:q}:runner` | hash, expires | the runner: holder, token, until_ms, facts (JSON) |
| `edl:{queue:q}:reservations` | zset, expires | name -> deadline (ms, Redis time) |
| `edl:{queue:q}:reservation:<name>` | hash, expires | slots, joined |
| `edl:{queue:q}:events` | stream, capped, expires | the timeline: body (JSON) |
| `edl:{queue:q}:log:<job>` | stream, capped, expires | output of a job: body (JSON) |

The colon in the hash tag separates a queue from a service of the same name. The log of a job is
deleted when its record is deleted or the job is submitted again.
"""

from __future__ import annotations

import re
from typing import Final

from ...runtime.errors import UsageError
from ..store import LeaseSet

#: Greatest number of slots of a fleet.
MOST_SLOTS: Final = 65_536
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(what: str, name: str) -> str:
    """Return a valid name of a queue, job, runner or reservation.

    Raises:
        UsageError: the name is invalid.
    """
    if not is_name(name):
        raise UsageError(
            f"the name of a {what} must have 1 to 64 letters, digits, '.', '_' or '-' and begin"
            f" with a letter or digit, not {name!r:.160}"
        )
    return name


def is_name(name: str) -> bool:
    """Return whether a text is a valid name; also for services and students in a queue."""
    return _NAME.fullmatch(name) is not None


def of_queue(queue: str, name: str) -> str:
    """Return a key of a queue."""
    return f"edl:{{queue:{check_name('queue', queue)}}}:{name}"


def of_any_queue() -> str:
    """Return the Redis pattern of all keys of all queues."""
    return "edl:{queue:*}:*"


def log_of(queue: str, job: str) -> str:
    """Return the key of a job's log."""
    return of_queue(queue, f"log:{check_name('job', job)}")


def reservations(queue: str) -> LeaseSet:
    """Return the lease set of a queue's reservations; leases end at their deadlines."""
    return LeaseSet(of_queue(queue, "reservations"), of_queue(queue, "reservation:"))


def check_slots(slots: int) -> int:
    """Return a number of slots. Raises UsageError if it is out of range."""
    if not 1 <= slots <= MOST_SLOTS:
        raise UsageError(f"a reservation must have 1 to {MOST_SLOTS} slots, not {slots!r}")
    return slots
