"""The queue: the jobs that operators submit to a fleet, and their progress.

A *job* has a name, a number and a spec that the runner understands; its record stays after its end.
Operators change its *wish* (desired state): the number of nodes, or that it stops. One *runner* at
a time leads the queue, with a TTL lease, and only the runner writes the *progress* of jobs. A
*reservation* keeps slots of the runner's machine free for an online service, and lasts as long as
its owner renews it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...runtime.errors import RegistryUnavailable, UsageError
from ..store import Store
from ..store.facts import (
    Facts,
    TimelineEntry,
    check_ttl,
    dump_facts,
    load_facts,
    read_timeline,
    timeline_entry,
)
from ..store.records import Change, Delete, FieldIs, Keep, Leads, MemberBeat, Put, number
from .schema import (
    ENDED_KEPT,
    EVENTS_KEPT,
    KEEP_S,
    MOST_SLOTS,
    PIECES_KEPT,
    DesiredJobState,
    JobProgress,
    QueuedJob,
    Reservation,
    Runner,
    check_name,
    is_name,
    log_key,
    queue_key,
    reservation_leases,
)

#: Most attempts to submit a job while others change the queue.
_ATTEMPTS: Final = 16
#: Field of the hash `specs`, not a job: the number of the job submitted last.
_LAST_NUMBER: Final = "=number"


class QueueBoard:
    """A queue; its methods may be called from any thread.

    All raise UsageError if a name is invalid (it has 1 to 64 letters, digits, '.', '_' or '-', and
    begins with a letter or digit), and RegistryUnavailable, Unauthenticated or Forbidden as the
    store does.

    Args:
        store: the store.
        queue: name of the queue.
    """

    def __init__(self, store: Store, queue: str = "main") -> None:
        self.store = store
        self._queue = check_name("queue", queue)
        self._specs, self._wishes, self._progress, self._runner, self._events = (
            queue_key(queue, name) for name in ("specs", "wishes", "progress", "runner", "events")
        )
        self._reservations = reservation_leases(queue)

    def time_ms(self) -> int:
        """Return the store's clock, in milliseconds since 1970."""
        return self.store.time_ms()

    # --- operators

    def submit(self, name: str, spec: Facts) -> int | None:
        """Add a job; returns its number, or None if a job of its name has not ended.

        An ended job of the same name is replaced, with its log. Of the other ended jobs, only the
        `ENDED_KEPT` that were submitted last are kept.
        """
        text = dump_facts(spec)
        check_name("job", name)
        for _ in range(_ATTEMPTS):
            specs, progress = self.store.read(self._specs, self._progress)
            ended = [one for one in specs if _ended(progress.get(one, ""))]
            if name in specs and name not in ended:
                return None
            others = sorted(
                (one for one in ended if one != name), key=lambda one: _number(specs[one])
            )
            dropped = others[: max(0, len(others) - ENDED_KEPT)]
            job_number = number(specs.get(_LAST_NUMBER, "")) + 1
            unchanged = [
                FieldIs(self._specs, _LAST_NUMBER, specs.get(_LAST_NUMBER, "")),
                FieldIs(self._specs, name, specs.get(name, "")),
                FieldIs(self._progress, name, progress.get(name, "")),
            ]
            numbered = f"{job_number} {self.time_ms()} {text}"
            deletions: dict[str, str | int | None] = dict.fromkeys(dropped)
            changes: list[Change] = [
                Put(self._specs, {**deletions, name: numbered, _LAST_NUMBER: job_number}),
                Put(self._wishes, {**deletions, name: None}),
                Put(self._progress, {**deletions, name: None}),
                Delete([log_key(self._queue, one) for one in (*dropped, name)]),
            ]
            if self.store.commit(unchanged, [*changes, self._expiry()]) == 0:
                return job_number
        raise RegistryUnavailable(
            f"job {name} was not submitted: too many others change queue {self._queue}; try again"
        )

    def wish(self, name: str, wish: DesiredJobState) -> bool:
        """Replace the desired state of a job; False if there is no such job or it has ended."""
        text = dump_facts(wish.to_json())
        spec, progress = self._of_job(name)
        if not spec or _ended(progress):
            return False
        unchanged = [FieldIs(self._specs, name, spec), FieldIs(self._progress, name, progress)]
        changes: list[Change] = [Put(self._wishes, {name: text}), self._expiry()]
        return self.store.commit(unchanged, changes) == 0

    def jobs(self) -> list[QueuedJob]:
        """Return all jobs, in the order of their submission."""
        specs, wishes, progress = self.store.read(self._specs, self._wishes, self._progress)
        jobs = []
        for name, spec in specs.items():
            job_number, _, rest = spec.partition(" ")
            at_ms, _, text = rest.partition(" ")
            if is_name(name) and job_number.isdigit() and at_ms.isdigit():
                told = JobProgress.from_json(load_facts(progress.get(name, "").partition(" ")[2]))
                asked = DesiredJobState.from_json(load_facts(wishes.get(name, "")))
                jobs.append(
                    QueuedJob(name, int(job_number), load_facts(text), int(at_ms), asked, told)
                )
        return sorted(jobs, key=lambda job: job.number)

    def runner(self) -> Runner | None:
        """Return the runner of the queue; None: there is none."""
        led = self.store.leader(self._runner)
        if led is None:
            return None
        return Runner(led.holder, load_facts(led.facts), led.expires_in_s)

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
            leases.register(self._reservations, {name: {**facts, "incarnation": "0"}}, ttl_s)
        held = leases.members(self._reservations)
        return next((one.joined for one in held if one.member == name), 0)

    def unreserve(self, name: str) -> None:
        """End a reservation; no effect if there is none."""
        self.store.leases.leave(self._reservations, check_name("reservation", name))

    def reservations(self) -> list[Reservation]:
        """Return the live reservations, oldest first."""
        living = [
            Reservation(one.member, number(one.facts.get("slots", "")), one.joined, one.remaining_s)
            for one in self.store.leases.members(self._reservations)
            if is_name(one.member)
        ]
        return sorted((one for one in living if one.slots), key=lambda one: one.number)

    # --- the runner

    def take(self, runner_id: str, facts: Facts, ttl_s: float) -> Leads | None:
        """Take the lead of the queue for `ttl_s` seconds if it is free, or renew our lead.

        Returns:
            The condition of the runner's writes (`fence`): that it still leads. None if another
            runner leads.
        """
        check_name("runner", runner_id)
        kept = dict.fromkeys(self._expiring_keys(), KEEP_S)
        led = self.store.lead(
            self._runner, runner_id, check_ttl(ttl_s), keep_s=kept, facts=dump_facts(facts)
        )
        return Leads(self._runner, led.holder, led.token) if led.change else None

    def resign(self, runner_id: str) -> None:
        """Give the lead of the queue back; no effect if another runner has it."""
        self.store.resign(self._runner, check_name("runner", runner_id))

    def tell(self, fence: Leads, name: str, number: int, progress: JobProgress) -> bool:
        """Write the progress of a job.

        Returns:
            Whether it was written: False if another runner leads, or the job of that name has
            another number.
        """
        text = f"{int(progress.ended)} {dump_facts(progress.to_json())}"
        spec, _ = self._of_job(name)
        if _number(spec) != number:
            return False
        changes: list[Change] = [Put(self._progress, {name: text}), self._expiry()]
        return self.store.commit([fence, FieldIs(self._specs, name, spec)], changes) == 0

    def log(self, fence: Leads, name: str, lines: Sequence[str]) -> bool:
        """Append output as one piece to a job's log, which keeps the last `PIECES_KEPT` pieces.

        The number of the job is not checked: late output of a job that was submitted again is
        harmless and rare.

        Returns:
            Whether it was written: False if another runner leads, or there is no such job.
        """
        spec, _ = self._of_job(name)
        if not spec:
            return False
        piece = {"lines": list(lines)}
        entry = timeline_entry(log_key(self._queue, name), piece, PIECES_KEPT, KEEP_S)
        return self.store.commit([fence, FieldIs(self._specs, name, spec)], [entry]) == 0

    # --- logs and events

    def lines(self, name: str, since: str = "", count: int = 100) -> list[TimelineEntry]:
        """Return the first `count` pieces of a job's log after id `since`, oldest first.

        Each piece is from one call of `log` and has `lines`, a list of texts.
        """
        return read_timeline(self.store, log_key(self._queue, name), since, count)

    def note(self, event: Mapping[str, Any]) -> str:
        """Append an event to the queue's timeline, which keeps the last ones; return its id."""
        return self.store.append(timeline_entry(self._events, event, EVENTS_KEPT, KEEP_S))

    def events(self, since: str = "", count: int = 100) -> list[TimelineEntry]:
        """Return the first `count` events after id `since`, oldest first; "": from the start."""
        return read_timeline(self.store, self._events, since, count)

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    def _of_job(self, name: str) -> tuple[str, str]:
        check_name("job", name)
        (spec,), (progress,) = (
            self.store.fields(key, [name]) for key in (self._specs, self._progress)
        )
        return spec or "", progress or ""

    def _expiring_keys(self) -> list[str]:
        return [self._specs, self._wishes, self._progress, self._events]

    def _expiry(self) -> Keep:
        return Keep(self._expiring_keys(), KEEP_S)


def _ended(progress: str) -> bool:
    return progress.startswith("1")


def _number(spec: str) -> int:
    return number(spec.partition(" ")[0])
