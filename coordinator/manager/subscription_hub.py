"""The subscriptions of one service at one manager: reports of students in, assignments out.

The hub decides nothing. It writes reports of its students into the registry and pushes rows of the
assignment table to them. The leader that computes the table is usually another process.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import (
    AccessError,
    EdlError,
    LeaseSuperseded,
    RetryableError,
    UnavailableError,
)
from ...scheduler import leadership as rule
from ..registry import Registry, Row, TableVersion
from ..store.records import FACTS_TTLS, BeatAnswer, Member, MemberBeat, WrongKeyType
from .messages import MANAGER
from .student_sessions import (
    AssignmentStream,
    StudentCaller,
    StudentSession,
    facts_pushed_at_once,
    refusal_of,
    superseded_error,
)
from .watch_cache import WatchCache

log = logging.getLogger(__name__)

#: Maximum number of writes, per TTL and student, of facts that do not concern the leader.
_WRITES_PER_TTL = 2


@dataclass(frozen=True, slots=True)
class HubView:
    """The students of a service that have a stream at one manager.

    Attributes:
        streams: number of students.
        students: state -> number of students.
        wanted: number of teachers that they want, summed over students.
        assigned: number of teachers that are assigned to them, summed over students.
        samples_per_second: samples that they take per second, summed over students.
        starved_s, blocked_s, source_wait_s: sums of the times that they have reported.
        pushed: assignments sent since the hub was created.
        refresh_s: seconds that the last call of `SubscriptionHub.refresh` took.
    """

    streams: int = 0
    students: Mapping[str, int] = field(default_factory=dict)
    wanted: int = 0
    assigned: int = 0
    samples_per_second: float = 0.0
    starved_s: float = 0.0
    blocked_s: float = 0.0
    source_wait_s: float = 0.0
    pushed: int = 0
    refresh_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _LeaseUpdate:
    """A heartbeat that brings the facts of a student in the registry to `facts`.

    `urgent`: managers have to be notified of the version of the student's assignment.
    """

    session: StudentSession
    facts: dict[str, str]
    beat: MemberBeat
    urgent: bool


class SubscriptionHub:
    """The subscriptions of one service at one manager. Only for the thread of the hubs.

    Methods that access the registry may raise UnavailableError or AccessError. A later call then
    does what is missing; streams stay open meanwhile.

    Args:
        registry: registry of the mesh.
        service: name of the service.
        ttl_s: TTL of students' leases, in seconds.
        manager: address of this manager, stored with its students.
        now: monotonic seconds, as in all methods.
    """

    def __init__(
        self, registry: Registry, service: str, ttl_s: float, manager: str, now: float
    ) -> None:
        self.service = service
        self._registry = registry
        self._ttl_s = ttl_s
        self._manager = manager
        self._renew_s = ttl_s / _WRITES_PER_TTL
        self._teachers = WatchCache(rule.grace_s(ttl_s))
        self._version: TableVersion | None = None
        self._rows: dict[str, Row] = {}
        self._sessions: dict[str, StudentSession] = {}
        self._arrivals: list[StudentSession] = []  # not admitted yet
        self._unwritten: set[str] = set()  # students with a report that may have to be written
        # students with a report that was not yet compared with the written facts
        self._uncompared: set[str] = set()
        self._leaving: dict[str, int] = {}  # student whose lease is to end -> incarnation
        self._unpushed: set[str] = set()  # students whose row or teachers have changed
        self._registry_id = ""
        self._live_teachers = 0
        self._compared_s = self._used_s = now
        self._pushed = 0
        self._refresh_s = 0.0

    # -- streams

    def subscribed(
        self, stream: AssignmentStream, report: pb.StudentReport, caller: StudentCaller
    ) -> None:
        """Queue a new stream; `settle` accepts or refuses it."""
        self._arrivals.append(StudentSession(stream, report, caller, self._manager))

    def reported(self, stream: AssignmentStream, report: pb.StudentReport) -> None:
        """Store a report of a student, unless it comes on an older stream of the student."""
        session = self._sessions.get(report.student_id)
        if session is not None and session.stream is stream:
            session.report = report
            self._uncompared.add(session.student_id)
            return
        for arrival in self._arrivals:  # a stream that is not settled yet
            if arrival.stream is stream:
                arrival.report = report

    def ended(self, stream: AssignmentStream, student_id: str, *, clean: bool) -> None:
        """Forget a stream. Unless `clean`, the student keeps its lease and may reconnect."""
        self._arrivals = [arrival for arrival in self._arrivals if arrival.stream is not stream]
        session = self._sessions.get(student_id)
        if session is None or session.stream is not stream:
            return
        self._drop(session)
        if clean:
            log.info("service %s: student %s is done", self.service, student_id)
            self._leaving[student_id] = session.incarnation

    def _drop(self, session: StudentSession) -> None:
        del self._sessions[session.student_id]
        self._unwritten.discard(session.student_id)
        self._uncompared.discard(session.student_id)
        self._unpushed.discard(session.student_id)

    # -- admission

    def settle(self, now: float) -> bool:
        """Accept or refuse new streams; return whether the leader has something new to read."""
        arrivals, self._arrivals = self._arrivals, []
        if not arrivals:
            return False
        try:
            names = sorted({arrival.student_id for arrival in arrivals})
            members = self._registry.read("students", self.service, names)
            known = {member.member: member.facts for member in members}
            while arrivals:
                self._admit(arrivals[0], known, now)
                del arrivals[0]
        except (UnavailableError, AccessError):
            self._arrivals = arrivals + self._arrivals
            raise
        return True

    def _admit(
        self, session: StudentSession, known: dict[str, Mapping[str, str]], now: float
    ) -> None:
        name, incarnation = session.student_id, session.incarnation
        error = refusal_of(name, incarnation, session.caller, known.get(name))
        error = error or self._register(session, now)
        if error is not None:
            session.stream.close(error)
            return
        known[name] = session.facts()
        if (former := self._sessions.get(name)) is not None:
            same_incarnation = former.incarnation == incarnation
            former.stream.close(
                RetryableError(f"{name} opened another stream")
                if same_incarnation
                else superseded_error(name)
            )
        self._sessions[name] = session
        self._leaving.pop(name, None)
        self._unpushed.add(name)
        log.info(
            "service %s: student %s wants teachers: %d", self.service, name, session.report.want
        )

    # -- reading the registry

    def refresh(self, now: float, registry_id: str) -> None:
        """Read the table and the teachers.

        Args:
            now: monotonic seconds.
            registry_id: id of the Redis process. If it changed, all is written and read again.
        """
        began_s = time.perf_counter()
        if registry_id != self._registry_id:
            if self._registry_id:
                for session in self._sessions.values():
                    session.written = None
                self._unwritten.update(self._sessions)
                self._teachers.restart_grace(now)
                self._version = None
            self._registry_id = registry_id
        self._read_table()
        cursor = self._teachers.cursor_at(now)
        changes = self._registry.changes("teachers", self.service, cursor)
        before = {m.member: self._teachers.members.get(m.member) for m in changes.members}
        left, lost = self._teachers.apply(changes, now)
        if changes.members or left or lost:  # before the next call, which may fail
            self._note_changes(changes.members, before)
        if now - self._compared_s >= self._ttl_s / rule.BEATS_PER_TTL:
            self._compared_s = now
            self._teachers.compare(self._registry.names("teachers", self.service), now)
            if self._teachers.drop_overdue(now):
                self._note_changes((), {})
        self._refresh_s = time.perf_counter() - began_s

    def _read_table(self) -> None:
        table = self._registry.table(self.service, self._version)
        if table.full:
            self._rows = {}
        self._rows.update(table.rows)
        for name in table.gone:
            self._rows.pop(name, None)
        self._unpushed.update(table.rows.keys() & self._sessions.keys())
        self._version = table.version

    def _note_changes(self, changed: Iterable[Member], before: Mapping[str, Member | None]) -> None:
        """Queue pushes.

        If facts of a teacher that are pushed at once have changed, queue a push to each student
        that has the teacher. If the first live teacher has come or the last one has gone, queue a
        push to all students.
        """
        members, had_live = self._teachers.members.values(), self._live_teachers > 0
        self._live_teachers = sum(1 for member in members if member.facts and not member.draining)
        if (self._live_teachers > 0) != had_live:
            self._unpushed.update(self._sessions)
        changed_ids = {
            member.member
            for member in changed
            if (old := before[member.member]) is None
            or facts_pushed_at_once(old) != facts_pushed_at_once(member)
        }
        if changed_ids:
            for name, session in self._sessions.items():
                row = session.pushed_row
                if row is not None and changed_ids.intersection(row.teachers):
                    self._unpushed.add(name)

    # -- writing and pushing

    def push_assignments(self) -> None:
        """Push assignments that changed; end the streams of older incarnations.

        A student without a row keeps its teachers: the row was not computed yet, or the registry
        has lost it.
        """
        term = self._version[0] if self._version else 0
        for name in sorted(self._unpushed):
            row, session = self._rows.get(name), self._sessions[name]
            if row is None or row.incarnation < session.incarnation:
                continue
            self._unpushed.discard(name)
            if row.incarnation > session.incarnation:
                session.stream.close(superseded_error(name))
                self._drop(session)
            else:
                self._pushed += session.push_row(
                    row, term, self._teachers.members, self._live_teachers
                )

    def write(self, now: float) -> bool:
        """Write leases that are due; return whether the leader has something new to read."""
        self._leave()
        due = list(self._due(now))
        try:
            to_register = [update for update in due if update.session.written is None]
            beats = [update for update in due if update.session.written is not None]
            to_register += self._beat(beats, now)
            errors = {update.session: self._register(update.session, now) for update in to_register}
        except (UnavailableError, AccessError):
            self._uncompared.update(update.session.student_id for update in due)
            raise
        for update in due:
            self._unwritten.discard(update.session.student_id)
            if update.urgent:
                update.session.notified_of_version()
        for session, error in errors.items():
            if error is not None:
                session.stream.close(error)
                self._drop(session)
        return bool(to_register) or any(update.beat.notify for update in beats)

    def _due(self, now: float) -> Iterator[_LeaseUpdate]:
        """Yield leases to write now. Each report is compared once: there are thousands a second."""
        uncompared, self._uncompared = self._uncompared, set()
        due_names = {
            name for name in self._unwritten if self._is_renewal_due(self._sessions[name], now)
        }
        self._unwritten |= uncompared
        for name in due_names | uncompared:
            session = self._sessions[name]
            urgent = self._version is not None and session.is_ahead(self._version)
            facts = session.facts()
            beat = session.beat_for(facts, urgent=urgent)
            if beat.notify or self._is_renewal_due(session, now):
                yield _LeaseUpdate(session, facts, beat, urgent)

    def _is_renewal_due(self, session: StudentSession, now: float) -> bool:
        """Whether to renew a lease now; its student has reported since the last renewal."""
        return session.written is None or now - session.written_s >= self._renew_s

    def _register(self, session: StudentSession, now: float) -> EdlError | None:
        """Create or replace a lease; return an error that concerns only this student."""
        facts = session.facts()
        try:
            self._registry.register(
                "students", self.service, session.student_id, facts, self._ttl_s
            )
        except (LeaseSuperseded, WrongKeyType) as error:
            return error
        # Spread renewals: else students that subscribed together would always be written together.
        session.wrote(facts, now - random.random() * self._renew_s, notified=True)
        return None

    def _beat(self, updates: Sequence[_LeaseUpdate], now: float) -> list[_LeaseUpdate]:
        """Renew leases; return those that are gone, or have another incarnation."""
        if not updates:
            return []
        beats = [(self.service, update.beat) for update in updates]
        answers = self._registry.beat_many("students", beats, self._ttl_s)
        unknown = []
        for update, answer in zip(updates, answers, strict=True):
            if answer is BeatAnswer.UNKNOWN:
                unknown.append(update)
            else:
                update.session.wrote(update.facts, now, notified=update.beat.notify)
        return unknown

    def _leave(self) -> None:
        if not self._leaving:
            return
        for member in self._registry.read("students", self.service, sorted(self._leaving)):
            if member.facts.get(MANAGER) == self._manager:  # else it has moved to another manager
                incarnation = self._leaving[member.member]
                self._registry.leave("students", self.service, member.member, incarnation)
        self._leaving.clear()

    def is_idle(self, now: float) -> bool:
        """Whether there has been no student for so long that the hub can be deleted."""
        if self._sessions or self._arrivals or self._leaving:
            self._used_s = now
        return now - self._used_s > FACTS_TTLS * self._ttl_s

    def view(self) -> HubView:
        """Return figures for the metrics."""
        reports = [session.report for session in self._sessions.values()]
        return HubView(
            streams=len(reports),
            students=Counter(report.state or "new" for report in reports),
            wanted=sum(report.want for report in reports),
            assigned=sum(
                len(s.pushed_row.teachers) for s in self._sessions.values() if s.pushed_row
            ),
            samples_per_second=sum(report.samples_per_second for report in reports),
            starved_s=sum(report.starved_seconds for report in reports),
            blocked_s=sum(report.blocked_seconds for report in reports),
            source_wait_s=sum(report.source_wait_seconds for report in reports),
            pushed=self._pushed,
            refresh_s=self._refresh_s,
        )
