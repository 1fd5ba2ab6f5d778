"""The registry of a mesh: live members, leaders, and the assignment table of each service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import Final

from ...runtime.errors import LeaseSuperseded, UsageError
from ..store import Store
from ..store.records import (
    Append,
    BeatAnswer,
    Change,
    Changes,
    Condition,
    Delete,
    FieldIs,
    Keep,
    Leads,
    Member,
    MemberBeat,
    NumberIs,
    Once,
    Put,
    PutRows,
    Stamp,
    SweepPermit,
    is_member,
    is_name,
    number,
)
from .schema import (
    SERVICES,
    DesiredCount,
    Kind,
    LogEntry,
    Row,
    ServiceLeadership,
    StoredContentPlan,
    Table,
    TableVersion,
    check_member,
    lease_set,
    log_entry,
    pack_row,
    service_key,
    unpack_row,
)

#: Seconds after the last renewal by a leader until the table expires: students' reports then tell
#: better which teachers they have.
_TABLE_S: Final = 3600.0
_LOG_S: Final = 7 * 86_400.0
_PLAN_S: Final = 30 * 86_400.0
_DESIRED_S: Final = 600.0
#: Keys that a leader keeps alive -> seconds until they expire.
_KEPT_S: Final = {
    "assignment": _TABLE_S,
    "assignment:changes": _TABLE_S,
    "admitted": _TABLE_S,
    "events": _LOG_S,
    "plan": _PLAN_S,
}
#: Number of events kept, and of row changes; a manager that missed more changes reads all rows.
_KEPT: Final = 10_000
#: A service without members and log is forgotten this many seconds after its last recorded use.
_FORGET_AGE_S: Final = 60.0


class Registry:
    """The registry: leases of members, and for each service a table that its leader writes.

    Methods may be called from any thread. Each change of a member, a table, a plan or a desired
    number is one atomic step, except heartbeats that only renew or report volatile facts. Reading
    several members takes several steps. All methods raise RedisUnavailable if the store does not
    answer, Unauthenticated if it rejects the user or password, Forbidden if the user lacks the
    permission, and UsageError if a name is invalid (`beat_many` checks no ids of members).
    `service` is "" for the kind "managers".

    Args:
        store: the store.
        events_kept: number of events kept per service.

    Attributes:
        gathers_beats: whether heartbeats that this host sends at the same moment share a message.
    """

    gathers_beats = False

    def __init__(self, store: Store, events_kept: int = _KEPT) -> None:
        self.store = store
        self._leases = store.leases
        self._events_kept = events_kept

    @property
    def url(self) -> str:
        """URL for messages, without the password."""
        return self.store.url

    def server_info(self) -> dict[str, str]:
        """See `RedisStore.server_info`."""
        return self.store.server_info()

    def check_writes(self) -> bool:
        """See `RedisStore.check_writes`."""
        return self.store.check_writes()

    def time_ms(self) -> int:
        """Return the registry's clock, in milliseconds since 1970."""
        return self.store.time_ms()

    def close(self) -> None:
        """Close the connections. A closed registry reconnects when it is used."""
        self.store.close()

    # --- members

    def register(
        self, kind: Kind, service: str, member: str, facts: Mapping[str, str], ttl_s: float
    ) -> None:
        """Start a lease of `ttl_s` seconds, or restart it with these facts.

        Args:
            kind: kind of the member.
            service: its service.
            member: its id.
            facts: its facts. `incarnation`, a decimal number, is required; the greatest one holds
                the id.
            ttl_s: seconds after the last heartbeat at which the lease expires.

        Raises:
            LeaseSuperseded: a greater incarnation holds the id.
            RedisUnavailable: the registry does not answer.
        """
        check_member(kind, member)
        leases = lease_set(kind, service)
        if kind != "managers":
            self.store.record_use(SERVICES, service)
        if not self._leases.register(leases, member, facts, ttl_s):
            raise LeaseSuperseded(
                f"a newer incarnation of {member} than {facts['incarnation']} is registered in "
                f"{service or 'the mesh'}"
            )

    def beat(self, kind: Kind, service: str, beat: MemberBeat, ttl_s: float) -> BeatAnswer:
        """Renew a lease.

        Args:
            kind: kind of the member.
            service: its service.
            beat: the heartbeat.
            ttl_s: time to live that it registered with, in seconds.

        Returns:
            The answer. It is also UNKNOWN if another incarnation holds the lease, or a key of the
            lease has another type.
        """
        check_member(kind, beat.member)
        return _superseded_as_unknown(self._leases.beat(lease_set(kind, service), beat, ttl_s))

    def beat_many(
        self, kind: Kind, beats: Sequence[tuple[str, MemberBeat]], ttl_s: float
    ) -> list[BeatAnswer]:
        """Send many heartbeats in few round trips; return the answers of `beat` in order.

        Args:
            kind: kind of the members.
            beats: pairs of a service and a heartbeat.
            ttl_s: time to live that they registered with, in seconds.
        """
        sets = [(lease_set(kind, service), beat) for service, beat in beats]
        answers = self._leases.beat_many(sets, ttl_s)
        return [_superseded_as_unknown(answer) for answer in answers]

    def request_drain(self, service: str, teacher_id: str) -> bool:
        """Ask a teacher to finish its work and leave; False if it has no lease.

        Its state is "draining" from now on, and its next heartbeat returns DRAIN.
        """
        check_member("teachers", teacher_id)
        return self._leases.request_drain(lease_set("teachers", service), teacher_id)

    def leave(self, kind: Kind, service: str, member: str, incarnation: int | None = None) -> bool:
        """End a lease at once; False if there is none, or another incarnation holds it."""
        check_member(kind, member)
        return self._leases.leave(lease_set(kind, service), member, incarnation)

    # --- reading members

    def members(self, kind: Kind, service: str) -> list[Member]:
        """Return the members whose deadline has not passed, sorted by id."""
        return self._leases.members(lease_set(kind, service))

    def read(self, kind: Kind, service: str, names: Sequence[str]) -> list[Member]:
        """Return the named members that have facts, in that order, expired ones included."""
        for name in names:
            check_member(kind, name)
        return self._leases.read(lease_set(kind, service), names)

    def names(self, kind: Kind, service: str) -> set[str]:
        """Return the ids of all members, expired ones included. Cheap, as it reads no facts."""
        return self._leases.names(lease_set(kind, service))

    def changes(self, kind: Kind, service: str, cursor: int = 0) -> Changes:
        """Return the changes since `cursor`; 0: all members.

        Only facts of changed members are read, so that polling every 100 ms is cheap. The result
        also tells when a sweep is due. With a cursor older than a minute, changes may be missing:
        start again from 0. `left` has members that ended their lease by `leave`, `lost` those that
        a sweep removed; see `Changes`.
        """
        return self._leases.changes(lease_set(kind, service), cursor)

    def sweep(self, kind: Kind, service: str, permit: SweepPermit | None = None) -> list[str]:
        """Remove expired members, and return their ids; see `RedisLeases.sweep`."""
        return self._leases.sweep(lease_set(kind, service), permit)

    def services(self) -> list[str]:
        """Return the names of services with teachers or students, sorted."""
        return [name for name, members, _ in self._list_services() if members]

    def services_with_log(self) -> list[str]:
        """Return the names of services with a log, sorted; they may have no members."""
        return [name for name, _, events in self._list_services() if events]

    def _list_services(self) -> list[tuple[str, bool, bool]]:
        """Return (name, whether it has members, whether it has a log) of each known service."""
        used = self.store.used_names(SERVICES)
        names = [name for name in used if is_name(name)]
        exist = iter(
            self.store.exist(
                [
                    key
                    for name in names
                    for key in (
                        lease_set("teachers", name).deadlines,
                        lease_set("students", name).deadlines,
                        service_key(name, "events"),
                    )
                ]
            )
        )
        for name in used:
            if not is_name(name):
                self.store.forget(SERVICES, name, _FORGET_AGE_S)
        listed = []
        for name in names:
            teachers, students, events = next(exist), next(exist), next(exist)
            listed.append((name, teachers or students, events))
            if not (teachers or students or events):
                # The age protects a member that has added its service and is about to register.
                self.store.forget(SERVICES, name, _FORGET_AGE_S)
        return listed

    # --- leadership and the assignment table

    def lead(self, service: str, holder: str, ttl_s: float) -> ServiceLeadership:
        """Take the leadership of a service if it is free, or renew ours; return who leads.

        The version of the table is read afterwards, in a step of its own.
        """
        key = service_key(service, "leader")
        kept = {service_key(service, name): keep_s for name, keep_s in _KEPT_S.items()}
        leadership = self.store.lead(key, holder, ttl_s, keep_s=kept, with_registry_id=True)
        version = self._table_version(service)
        fence = Leads(key, leadership.holder, leadership.token)
        return ServiceLeadership(fence, version, leadership.registry_id, leadership.time_ms)

    def resign(self, service: str, holder: str) -> bool:
        """Give the leadership back; False if `holder` does not have it."""
        return self.store.resign(service_key(service, "leader"), holder)

    def write(
        self,
        service: str,
        fence: Leads,
        expected: TableVersion,
        version: TableVersion,
        rows: Mapping[str, Row | None],
        events: Sequence[LogEntry] = (),
        admitted: Mapping[str, int | str | None] | None = None,
    ) -> bool:
        """Write rows, events and admitted teachers of a service in one atomic step.

        Args:
            service: name of the service.
            fence: fence of the leader.
            expected: the current version of the table.
            version: the new version; above `expected` if there are rows.
            rows: student id -> row; None deletes the row. Other rows stay.
            events: events to append to the log.
            admitted: teacher id -> incarnation that passed its probe, or 0 if there are no probes;
                a text: why it was refused; None deletes the entry.

        Returns:
            Whether it was written: False if another manager leads or the table has another version.

        Raises:
            UsageError: a version is negative, `version` is below `expected`, or there are rows and
                the versions are equal.
        """
        _check_versions(expected, version, rows)
        table, changed, admissions = (
            service_key(service, name) for name in ("assignment", "assignment:changes", "admitted")
        )
        packed = {
            check_member("students", student): None if row is None else pack_row(row)
            for student, row in rows.items()
        }
        header: dict[str, str | int | None] = {"=term": version[0], "=counter": version[1]}
        changes: list[Change] = []
        if version[0] != expected[0]:
            # Counters start again: managers that know the old term read all rows.
            changes.append(Delete([changed]))
            header["=floor"] = version[1]
        changes += [Put(table, header), PutRows(table, changed, version[1], _KEPT, packed)]
        if admitted:
            changes.append(Put(admissions, admitted))
        changes += [self._append(service, event) for event in events]
        changes.append(Keep([table, changed, admissions], _TABLE_S))
        fenced: list[Condition] = [fence, Once(table), *_table_is_at(table, expected)]
        return self.store.commit(fenced, changes) == 0

    def table(self, service: str, since: TableVersion | None = None) -> Table:
        """Return the rows written since a version; all if None, too old or of another term."""
        if since is not None and self._table_version(service) == since:  # cheaper than the script
            return Table(since, full=False)
        table, changes_key = (service_key(service, n) for n in ("assignment", "assignment:changes"))
        full, version, texts = self.store.changed_rows(table, changes_key, since)
        rows: dict[str, Row] = {}
        gone: list[str] = []
        for student, text in texts.items():
            if not is_member(student):
                continue
            row = unpack_row(text) if text else None
            if row is not None:
                rows[student] = row
            elif not full:
                gone.append(student)
        return Table(version, rows, tuple(gone), full)

    def _table_version(self, service: str) -> TableVersion:
        term, counter = self.store.fields(service_key(service, "assignment"), ["=term", "=counter"])
        return number(term or ""), number(counter or "")

    def admitted(self, service: str) -> dict[str, int]:
        """Return teacher id -> incarnation that passed its probe; 0: any, there are no probes."""
        (stored,) = self.store.read(service_key(service, "admitted"))
        return {
            teacher: number(incarnation)
            for teacher, incarnation in stored.items()
            if is_member(teacher) and incarnation.isdigit()
        }

    def refused(self, service: str) -> dict[str, str]:
        """Return teacher id -> why its latest probe failed, of teachers that are not admitted."""
        (stored,) = self.store.read(service_key(service, "admitted"))
        return {
            teacher: why
            for teacher, why in stored.items()
            if is_member(teacher) and not why.isdigit()
        }

    # --- the log

    def events(self, service: str, after: str = "", last: int = 0) -> list[LogEntry]:
        """Return events after an id, oldest first; with `last`, only the latest `last`."""
        records = self.store.log(service_key(service, "events"), after, last=last)
        return [log_entry(record) for record in records]

    def add_events(self, service: str, entries: Sequence[LogEntry]) -> None:
        """Append to the log; the caller need not lead the service."""
        if entries:
            appends = [self._append(service, entry) for entry in entries]
            self.store.commit([], appends)
            self.store.record_use(SERVICES, service)  # lists the service for `services_with_log`

    def _append(self, service: str, entry: LogEntry) -> Append:
        fields = {
            "kind": entry.kind,
            "subject": entry.subject,
            "text": entry.text,
            "before": " ".join(entry.before),
            "after": " ".join(entry.after),
        }
        key = service_key(service, "events")
        return Append(key, fields, self._events_kept, _LOG_S, exact=False)

    # --- content plan and number of teachers

    def content_plan(self, service: str) -> StoredContentPlan:
        """Return the content plan of a service: its declared content, and a running upgrade."""
        (stored,) = self.store.read(service_key(service, "plan"))
        return StoredContentPlan(
            content_id=stored.get("content_id", ""),
            next_content_id=stored.get("next_content_id", ""),
            at=stored.get("at", ""),
            version=number(stored.get("version", "")),
            since_ms=number(stored.get("since_ms", "")),
        )

    def set_content_plan(
        self, service: str, plan: StoredContentPlan, expected_version: int
    ) -> bool:
        """Write a plan as version `expected_version` + 1; False if the current version differs."""
        key = service_key(service, "plan")
        conditions: list[Condition] = [Once(key), NumberIs(key, "version", expected_version)]
        return self.store.commit(conditions, _put_plan(service, plan, expected_version)) == 0

    def move_content_plan(
        self,
        service: str,
        fence: Leads,
        table_version: TableVersion,
        plan: StoredContentPlan,
        entry: LogEntry,
    ) -> bool:
        """Write a plan and an event as the leader, in one atomic step.

        Args:
            service: name of the service.
            fence: fence of the leader.
            table_version: the current version of the table.
            plan: the new plan; its `version` is that of the current plan.
            entry: event to append to the log.

        Returns:
            Whether it was written: False if another manager leads, or table or plan has changed.
        """
        key, table = service_key(service, "plan"), service_key(service, "assignment")
        conditions: list[Condition] = [fence, *_table_is_at(table, table_version), Once(key)]
        conditions.append(NumberIs(key, "version", plan.version))
        changes = [*_put_plan(service, plan, plan.version), self._append(service, entry)]
        return self.store.commit(conditions, changes) == 0

    def desired(self, service: str) -> DesiredCount | None:
        """Return the number of teachers that a service should have; None: unknown."""
        (stored,) = self.store.read(service_key(service, "desired"))
        count = stored.get("count", "")
        if not (count.isascii() and count.isdigit() and len(count) <= 9):
            return None
        since_ms, at_ms = number(stored.get("since_ms", "")), number(stored.get("at_ms", ""))
        return DesiredCount(int(count), stored.get("reason", ""), since_ms, at_ms)

    def set_desired(
        self, service: str, fence: Leads, count: int, reason: str, entry: LogEntry | None = None
    ) -> bool:
        """Write the number of teachers that a service should have; it expires after ten minutes.

        Args:
            service: name of the service.
            fence: fence of the leader.
            count: number of teachers.
            reason: reason, as text.
            entry: event to append to the log if the number changes; None: none.

        Returns:
            Whether it was written: False if another manager leads.
        """
        key = service_key(service, "desired")
        before = self.store.fields(key, ["count"])[0] or ""
        changes: list[Change] = [Put(key, {"count": count, "reason": reason}), Stamp(key, "at_ms")]
        changes.append(Keep([key], _DESIRED_S))
        if before != str(count):  # else this write repeats the last one
            changes.append(Stamp(key, "since_ms"))
            if entry is not None:
                changes.append(self._append(service, entry))
        # Only leaders write the count: if it has changed, another manager leads.
        conditions: list[Condition] = [fence, Once(key), FieldIs(key, "count", before)]
        return self.store.commit(conditions, changes) == 0


def _superseded_as_unknown(answer: BeatAnswer) -> BeatAnswer:
    """Let a superseded member register again; `register` refuses an older incarnation."""
    return BeatAnswer.UNKNOWN if answer is BeatAnswer.SUPERSEDED else answer


def _check_versions(expected: TableVersion, version: TableVersion, rows: Sized) -> None:
    """Raise UsageError if the versions would hide a write from managers that read the table."""
    if version < expected or (rows and version == expected) or min(*expected, *version) < 0:
        raise UsageError(
            f"a table at {expected} cannot be written as {version}: versions must grow"
        )


def _table_is_at(table: str, version: TableVersion) -> list[NumberIs]:
    return [NumberIs(table, "=term", version[0]), NumberIs(table, "=counter", version[1])]


def _put_plan(service: str, plan: StoredContentPlan, version: int) -> list[Change]:
    key = service_key(service, "plan")
    fields: dict[str, str | int | None] = {
        "content_id": plan.content_id,
        "next_content_id": plan.next_content_id,
        "at": plan.at,
        "version": version + 1,
    }
    return [Put(key, fields), Stamp(key, "since_ms"), Keep([key], _PLAN_S)]
