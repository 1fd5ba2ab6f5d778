"""One service at one manager: joins its roster with its students' streams and its leases."""

from __future__ import annotations

import logging
from typing import Protocol

from ..errors import EdlError, LeaseSuperseded, RetryableError
from ..proto import coordinator_pb2 as pb
from .heartbeat import BEATS_PER_TTL
from .registry import FACTS_TTLS, Registry
from .roster import Roster
from .student_leases import StudentLeases

log = logging.getLogger(__name__)


class Stream(Protocol):
    """The way back to one subscribed student. Neither method may block or raise."""

    def push(self, assignment: pb.Assignment) -> None:
        """Send it; a later one replaces an earlier one that was not sent yet."""

    def close(self, error: EdlError) -> None:
        """End the stream by `error`."""


class Desk:
    """All that a manager does for one service. Used by the manager's thread alone.

    Methods that read or write the registry may raise RegistryUnavailable, and then have changed
    nothing that a later call does not make good.

    Args:
        registry: the leases.
        service: name of the service.
        ttl_s: TTL of students' leases, in seconds.
        term: first part of the epoch of its assignments.
        now: monotonic seconds, as everywhere below.
    """

    def __init__(
        self, registry: Registry, service: str, ttl_s: float, term: int, now: float
    ) -> None:
        self.service = service
        self._registry = registry
        self._roster = Roster(service, ttl_s, term, now)
        self._leases = StudentLeases(registry, service, ttl_s)
        self._streams: dict[str, Stream] = {}
        self._unwritten: set[str] = set()
        self._ended: set[str] = set()
        self._ttl_s = ttl_s
        self._compared_s = self._used_s = now

    # -- what students do

    def subscribed(self, stream: Stream, report: pb.StudentReport, now: float) -> None:
        """A student opened a stream; it takes the place of older ones, or is refused."""
        name = report.student_id
        known = self._roster.students.get(name)
        if known is not None and report.incarnation < known.report.incarnation:
            stream.close(_superseded(report))
            return
        if (older := self._streams.get(name)) is not None:
            again = known is not None and report.incarnation == known.report.incarnation
            older.close(
                RetryableError(f"{name} opened another stream") if again else _superseded(report)
            )
        self._streams[name] = stream
        self._take(report, now)
        self._roster.subscribed(name)
        log.info("service %s: student %s wants teachers: %d", self.service, name, report.want)

    def reported(self, stream: Stream, report: pb.StudentReport, now: float) -> None:
        """A student says how it is; on a stream that is not its latest, nobody listens."""
        if self._streams.get(report.student_id) is stream:
            self._take(report, now)

    def ended(self, stream: Stream, student_id: str, now: float, *, clean: bool) -> None:
        """A stream is over. Unless its student closed it, the student has one TTL to come back."""
        if self._streams.get(student_id) is not stream:
            return
        del self._streams[student_id]
        if clean:
            log.info("service %s: student %s is done", self.service, student_id)
            self._roster.gone(student_id, now)
            self._ended.add(student_id)

    def _take(self, report: pb.StudentReport, now: float) -> None:
        self._roster.reported(report, now)
        self._unwritten.add(report.student_id)
        self._ended.discard(report.student_id)

    # -- what the registry says

    def forgive(self, now: float) -> None:
        """The registry was away: read it anew, write it anew, and take nobody out for a while."""
        self._roster.forgive(now)
        self._unwritten.update(self._roster.students)

    def look(self, now: float, *, sweeping: bool) -> None:
        """Read what has changed; `sweeping`: take out the dead first."""
        if sweeping:
            self._registry.sweep("teachers", self.service)
        changes = self._registry.changes("teachers", self.service, self._roster.cursor)
        self._roster.apply(changes, now)
        if now - self._compared_s < self._ttl_s / BEATS_PER_TTL:
            return
        self._compared_s = now
        if sweeping:
            self._registry.sweep("students", self.service)
        self._roster.reconcile(self._registry.names("teachers", self.service), now)
        self._roster.give_up_missing(now)

    # -- what comes of it

    def expire(self, now: float) -> None:
        """Let go of students that have not reported for one TTL."""
        self._ended.update(self._roster.expire(now))

    def tell(self) -> None:
        """Push assignments that changed."""
        for student_id, assignment in self._roster.assignments():
            self._unwritten.add(student_id)
            if (stream := self._streams.get(student_id)) is not None:
                stream.push(assignment)

    def write(self, now: float) -> None:
        """Bring the students' leases up to date."""
        for student_id in list(self._ended):
            self._leases.end(student_id)
            self._ended.discard(student_id)
        for student_id in list(self._unwritten):
            if (student := self._roster.students.get(student_id)) is not None:
                try:
                    self._leases.write(student, now)
                except LeaseSuperseded as error:
                    self._supersede(student_id, error, now)
            self._unwritten.discard(student_id)

    def _supersede(self, student_id: str, error: LeaseSuperseded, now: float) -> None:
        """A newer incarnation has come to another manager."""
        self._roster.gone(student_id, now)
        if (stream := self._streams.pop(student_id, None)) is not None:
            stream.close(error)

    def is_idle(self, now: float) -> bool:
        """Whether no student was here for so long that nothing of it need be remembered."""
        if self._roster.students or self._streams or self._ended:
            self._used_s = now
        return now - self._used_s > FACTS_TTLS * self._ttl_s

    def students(self, now: float) -> pb.ServiceStatus:
        """Its students and epoch; without teachers, which the registry knows best."""
        return pb.ServiceStatus(
            name=self.service,
            term=self._roster.term,
            counter=self._roster.counter,
            students=[
                pb.StudentStatus(
                    report=student.report,
                    assigned=student.assigned,
                    lease_remaining_s=student.alive_until_s - now,
                )
                for _, student in sorted(self._roster.students.items())
            ],
        )


def _superseded(by: pb.StudentReport) -> LeaseSuperseded:
    return LeaseSuperseded(f"a newer incarnation of student {by.student_id} has come")
