"""The queue of a fleet: the jobs that users submit, their progress, and reserved slots.

A *job* has a name, a number and a spec that the runner understands; its record stays after its end.
Users set its *desired state*: the number of nodes, or that it stops. One *runner* at a time
leads the queue, and only the runner writes the *progress* of jobs. A *reservation* keeps slots of
the runner's machine free for an online service, and lasts as long as its owner renews it.

All keys of one queue are in one hash slot of Redis Cluster, so that scripts can use them together.

| key | type | holds |
|---|---|---|
| `edl:{queue:q}:specs` | hash, expires | job -> `number submitted_ms JSON`; `=number`, `=write` |
| `edl:{queue:q}:wishes` | hash, expires | job -> its desired state (JSON) |
| `edl:{queue:q}:progress` | hash, expires | job -> its progress (`ended JSON`) |
| `edl:{queue:q}:runner` | hash, expires | the runner: holder, token, until_ms, facts (JSON) |
| `edl:{queue:q}:reservations` | zset, expires | name -> deadline (ms, Redis time) |
| `edl:{queue:q}:reservation:<name>` | hash, expires | slots, joined, incarnation |
| `edl:{queue:q}:events` | stream, capped, expires | the timeline: body (JSON) |
| `edl:{queue:q}:log:<job>` | stream, capped, expires | output of a job: body (JSON) |

In `specs`, `=number` is the number of the last submitted job, and `=write` the id of the latest
write (`store.records.Once`). In `progress`, `ended` is 1 or 0.

The colon in the hash tag separates a queue from a service of the same name. The log of a job is
deleted when its record is deleted or the job is submitted again.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Self, get_args

from ..runtime.errors import RedisUnavailable, UsageError
from ..scheduler.job_states import ElasticJobState
from .store import Store, open_store
from .store.records import (
    Change,
    Condition,
    Delete,
    Facts,
    FieldIs,
    Keep,
    Leads,
    LeaseSet,
    MemberBeat,
    Once,
    Put,
    TimelineEntry,
    check_ttl,
    dump_facts,
    is_number,
    load_facts,
    number,
    read_timeline,
    timeline_entry,
)

#: Redis pattern of all keys of all queues.
ANY_QUEUE: Final = "edl:{queue:*}:*"
#: Greatest number of slots of a fleet.
MOST_SLOTS: Final = 65_536
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def check_name(what: str, name: str) -> str:
    """Return `name`, the name of a queue, job, runner or reservation (`what`).

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
    """Return whether a text is a valid name, as for `check_name`."""
    return _NAME.fullmatch(name) is not None


def queue_key(queue: str, name: str) -> str:
    """Return a key of a queue."""
    return f"edl:{{queue:{check_name('queue', queue)}}}:{name}"


def log_key(queue: str, job: str) -> str:
    """Return the key of a job's log."""
    return queue_key(queue, f"log:{check_name('job', job)}")


def reservation_leases(queue: str) -> LeaseSet:
    """Return the lease set of a queue's reservations; these leases end at their deadlines."""
    return LeaseSet(queue_key(queue, "reservations"), queue_key(queue, "reservation:"))


#: Seconds for which the state of a queue stays after the last activity in it.
KEEP_S: Final = 7 * 86_400.0
#: Numbers of kept entries: ended jobs, events, and pieces of each job's log.
ENDED_KEPT: Final = 50
EVENTS_KEPT: Final = 400
PIECES_KEPT: Final = 400

STATES: Final[tuple[ElasticJobState, ...]] = get_args(ElasticJobState)
END_STATES: Final = frozenset({"succeeded", "failed", "stopped"})


@dataclass(frozen=True, slots=True)
class DesiredJobState:
    """The desired state of a job, beside its spec.

    Attributes:
        nodes: greatest number of nodes; None: as many as its limits allow.
        stop: whether to stop it.
    """

    nodes: int | None = None
    stop: bool = False

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """Parse its JSON; invalid fields are ignored."""
        nodes = value.get("nodes")
        return cls(nodes if isinstance(nodes, int) else None, value.get("stop") is True)


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The progress of a job, which the runner writes.

    Attributes:
        state: see `scheduler.job_states`.
        target: number of nodes that it should have.
        running: number of its nodes, including those that are stopping (not whether it runs). The
            name is a key in Redis.
        reason: reason of the state, as text; for a failed job mostly with its last output.
        first_ms: when it first had its least number of nodes, which ends its pending time, in
            milliseconds since 1970 by the store's clock; 0: not yet.
        ended_ms: when it ended, likewise; 0: not yet.
        failures: number of failures of nodes; nodes that fail together count once.
        slots: numbers of the slots of the fleet's machine that its nodes use.
        done, hopeless: how nodes have ended, as in `scheduler.job_states.NodeEndings`.
    """

    state: ElasticJobState = "creating"
    target: int = 0
    running: int = 0
    reason: str = ""
    first_ms: int = 0
    ended_ms: int = 0
    failures: int = 0
    slots: tuple[int, ...] = ()
    done: bool = False
    hopeless: bool = False

    @property
    def ended(self) -> bool:
        """Whether the job has ended."""
        return self.state in END_STATES

    def to_json(self) -> Facts:
        return {**asdict(self), "slots": list(self.slots)}

    @classmethod
    def from_json(cls, value: Facts) -> Self:
        """Parse `to_json`; invalid fields are ignored."""
        defaults = cls().to_json()
        known = {
            key: value[key]
            for key, default in defaults.items()
            if type(value.get(key)) is type(default)
        }
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
        submitted_ms: when it was submitted, by the store's clock.
        desired: its desired state.
        progress: its progress.
    """

    name: str
    number: int
    spec: Facts = field(default_factory=dict)
    submitted_ms: int = 0
    desired: DesiredJobState = DesiredJobState()
    progress: JobProgress = JobProgress()

    def pending_s(self, now_ms: int) -> float:
        """Return seconds from its submission until it first had its least number of nodes.

        If it never had them: until it ended, or until `now_ms`.
        """
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


#: Maximum number of attempts to change a job while others change the queue.
_ATTEMPTS: Final = 16
#: A field of the hash `specs` that is not a job: it holds the number of the last submitted job.
_LAST_NUMBER_FIELD: Final = "=number"


class QueueBoard:
    """A queue; its methods may be called from any thread.

    All raise RedisUnavailable, Unauthenticated or Forbidden as the store does. They raise
    UsageError if a name is invalid: a name must have 1 to 64 letters, digits, '.', '_' or '-', and
    begin with a letter or digit.

    Args:
        store: the store.
        queue: name of the queue.
    """

    def __init__(self, store: Store, queue: str = "main") -> None:
        self.store = store
        self._queue = check_name("queue", queue)
        self._specs, self._desired_states, self._progress, self._runner, self._events = (
            queue_key(queue, name) for name in ("specs", "wishes", "progress", "runner", "events")
        )
        self._reservations = reservation_leases(queue)

    def time_ms(self) -> int:
        """Return the store's clock, in milliseconds since 1970."""
        return self.store.time_ms()

    # --- users: submit, scale and stop jobs

    def submit(
        self,
        name: str,
        spec: Facts,
        submitted_ms: int | None = None,
        desired: DesiredJobState = DesiredJobState(),
    ) -> int | None:
        """Add a job; returns its number, or None if a job of its name has not ended.

        A job that Redis has lost keeps the time of its first submission, `submitted_ms` (None:
        now), and its desired state.

        An ended job of the same name is replaced, with its log. Of the other ended jobs, only the
        `ENDED_KEPT` that were submitted last are kept.
        """
        text = dump_facts(spec)
        check_name("job", name)
        for _ in range(_ATTEMPTS):
            specs, progress = self.store.read(self._specs, self._progress)
            ended = [job for job in specs if _ended(progress.get(job, ""))]
            if name in specs and name not in ended:
                return None
            others = sorted(
                (job for job in ended if job != name), key=lambda job: _number(specs[job])
            )
            dropped = others[: max(0, len(others) - ENDED_KEPT)]
            job_number = number(specs.get(_LAST_NUMBER_FIELD, "")) + 1
            unchanged: list[Condition] = [
                Once(self._specs),
                FieldIs(self._specs, _LAST_NUMBER_FIELD, specs.get(_LAST_NUMBER_FIELD, "")),
                FieldIs(self._specs, name, specs.get(name, "")),
                FieldIs(self._progress, name, progress.get(name, "")),
            ]
            at_ms = self.time_ms() if submitted_ms is None else submitted_ms
            numbered = f"{job_number} {at_ms} {text}"
            deletions: dict[str, str | int | None] = dict.fromkeys(dropped)
            changes: list[Change] = [
                Put(self._specs, {**deletions, name: numbered, _LAST_NUMBER_FIELD: job_number}),
                Put(self._desired_states, {**deletions, name: dump_facts(asdict(desired))}),
                Put(self._progress, {**deletions, name: None}),
                Delete([log_key(self._queue, job) for job in (*dropped, name)]),
            ]
            if self.store.commit(unchanged, [*changes, self._expiry()]) == 0:
                return job_number
        raise RedisUnavailable(
            f"job {name} was not submitted: too many others change queue {self._queue}; try again"
        )

    def set_desired_state(
        self, name: str, desired: DesiredJobState, job_number: int | None = None
    ) -> bool:
        """Replace the desired state of a job; one that is to stop stays so.

        Args:
            name: name of the job.
            desired: its desired state.
            job_number: number of the job; None: that of the job which has the name now.

        Returns:
            Whether it was written: False if there is no such job, or it has ended.
        """
        keys = self._specs, self._progress, self._desired_states
        for _ in range(_ATTEMPTS):
            spec, progress, former = values = [self._field(key, name) for key in keys]
            job_number = job_number or _number(spec)
            if not spec or _ended(progress) or _number(spec) != job_number:
                return False
            # Another command may have stopped the job since the caller read it.
            stop = desired.stop or DesiredJobState.from_json(load_facts(former)).stop
            text = dump_facts(asdict(replace(desired, stop=stop)))
            unchanged = [FieldIs(key, name, value) for key, value in zip(keys, values, strict=True)]
            changes: list[Change] = [Put(self._desired_states, {name: text}), self._expiry()]
            if self.store.commit(unchanged, changes) == 0:
                return True
        raise RedisUnavailable(
            f"the desired state of job {name} was not written: others change queue {self._queue}"
            " too often; try again"
        )

    def jobs(self) -> list[QueuedJob]:
        """Return all jobs, in the order of their submission."""
        specs, desired_states, progress = self.store.read(
            self._specs, self._desired_states, self._progress
        )
        jobs = []
        for name, spec in specs.items():
            job_number, _, rest = spec.partition(" ")
            at_ms, _, text = rest.partition(" ")
            if is_name(name) and is_number(job_number) and is_number(at_ms):
                _, _, progress_text = progress.get(name, "").partition(" ")
                desired = DesiredJobState.from_json(load_facts(desired_states.get(name, "")))
                job_progress = JobProgress.from_json(load_facts(progress_text))
                spec_facts = load_facts(text)
                jobs.append(
                    QueuedJob(name, int(job_number), spec_facts, int(at_ms), desired, job_progress)
                )
        return sorted(jobs, key=lambda job: job.number)

    def runner(self) -> Runner | None:
        """Return the runner of the queue; None: there is none."""
        leadership = self.store.leader(self._runner)
        if leadership is None:
            return None
        return Runner(leadership.holder, load_facts(leadership.facts), leadership.expires_in_s)

    # --- reservations

    def reserve(self, name: str, slots: int, ttl_s: float) -> int:
        """Reserve slots for `ttl_s` seconds, or renew the reservation of this name.

        Returns:
            `Reservation.number`; 0 if the reservation has ended already.

        Raises:
            UsageError: `slots` is out of range.
        """
        check_name("reservation", name)
        if not 1 <= slots <= MOST_SLOTS:
            raise UsageError(f"a reservation must have 1 to {MOST_SLOTS} slots, not {slots!r}")
        facts = {"slots": str(slots)}
        leases, ttl_s = self.store.leases, check_ttl(ttl_s)
        if not leases.beat(self._reservations, MemberBeat(name, 0, facts), ttl_s):
            leases.register(self._reservations, name, {**facts, "incarnation": "0"}, ttl_s)
        live = leases.members(self._reservations)
        return next((member.joined for member in live if member.member == name), 0)

    def unreserve(self, name: str) -> None:
        """End a reservation; no effect if there is none."""
        self.store.leases.leave(self._reservations, check_name("reservation", name))

    def reservations(self) -> list[Reservation]:
        """Return the live reservations, oldest first."""
        live = [
            Reservation(
                member.member,
                number(member.facts.get("slots", "")),
                member.joined,
                member.remaining_s,
            )
            for member in self.store.leases.members(self._reservations)
            if is_name(member.member)
        ]
        valid = [reservation for reservation in live if reservation.slots]
        return sorted(valid, key=lambda reservation: reservation.number)

    # --- the runner

    def lead(self, runner_id: str, facts: Facts, ttl_s: float) -> Leads | None:
        """Take the leadership of the queue for `ttl_s` seconds if it is free, or renew ours.

        Returns:
            The fence of the runner's writes; None if another runner leads.
        """
        check_name("runner", runner_id)
        kept = dict.fromkeys(self._expiring_keys(), KEEP_S)
        leadership = self.store.lead(
            self._runner, runner_id, check_ttl(ttl_s), keep_s=kept, facts=dump_facts(facts)
        )
        return (
            Leads(self._runner, leadership.holder, leadership.token) if leadership.change else None
        )

    def resign(self, runner_id: str) -> None:
        """Give the leadership of the queue back; no effect if another runner has it."""
        self.store.resign(self._runner, check_name("runner", runner_id))

    def write_progress(
        self, fence: Leads, name: str, job_number: int, progress: JobProgress
    ) -> bool:
        """Write the progress of a job.

        Returns:
            Whether it was written: False if another runner leads, or the job of that name has
            another number.
        """
        text = f"{int(progress.ended)} {dump_facts(progress.to_json())}"
        spec = self._field(self._specs, name)
        if _number(spec) != job_number:
            return False
        changes: list[Change] = [Put(self._progress, {name: text}), self._expiry()]
        return self.store.commit([fence, FieldIs(self._specs, name, spec)], changes) == 0

    def append_log(self, fence: Leads, name: str, lines: Sequence[str]) -> bool:
        """Append output as one piece to a job's log, which keeps the last `PIECES_KEPT` pieces.

        The number of the job is not checked. If a job was submitted again, its log may get late
        output of the former job, which is rare and harmless.

        Returns:
            Whether it was written: False if another runner leads, or there is no such job.
        """
        spec = self._field(self._specs, name)
        if not spec:
            return False
        piece = {"lines": list(lines)}
        entry = timeline_entry(log_key(self._queue, name), piece, PIECES_KEPT, KEEP_S)
        return self.store.commit([fence, FieldIs(self._specs, name, spec)], [entry]) == 0

    # --- logs and events

    def read_log(self, name: str, since: str = "", count: int = 100) -> list[TimelineEntry]:
        """Return the first `count` pieces of a job's log after id `since`, oldest first.

        Each piece is from one call of `append_log` and has `lines`, a list of texts.
        """
        return read_timeline(self.store, log_key(self._queue, name), since, count)

    def add_event(self, event: Facts) -> str:
        """Append an event to the queue's timeline, which keeps the last ones; return its id."""
        return self.store.append(timeline_entry(self._events, event, EVENTS_KEPT, KEEP_S))

    def events(self, since: str = "", count: int = 100) -> list[TimelineEntry]:
        """Return the first `count` events after id `since`, oldest first; "": from the start."""
        return read_timeline(self.store, self._events, since, count)

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def _field(self, key: str, name: str) -> str:
        return self.store.fields(key, [check_name("job", name)])[0] or ""

    def _expiring_keys(self) -> list[str]:
        return [self._specs, self._desired_states, self._progress, self._events]

    def _expiry(self) -> Keep:
        return Keep(self._expiring_keys(), KEEP_S)


def _ended(progress: str) -> bool:
    return progress.startswith("1")


def _number(spec: str) -> int:
    return number(spec.partition(" ")[0])


def open_queue(url: str, queue: str = "main") -> QueueBoard:
    """Return a queue of the store at `url`. Raises UsageError if the URL or name is invalid."""
    return QueueBoard(open_store(url), queue)
