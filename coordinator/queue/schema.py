"""The schema of the queue: its Redis keys and records.

All keys of one queue are in one slot, so that scripts can use them together.

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
from dataclasses import asdict, dataclass, field
from typing import Final, Self, get_args

from ...runtime.errors import UsageError
from ...scheduler.job_states import ElasticJobState
from ..store.facts import Facts
from ..store.records import LeaseSet

#: Redis pattern of all keys of all queues.
ANY_QUEUE: Final = "edl:{queue:*}:*"
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


def queue_key(queue: str, name: str) -> str:
    """Return a key of a queue."""
    return f"edl:{{queue:{check_name('queue', queue)}}}:{name}"


def log_key(queue: str, job: str) -> str:
    """Return the key of a job's log."""
    return queue_key(queue, f"log:{check_name('job', job)}")


def reservation_leases(queue: str) -> LeaseSet:
    """Return the lease set of a queue's reservations; leases end at their deadlines."""
    return LeaseSet(queue_key(queue, "reservations"), queue_key(queue, "reservation:"))


#: Seconds for which the state of a queue stays after the last activity in it.
KEEP_S: Final = 7 * 86_400.0
#: Numbers of kept entries: ended jobs, events, and pieces of each job's log.
ENDED_KEPT: Final = 50
EVENTS_KEPT: Final = 400
PIECES_KEPT: Final = 400

STATES: Final[tuple[ElasticJobState, ...]] = get_args(ElasticJobState)
ENDS: Final = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class DesiredJobState:
    """The desired state of a job, beside its spec.

    Attributes:
        nodes: greatest number of nodes; None: as many as its limits allow.
        stop: whether to stop it.
    """

    nodes: int | None = None
    stop: bool = False

    def to_json(self) -> Facts:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """Parse `to_json`; invalid fields are ignored."""
        nodes = value.get("nodes")
        return cls(nodes if isinstance(nodes, int) else None, value.get("stop") is True)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job, which the runner writes.

    Attributes:
        state: see `scheduler.job_states`.
        target: number of nodes that it should have.
        running: number of its nodes, including those that are stopping.
        reason: reason of the state, as text; of a failed job with its last output.
        first_ms: when it first had its least number of nodes, which ends its pending time, in
            milliseconds since 1970 by the board's clock; 0: not yet.
        ended_ms: when it ended; 0: not yet.
        failures: number of nodes that failed.
        slots: number of slots of the fleet's machine that its nodes use.
    """

    state: ElasticJobState = "creating"
    target: int = 0
    running: int = 0
    reason: str = ""
    first_ms: int = 0
    ended_ms: int = 0
    failures: int = 0
    slots: tuple[int, ...] = ()

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in ENDS

    def to_json(self) -> Facts:
        return {**asdict(self), "slots": list(self.slots)}

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """Parse `to_json`; invalid fields are ignored."""
        usual = cls().to_json()
        known = {key: value[key] for key in usual if type(value.get(key)) is type(usual[key])}
        slots = tuple(slot for slot in known.pop("slots", ()) if isinstance(slot, int))
        if known.get("state") not in STATES:
            known.pop("state", None)
        return cls(**known, slots=slots)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue.

    Attributes:
        name: name of the job.
        number: grows with each submission.
        spec: the submitted spec.
        submitted_ms: when it was submitted, by the board's clock.
        wish: its desired state.
        progress: its progress.
    """

    name: str
    number: int
    spec: Facts = field(default_factory=dict)
    submitted_ms: int = 0
    wish: DesiredJobState = DesiredJobState()
    progress: JobProgress = JobProgress()

    def pending_s(self, now_ms: int) -> float:
        """Return seconds from its submission until it had its least number of nodes, or now."""
        until_ms = self.progress.first_ms or self.progress.ended_ms or now_ms
        return max(0.0, (until_ms - self.submitted_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Runner:
    """The process that runs the jobs of a queue."""

    runner_id: str
    facts: Facts
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class Reservation:
    """Slots kept free for a service; `number` grows with each reservation."""

    name: str
    slots: int
    number: int
    expires_in_s: float
