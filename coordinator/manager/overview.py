"""The status of the mesh as one message; equal requests share it for half a second or longer."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass

from ...proto import coordinator_pb2 as pb
from ...runtime.errors import RedisUnavailable
from ..registry import DesiredCount, Registry, Row, StoredContentPlan, Table
from ..store.records import Member, WrongKeyType
from .messages import parse_number, report_from, teacher_from
from .watch_cache import WatchCache

log = logging.getLogger(__name__)

#: A status is cached for this many seconds, or for this multiple of the duration of its read if
#: that is longer.
_FRESH_S, _FRESH_TIMES = 0.5, 8.0
#: The greatest sum of wanted teachers that fits its field.
_MAX_WANTED = 2**32 - 1
ADMITTED = "admitted"


class Overview:
    """Returns the status of the mesh. Thread-safe.

    Facts are read only of teachers that have changed or are shown, so ten thousand teachers cost
    little.

    Args:
        registry: registry of the mesh.
        leader_of: service -> address of its leader; empty: none.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        registry: Registry,
        leader_of: Callable[[str], str] = lambda _: "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._registry = registry
        self._leader_of = leader_of
        self._clock = clock
        self._lock = threading.Lock()
        self._caches: dict[str, WatchCache] = {}
        self._cached: dict[tuple[str, int], tuple[float, pb.MeshStatus]] = {}
        self._unreadable: set[str] = set()
        self._failure: tuple[float, RedisUnavailable] | None = None  # when the last read failed

    def status(self, service: str = "", max_members: int = 0) -> pb.MeshStatus:
        """Return the live members, and which teachers are assigned to which students.

        Args:
            service: one service; empty for all.
            max_members: maximum number of teachers, and of students, of each service, those with
                problems first; 0: all.

        Raises:
            UnavailableError: the registry does not answer, or a key of `service` has another type.
                In a status of all services, a service with such a key has only its name.
            AccessError: the registry refuses access.
        """
        asked_s = self._clock()
        with self._lock:
            began_s = self._clock()
            until_s, status = self._cached.get((service, max_members), (0.0, None))
            if status is not None and began_s < until_s:
                return status
            # If a read failed while this call waited for the lock, this call fails, too. Otherwise
            # each waiting call in turn would wait for a registry that hangs.
            if self._failure is not None and asked_s < self._failure[0]:
                raise copy.copy(self._failure[1])  # without the traceback of others
            try:
                status = self._read(service, max_members)
            except WrongKeyType:  # of this service
                raise
            except RedisUnavailable as error:
                self._failure = self._clock(), copy.copy(error)
                raise
            took_s = self._clock() - began_s
            self._cached = {
                key: (until_s, cached)
                for key, (until_s, cached) in self._cached.items()
                if until_s > began_s
            }
            fresh_until_s = self._clock() + max(_FRESH_S, _FRESH_TIMES * took_s)
            self._cached[service, max_members] = fresh_until_s, status
            return status

    def _read(self, service: str, max_members: int) -> pb.MeshStatus:
        registry = self._registry
        status = pb.MeshStatus(
            managers=[member.member for member in registry.members("managers", "")],
            redis_time_ms=registry.time_ms(),
        )
        names = registry.services()
        for name in self._caches.keys() - set(names):
            del self._caches[name]
        unreadable = set()
        for name in names:
            if service not in ("", name):
                continue
            try:
                service_status = self._service(name, max_members)
            except WrongKeyType as error:
                if service:
                    raise
                unreadable.add(name)
                if name not in self._unreadable:
                    log.warning("service %s: its status is empty: %s", name, error)
                service_status = pb.ServiceStatus(name=name)
            status.services.append(service_status)
        if not service:
            self._unreadable = unreadable
        return status

    def _service(self, name: str, max_members: int) -> pb.ServiceStatus:
        records = self._read_service(name)
        status = _summary(records)
        names = _sorted_teachers(records)[: max_members or None]
        for member in self._registry.read("teachers", name, names):
            teacher = teacher_from(member)
            teacher.admission = _admission_of(records, member)
            status.teachers.append(teacher)
        names = _sorted_students(records)[: max_members or None]
        status.students.extend(_student(records, student) for student in names)
        return status

    def _read_service(self, name: str) -> _ServiceRecords:
        registry = self._registry
        cache = self._caches.setdefault(name, WatchCache(0.0))
        now = self._clock()
        cache.apply(registry.changes("teachers", name, cache.cursor_at(now)), now)
        cache.compare(registry.names("teachers", name), now)
        cache.drop_overdue(now)
        admitted = registry.admitted(name)
        any_pending = any(
            admitted.get(member.member) not in (0, member.incarnation)
            for member in cache.members.values()
        )
        return _ServiceRecords(
            name=name,
            teachers=dict(cache.members),
            students={member.member: member for member in registry.members("students", name)},
            table=registry.table(name, None),
            leader=self._leader_of(name),
            plan=registry.content_plan(name),
            admitted=admitted,
            refused=registry.refused(name) if any_pending else {},
            desired=registry.desired(name),
        )


@dataclass(frozen=True, slots=True)
class _ServiceRecords:
    """The records of one service in the registry.

    Attributes:
        name: name of the service.
        teachers: by id; facts that change with every batch may be stale.
        students: by id, as their managers wrote them.
        table: assignments.
        leader: address of the manager that leads the service; empty: none.
        plan: its content plan.
        admitted: teacher id -> admitted incarnation; 0: any, as there are no probes.
        refused: teacher id -> reason.
        desired: desired number of teachers; None: no leader has written one recently.
    """

    name: str
    teachers: Mapping[str, Member]
    students: Mapping[str, Member]
    table: Table
    leader: str
    plan: StoredContentPlan
    admitted: Mapping[str, int]
    refused: Mapping[str, str]
    desired: DesiredCount | None = None


def _admission_of(records: _ServiceRecords, member: Member) -> str:
    """Return "admitted", the reason for refusal, or "": not probed yet."""
    if records.admitted.get(member.member) in (0, member.incarnation):
        return ADMITTED
    return records.refused.get(member.member, "")


def _sorted_teachers(records: _ServiceRecords) -> list[str]:
    """Return ids of teachers: refused, waiting, draining, idle ones, then the others."""
    used = {name for row in records.table.rows.values() for name in row.teachers}

    def rank(member: Member) -> tuple[int, str]:
        admission = _admission_of(records, member)
        problems = (
            admission not in ("", ADMITTED),
            not admission,
            member.draining,
            member.member not in used,
        )
        return problems.index(True) if True in problems else len(problems), member.member

    return [name for _, name in sorted(rank(member) for member in records.teachers.values())]


def _sorted_students(records: _ServiceRecords) -> list[str]:
    """Return ids of students: those without teachers, starved, with too few, then the others."""

    def rank(member: Member) -> tuple[int, str]:
        have = len(records.table.rows.get(member.member, Row()).teachers)
        want = parse_number(member.facts.get("want"))
        problems = (want > 0 and have == 0, member.facts.get("state") == "starved", have < want)
        return problems.index(True) if True in problems else len(problems), member.member

    return [name for _, name in sorted(rank(member) for member in records.students.values())]


def _student(records: _ServiceRecords, name: str) -> pb.StudentStatus:
    """Return a student with its assignment."""
    row, member = records.table.rows.get(name, Row()), records.students[name]
    return pb.StudentStatus(
        report=report_from(member),
        assigned=row.teachers,
        lease_remaining_s=member.remaining_s,
        reason=row.reason,
    )


def _summary(records: _ServiceRecords) -> pb.ServiceStatus:
    """Return the status of a service without its members."""
    students = [member.facts for member in records.students.values()]
    rows = [records.table.rows[name] for name in records.students if name in records.table.rows]
    contents = (member.facts.get("content_id", "") for member in records.teachers.values())
    desired = records.desired
    return pb.ServiceStatus(
        desired_teachers=None if desired is None else desired.count,
        desired_reason="" if desired is None else desired.reason,
        desired_since_ms=0 if desired is None else desired.since_ms,
        name=records.name,
        term=records.table.version[0],
        counter=records.table.version[1],
        teacher_count=len(records.teachers),
        student_count=len(students),
        teacher_states=Counter(_state(records, member) for member in records.teachers.values()),
        student_states=Counter(facts.get("state") or "new" for facts in students),
        wanted=min(int(_sum(students, "want")), _MAX_WANTED),
        assigned=sum(len(row.teachers) for row in rows),
        samples_per_second=_sum(students, "samples_per_second"),
        starved_seconds=_sum(students, "starved_seconds"),
        blocked_seconds=_sum(students, "blocked_seconds"),
        source_wait_seconds=_sum(students, "source_wait_seconds"),
        leader=records.leader,
        content_id=records.plan.content_id,
        next_content_id=records.plan.next_content_id,
        upgrade_at=records.plan.at if records.plan.next_content_id else "",
        content_teachers=Counter(content for content in contents if content),
        content_students=Counter(row.content_id for row in rows if row.content_id),
    )


def own_part(
    status: pb.MeshStatus, owned: Callable[[str], Container[str]], max_members: int = 0
) -> pb.MeshStatus:
    """Return the part of a status with some students and their teachers, summed up again.

    Args:
        status: status of all members.
        owned: name of a service -> ids of the students to keep.
        max_members: maximum number of students, and of teachers, of each service; 0: all.
    """
    part = pb.MeshStatus(managers=status.managers, redis_time_ms=status.redis_time_ms)
    for service in status.services:
        names = owned(service.name)
        students = [s for s in service.students if s.report.student_id in names]
        if not students:
            continue
        assigned = {teacher for student in students for teacher in student.assigned}
        teachers = [t for t in service.teachers if t.teacher_id in assigned]
        part.services.add(
            name=service.name,
            leader=service.leader,
            content_id=service.content_id,
            teachers=teachers[: max_members or None],
            students=students[: max_members or None],
            teacher_count=len(teachers),
            student_count=len(students),
            teacher_states=Counter(state_of(t.admission, t.state) for t in teachers),
            student_states=Counter(s.report.state or "new" for s in students),
            wanted=min(sum(s.report.want for s in students), _MAX_WANTED),
            assigned=sum(len(s.assigned) for s in students),
        )
    return part


def state_of(admission: str, reported: str) -> str:
    """Return the state of a teacher for a status.

    Args:
        admission: as `_admission_of` returns it.
        reported: "serving", "draining" or "", as the teacher reports it.

    Returns:
        "refused", "waiting" (for its probe), or the reported state.
    """
    if admission not in ("", ADMITTED):
        return "refused"
    return (reported or "serving") if admission else "waiting"


def _state(records: _ServiceRecords, member: Member) -> str:
    reported = "draining" if member.draining else member.facts.get("state", "")
    return state_of(_admission_of(records, member), reported)


def _sum(members: Iterable[Mapping[str, str]], name: str) -> float:
    return sum(parse_number(facts.get(name)) for facts in members)
