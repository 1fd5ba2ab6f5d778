"""What one manager knows of one service: changes and reports in, assignments out. No I/O."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Set
from dataclasses import dataclass, field

from ..proto import coordinator_pb2 as pb
from ..proto.version import PROTOCOL_VERSION
from ..scheduler import assignment as rule
from .facts import teacher_from
from .heartbeat import BEATS_PER_TTL
from .registry import FACTS_TTLS, Changes, Member

log = logging.getLogger(__name__)

DRAINING = "draining"
#: What a student needs to know of a teacher; a change of anything else is not worth a message.
_TOLD = ("teacher_id", "incarnation", "address", "protocol", "content_id", "numerics_id", "state")


@dataclass(slots=True)
class Student:
    """One student of this manager.

    Attributes:
        report: the latest that it said.
        alive_until_s: when its lease runs out, unless it reports again.
        assigned: ids of the teachers it is advised to send to.
        lost: teachers of its that died -> when they are forgotten.
        reason: why its assignment is what it is.
        told: the teachers, and `told_lost` the lost ones, that it was last told of.
    """

    report: pb.StudentReport
    alive_until_s: float
    assigned: tuple[str, ...] = ()
    lost: dict[str, float] = field(default_factory=dict)
    reason: str = "no teacher is live"
    told: object = None
    told_lost: frozenset[str] = frozenset()


class Roster:
    """Teachers and students of one service, and who serves whom.

    A teacher goes only when the registry says that it left or that a sweep took it out. One that
    is missing without such a record was forgotten by a registry that lost its memory: it has one
    TTL and one beat to register again. In the same time after the roster began, teachers that
    students say they hold are believed to be there.

    Args:
        service: its name.
        ttl_s: seconds without a report after which a student is gone, and the unit of the grace.
        term: first part of the epoch of all assignments made here; in ms since 1970.
        now: seconds of any monotonic clock, as everywhere below.
    """

    def __init__(self, service: str, ttl_s: float, term: int, now: float) -> None:
        self.service = service
        self.term = term
        self.counter = 0
        self.cursor = 0
        self.students: dict[str, Student] = {}
        self.teachers: dict[str, Member] = {}
        self._ttl_s = ttl_s
        self._grace_s = ttl_s * (1 + 1 / BEATS_PER_TTL)
        self._believing_until_s = now + self._grace_s
        self._missing: dict[str, float] = {}
        self._state = rule.AssignmentState()
        self._due: set[str] = set()

    def forgive(self, now: float) -> None:
        """The registry was away or lost its memory: begin the time of grace, and read it anew."""
        self._believing_until_s = now + self._grace_s
        self._missing = dict.fromkeys(self._missing, now)
        self.cursor = 0

    # -- teachers

    def apply(self, changes: Changes, now: float) -> None:
        """Take over what the registry says about teachers."""
        self.cursor = changes.cursor
        for member in changes.members:
            self._teacher_is(member, now)
        for teacher in changes.lost:
            self._teacher_gone(teacher, lost=True, now=now)
        for teacher in changes.left:
            self._teacher_gone(teacher, lost=False, now=now)
        if changes.full:
            self.reconcile({member.member for member in changes.members}, now)

    def reconcile(self, names: Set[str], now: float) -> None:
        """Compare with all ids that the registry has; what differs is missing, or to be read."""
        for teacher in self.teachers.keys() - names:
            self._missing.setdefault(teacher, now)
        for teacher in self._missing.keys() & names:
            del self._missing[teacher]
        if names - self.teachers.keys():
            self.cursor = 0

    def _teacher_is(self, member: Member, now: float) -> None:
        self.teachers[member.member] = member
        self._missing.pop(member.member, None)
        for student in self.students.values():
            student.lost.pop(member.member, None)
            if member.member in student.assigned:
                self._due.add(student.report.student_id)
        self._reduce(rule.TeacherUp(member.member, member.incarnation), now)
        if member.facts.get("state") == DRAINING:
            self._reduce(rule.TeacherDraining(member.member), now)

    def _teacher_gone(self, teacher: str, *, lost: bool, now: float) -> None:
        if self.teachers.pop(teacher, None) is None:
            return
        self._missing.pop(teacher, None)
        self._reduce(rule.TeacherDown(teacher, lost=lost), now)
        if lost:
            log.info("service %s lost teacher %s", self.service, teacher)

    # -- students

    def reported(self, report: pb.StudentReport, now: float) -> None:
        """A student says how it is; one that is new brings the teachers that it holds."""
        if (report.term, report.counter) > (self.term, self.counter):
            self.term, self.counter = report.term + 1, 0
            self._due.update(self.students)
        student = self.students.get(report.student_id)
        holding: tuple[str, ...] = ()
        if student is None:
            student = self.students[report.student_id] = Student(report, 0.0)
            self._due.add(report.student_id)
            if now < self._believing_until_s:
                self._believe(report.teachers, now)
            holding = tuple(t for t in report.teachers if t in self.teachers)
            news = True
        else:
            news = report.want != student.report.want
        student.report = report
        student.alive_until_s = now + self._ttl_s
        if news:
            self._reduce(rule.StudentReported(report.student_id, report.want, holding), now)

    def gone(self, student_id: str, now: float) -> None:
        """A student closed its stream by itself, or its lease ran out."""
        if self.students.pop(student_id, None) is not None:
            self._due.discard(student_id)
            self._reduce(rule.StudentGone(student_id), now)

    def subscribed(self, student_id: str) -> None:
        """A new stream of a student begins: it is told its assignment, changed or not."""
        self.students[student_id].told = None
        self._due.add(student_id)

    def _believe(self, teachers: Iterable[str], now: float) -> None:
        for teacher in teachers:
            if teacher not in self.teachers:
                self.teachers[teacher] = Member(teacher)
                self._missing[teacher] = now
                self._reduce(rule.TeacherUp(teacher), now)

    # -- time

    def give_up_missing(self, now: float) -> None:
        """Teachers that had their time of grace are lost. Not to be called during an outage."""
        for teacher in [t for t, since in self._missing.items() if now - since > self._grace_s]:
            self._teacher_gone(teacher, lost=True, now=now)

    def expire(self, now: float) -> list[str]:
        """Forget lost teachers in time, and students whose lease ran out; returns the latter."""
        for student in self.students.values():
            for teacher in [t for t, until in student.lost.items() if until <= now]:
                del student.lost[teacher]
        late = [name for name, s in self.students.items() if s.alive_until_s <= now]
        for name in late:
            log.info("service %s: the lease of student %s ran out", self.service, name)
            self.gone(name, now)
        return late

    # -- what comes out

    def assignments(self) -> list[tuple[str, pb.Assignment]]:
        """What is to be told to which student, since the last call; nothing is told twice."""
        told: list[tuple[str, pb.Assignment]] = []
        if not self._due:
            return told
        live = sum(
            1 for t in self.teachers.values() if t.facts and t.facts.get("state") != DRAINING
        )
        for name in sorted(self._due):
            student = self.students[name]
            teachers = [teacher_from(self.teachers[t]) for t in student.assigned]
            lost = frozenset(student.lost)
            content = [tuple(getattr(t, part) for part in _TOLD) for t in teachers]
            if student.told == content and lost <= student.told_lost:
                continue
            student.told, student.told_lost = content, lost
            self.counter += 1
            told.append((name, self._assignment(student, teachers, live)))
        self._due.clear()
        return told

    def _assignment(self, student: Student, teachers: list[pb.Teacher], live: int) -> pb.Assignment:
        return pb.Assignment(
            protocol_version=PROTOCOL_VERSION,
            term=self.term,
            counter=self.counter,
            teachers=teachers,
            lost=sorted(student.lost),
            live_teachers=live,
            reason=student.reason,
        )

    def _reduce(self, event: rule.AssignmentEvent, now: float) -> None:
        self._state, changes = rule.reduce(self._state, event)
        for change in changes:
            student = self.students.get(change.student_id)
            if student is None:
                continue
            student.assigned = tuple(t for t in change.teachers if t in self.teachers)
            student.reason = change.reason
            # One that is here again under another incarnation is told by that, not as lost.
            for teacher in set(change.lost) - self.teachers.keys():
                student.lost[teacher] = now + FACTS_TTLS * self._ttl_s
            self._due.add(change.student_id)
