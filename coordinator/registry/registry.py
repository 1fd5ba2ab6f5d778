"""The registry of a mesh: who is alive, who leads, and the assignment table of each service."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

from ...runtime.errors import LeaseSuperseded
from ..store import (
    Append,
    Beat,
    Change,
    Changes,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leads,
    LeaseSet,
    Member,
    MemberBeat,
    NumberIs,
    Once,
    Put,
    PutRows,
    Stamp,
    Store,
    SweepPermit,
)
from ..store.records import is_member, number
from . import keys
from .records import (
    DesiredCount,
    Epoch,
    Kind,
    LogEntry,
    Plan,
    Row,
    ServiceLeadership,
    Table,
    are_volatile,
    concerns_managers,
    log_entry,
    pack_row,
    unpack_row,
)

#: How long things outlive the last leader: beyond that, readers' reports say more than the table.
_TABLE_S: Final = 3600.0
_LOG_S: Final = 7 * 86_400.0
_PLAN_S: Final = 30 * 86_400.0
_DESIRED_S: Final = 600.0
#: Events that the log keeps, and changes after which a reader that lags reads the whole table.
_KEPT: Final = 10_000
_FORGET_AGE_S: Final = 60.0


class Registry:
    """Leases with deadlines, and per service one table that its leader writes.

    Every method may be called from any thread, and is one atomic step where it does not say
    otherwise. Each may raise RegistryUnavailable when the store does not answer, Unauthenticated
    when it does not know our user or password, Forbidden when that user may not do this. `service`
    is "" for the kind "managers". Names that cannot stand in a key raise UsageError.

    Args:
        store: where it is kept.
        events_kept: entries of a service's log.

    Attributes:
        gathers_beats: beats that are sent at the same moment on one host cost one message.
    """

    gathers_beats = False

    def __init__(self, store: Store, events_kept: int = _KEPT) -> None:
        self.store = store
        self._leases = store.leases
        self._events_kept = events_kept

    @property
    def url(self) -> str:
        """Where it is, for messages: without a password."""
        return self.store.url

    def server_info(self) -> dict[str, str]:
        """See `Store.server_info`."""
        return self.store.server_info()

    def check_writes(self) -> bool:
        """See `Store.check_writes`."""
        return self.store.check_writes()

    def time_ms(self) -> int:
        """The registry's clock: milliseconds since 1970."""
        return self.store.time_ms()

    def close(self) -> None:
        """Let go of connections. A closed registry opens them again when it is used."""
        self.store.close()

    # --- members

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        """Begin a lease of `ttl_s` seconds, or begin it anew with these facts in place of others.

        Args:
            kind: which kind of member.
            service: which service it belongs to.
            member: its id.
            facts: what it tells; `incarnation`, a decimal number, decides who holds the id.
            ttl_s: seconds without a beat after which it is dead.

        Raises:
            LeaseSuperseded: a greater incarnation holds the id.
            RegistryUnavailable: the registry does not answer.
        """
        if self.register_many(kind, service, {member: facts}, ttl_s):
            raise LeaseSuperseded(
                f"a newer incarnation of {member} than {facts['incarnation']} is registered in "
                f"{service or 'the mesh'}"
            )

    def register_many(
        self, kind: Kind, service: str, members: Mapping[str, Mapping[str, str]], ttl_s: float
    ) -> list[str]:
        """Many at once, id -> facts, each as one atomic step.

        Returns:
            Ids that a greater incarnation holds.
        """
        for member in members:
            keys.check_member(kind, member)
        leases = lease_set(kind, service)
        if kind != "managers" and members:
            self.store.sign(keys.SERVICES, service)
        return self._leases.register(leases, members, ttl_s)

    def beat(
        self,
        kind: Kind,
        service: str,
        member: str,
        ttl_s: float,
        *,
        incarnation: int,
        facts: Mapping[str, str] | None = None,
        concerns: bool | None = None,
    ) -> Beat:
        """Renew a lease.

        Args:
            kind: which kind of member.
            service: which service it belongs to.
            member: its id.
            ttl_s: as it registered.
            incarnation: as it registered.
            facts: those that changed.
            concerns: whether managers hear of the change; None: by the names of the facts.

        Returns:
            UNKNOWN too where another incarnation holds the lease.
        """
        told = facts or {}
        keys.check_member(kind, member)
        noted = concerns_managers(kind, told) if concerns is None else concerns
        beat = MemberBeat(member, incarnation, told, noted, are_volatile(told))
        return self.send_beat(kind, service, beat, ttl_s)

    def send_beat(self, kind: Kind, service: str, beat: MemberBeat, ttl_s: float) -> Beat:
        """Send a heartbeat that is at hand as a record; see `beat`."""
        return _known(self._leases.beat(lease_set(kind, service), beat, ttl_s))

    def beat_many(
        self, kind: Kind, beats: Sequence[tuple[str, MemberBeat]], ttl_s: float
    ) -> list[Beat]:
        """Send many heartbeats in few round trips, each atomic; return the replies in order.

        Args:
            kind: which kind of members.
            beats: each with its service.
            ttl_s: as they registered.
        """
        sets = [(lease_set(kind, service), beat) for service, beat in beats]
        return [_known(answer) for answer in self._leases.beat_many(sets, ttl_s)]

    def request_drain(self, service: str, teacher_id: str) -> bool:
        """Ask a teacher to finish what it has and leave; False when it has no lease.

        Its state is "draining" from now on, and its next beat returns DRAIN.
        """
        keys.check_member("teachers", teacher_id)
        return self._leases.request_drain(lease_set("teachers", service), teacher_id)

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False when there is none, or another incarnation holds it."""
        keys.check_member(kind, member)
        return self._leases.leave(lease_set(kind, service), member, incarnation)

    # --- those that look

    def members(self, kind: Kind, service: str) -> list[Member]:
        """Those whose deadline has not passed, by id."""
        return self._leases.members(lease_set(kind, service))

    def read(self, kind: Kind, service: str, names: Sequence[str]) -> list[Member]:
        """Those named that have facts, in that order; one whose lease is over has no time left."""
        for name in names:
            keys.check_member(kind, name)
        return self._leases.read(lease_set(kind, service), names)

    def names(self, kind: Kind, service: str) -> set[str]:
        """Ids of those that no sweep has taken out; cheap, it reads no facts."""
        return self._leases.names(lease_set(kind, service))

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        """What happened since `cursor`; all members for 0.

        Facts are read for changed members only, so that looking every 100 ms costs nearly nothing
        when nothing happened; and it says when a sweep is worth its price. A cursor older than a
        minute may miss changes: start again from 0. Who left is known by its own mark, not by what
        has expired: an outage makes nobody leave.
        """
        return self._leases.changes(lease_set(kind, service), cursor)

    def sweep(self, kind: Kind, service: str, permit: SweepPermit | None = None) -> list[str]:
        """Take out those whose deadline has passed, at most 1,000 at once, and name them.

        A permit bounds which expired leases count as deaths.
        """
        return self._leases.sweep(lease_set(kind, service), permit)

    def services(self) -> list[str]:
        """Names of the services that have teachers or students, sorted."""
        return [name for name, members, _ in self._named() if members]

    def logs(self) -> list[str]:
        """Names of the services that have a log, sorted: also those without any member."""
        return [name for name, _, events in self._named() if events]

    def _named(self) -> list[tuple[str, bool, bool]]:
        """Each service that was named, whether it has members, and whether it has a log."""
        names = [name for name in self.store.signed(keys.SERVICES) if keys.is_service(name)]
        found = iter(
            self.store.exist(
                [
                    key
                    for name in names
                    for key in (
                        lease_set("teachers", name).deadlines,
                        lease_set("students", name).deadlines,
                        keys.events(name),
                    )
                ]
            )
        )
        named = []
        for name in names:
            teachers, students, events = next(found), next(found), next(found)
            named.append((name, teachers or students, events))
            if not (teachers or students or events):
                # The age leaves time to a member that has named its service, and is about to
                # register.
                self.store.forget(keys.SERVICES, name, _FORGET_AGE_S)
        return named

    # --- leadership, and the assignment table

    def lead(self, service: str, holder: str, ttl_s: float) -> ServiceLeadership:
        """Take the lease to compute a service's assignments if it is free, or prolong our own.

        Whoever holds it, the answer says so. The epoch is read after it, in a step of its own.
        """
        kept = {
            keys.assignment(service): _TABLE_S,
            keys.assignment_changes(service): _TABLE_S,
            keys.admitted(service): _TABLE_S,
            keys.events(service): _LOG_S,
            keys.plan(service): _PLAN_S,
        }
        led = self.store.lead(keys.leader(service), holder, ttl_s, keep_s=kept, identify=True)
        epoch = self._epoch(service)
        fence = Leads(keys.leader(service), led.holder, led.token)
        return ServiceLeadership(fence, epoch, led.registry_id, led.time_ms)

    def resign(self, service: str, holder: str) -> bool:
        """Give that lease back; False when `holder` does not hold it."""
        return self.store.resign(keys.leader(service), holder)

    def write(
        self,
        service: str,
        fence: Leads,
        expected: Epoch,
        epoch: Epoch,
        rows: Mapping[str, Row | None],
        events: Sequence[LogEntry] = (),
        admitted: Mapping[str, int | None] | None = None,
    ) -> bool:
        """Change the assignment table, the log and who is admitted, in one step or not at all.

        Args:
            service: whose table.
            fence: of the leader: its lease has to stand, under the same token.
            expected: the epoch that the table has to stand at.
            epoch: what it stands at afterwards; above `expected` if there are rows.
            rows: student id -> row, None to take it out. Other rows stay as they are.
            events: appended to the log.
            admitted: teacher id -> incarnation that was probed well, None to forget it.

        Returns:
            False when another one leads or the table stands elsewhere: nothing was written.

        Raises:
            UsageError: `epoch` is not above `expected`.
        """
        keys.check_epochs(expected, epoch, rows)
        table, changed = keys.assignment(service), keys.assignment_changes(service)
        packed = {
            keys.check_member("students", student): None if row is None else pack_row(row)
            for student, row in rows.items()
        }
        header: dict[str, str | int | None] = {"=term": epoch[0], "=counter": epoch[1]}
        changes: list[Change] = []
        if epoch[0] != expected[0]:  # numbers start again: who knew the old term reads everything
            changes.append(Delete([changed]))
            header["=floor"] = epoch[1]
        changes += [Put(table, header), PutRows(table, changed, epoch[1], _KEPT, packed)]
        if admitted:
            changes.append(Put(keys.admitted(service), admitted))
        changes += [self._append(service, event) for event in events]
        changes.append(Keep([table, changed, keys.admitted(service)], _TABLE_S))
        fenced: list[Condition] = [
            fence,
            Once(table, secrets.token_hex(8)),
            *_stands_at(table, expected),
        ]
        return self.store.commit(fenced, changes) == 0

    def table(self, service: str, since: Epoch | None = None) -> Table:
        """Rows written since an epoch; all of them after another term, or for None."""
        if since is not None and self._epoch(service) == since:  # cheaper than the script
            return Table(since, full=False)
        full, epoch, found = self.store.changed_rows(
            keys.assignment(service), keys.assignment_changes(service), since
        )
        rows: dict[str, Row] = {}
        gone: list[str] = []
        for student, text in found.items():
            if not is_member(student):
                continue
            row = unpack_row(text) if text else None
            if row is not None:
                rows[student] = row
            elif not full:
                gone.append(student)
        return Table(epoch, rows, tuple(gone), full)

    def _epoch(self, service: str) -> Epoch:
        term, counter = self.store.fields(keys.assignment(service), ["=term", "=counter"])
        return number(term or ""), number(counter or "")

    def admitted(self, service: str) -> dict[str, int]:
        """Teacher id -> incarnation that was probed well."""
        (found,) = self.store.read(keys.admitted(service))
        return {
            teacher: number(incarnation)
            for teacher, incarnation in found.items()
            if is_member(teacher) and incarnation.isdigit()
        }

    # --- the log

    def events(self, service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        """The log, oldest first: what came after an id; with `last`, the latest so many of it."""
        return [log_entry(one) for one in self.store.log(keys.events(service), after, last=last)]

    def note(self, service: str, entries: Sequence[LogEntry]) -> None:
        """Append to the log, whoever leads."""
        if entries:
            appends = [self._append(service, entry) for entry in entries]
            self.store.commit([], appends)
            self.store.sign(keys.SERVICES, service)  # so that its log is found

    def _append(self, service: str, entry: LogEntry) -> Append:
        fields = {
            "kind": entry.kind,
            "subject": entry.subject,
            "text": entry.text,
            "before": " ".join(entry.before),
            "after": " ".join(entry.after),
        }
        return Append(keys.events(service), fields, self._events_kept, _LOG_S, exact=False)

    # --- what a service is meant to have

    def plan(self, service: str) -> Plan:
        """Which content the service is meant to serve."""
        (found,) = self.store.read(keys.plan(service))
        return Plan(
            found.get("content_id", ""),
            found.get("next_content_id", ""),
            found.get("at", ""),
            number(found.get("version", "")),
            number(found.get("since_ms", "")),
        )

    def set_plan(self, service: str, plan: Plan, expected_version: int) -> bool:
        """Change it, as version `expected_version` + 1; False when another version stands."""
        stands = NumberIs(keys.plan(service), "version", expected_version)
        return self.store.commit([stands], _put_plan(service, plan, expected_version)) == 0

    def move_plan(
        self, service: str, fence: Leads, epoch: Epoch, plan: Plan, entry: LogEntry
    ) -> bool:
        """Change it as the leader, and say so in the log: both or neither.

        Args:
            service: whose.
            fence: of the leader: its lease has to stand, under the same token.
            epoch: what the table has to stand at.
            plan: what it becomes; `version` is the one that has to stand until now.
            entry: appended to the log.

        Returns:
            False when another one leads, or the table or the plan is another one.
        """
        stands = NumberIs(keys.plan(service), "version", plan.version)
        conditions: list[Condition] = [fence, *_stands_at(keys.assignment(service), epoch), stands]
        changes = [*_put_plan(service, plan, plan.version), self._append(service, entry)]
        return self.store.commit(conditions, changes) == 0

    def desired(self, service: str) -> DesiredCount | None:
        """How many teachers the service should have; None: no leader has said so lately."""
        (found,) = self.store.read(keys.desired(service))
        count = found.get("count", "")
        if not (count.isascii() and count.isdigit() and len(count) <= 9):
            return None
        since_ms, at_ms = number(found.get("since_ms", "")), number(found.get("at_ms", ""))
        return DesiredCount(int(count), found.get("reason", ""), since_ms, at_ms)

    def set_desired(
        self, service: str, fence: Leads, count: int, reason: str, entry: LogEntry | None = None
    ) -> bool:
        """Say how many teachers the service should have, as its leader; kept for ten minutes.

        Args:
            service: whose.
            fence: of the leader: its lease has to stand, under the same token.
            count: so many.
            reason: why, in words.
            entry: appended to the log, or none.

        Returns:
            False when another one leads: nothing was written.
        """
        key = keys.desired(service)
        before = self.store.fields(key, ["count"])[0] or ""
        changes: list[Change] = [Put(key, {"count": count, "reason": reason}), Stamp(key, "at_ms")]
        if before != str(count):
            changes.append(Stamp(key, "since_ms"))
        changes.append(Keep([key], _DESIRED_S))
        if entry is not None:
            changes.append(self._append(service, entry))
        # Only leaders write it: another value now is another leader's.
        return self.store.commit([fence, FieldIs(key, "count", before)], changes) == 0


@lru_cache(maxsize=4096)
def lease_set(kind: Kind, service: str) -> LeaseSet:
    """The leases of one kind of members of a service, all followed by managers.

    Raises:
        UsageError: the name of the service cannot stand in a key.
    """
    return LeaseSet(
        keys.leases(kind, service), keys.facts_prefix(kind, service), keys.changes(kind, service)
    )


def _known(beat: Beat) -> Beat:
    return Beat.UNKNOWN if beat is Beat.SUPERSEDED else beat


def _stands_at(table: str, epoch: Epoch) -> list[NumberIs]:
    return [NumberIs(table, "=term", epoch[0]), NumberIs(table, "=counter", epoch[1])]


def _put_plan(service: str, plan: Plan, version: int) -> list[Change]:
    key = keys.plan(service)
    fields: dict[str, str | int | None] = {
        "content_id": plan.content_id,
        "next_content_id": plan.next_content_id,
        "at": plan.at,
        "version": version + 1,
    }
    return [Put(key, fields), Stamp(key, "since_ms"), Keep([key], _PLAN_S)]
