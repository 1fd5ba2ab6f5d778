"""A mesh of any size for tests of the page: no processes, and a test says what happens."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence

from edl.coordinator.web.feed import MeshSource
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import UsageError

SERVICES = ["resnet101", "bert-large"]


class ScriptedMesh(MeshSource):
    """Teachers on hosts of four, and students that share them; rates change with each status."""

    def __init__(self, teachers: int, students: int, services: int = 1) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        names = SERVICES[:services]
        self.teachers: dict[str, dict[str, pb.Teacher]] = {name: {} for name in names}
        self.students: dict[str, dict[str, pb.StudentStatus]] = {name: {} for name in names}
        self.log: dict[str, list[pb.Event]] = {name: [] for name in names}
        self.drained: list[tuple[str, str]] = []
        for number in range(teachers):
            name, host = names[number % services], f"p4-{number // 4 + 1:02d}"
            teacher = pb.Teacher(
                teacher_id=f"{host}-{number % 4}", state="serving", host=host, address=f"{host}:1",
                slots=4, t_t_seconds=0.0022, admission="admitted", lease_remaining_s=5.0,
            )  # fmt: skip
            self.teachers[name][teacher.teacher_id] = teacher
        for number in range(students):
            name = names[number % services]
            report = pb.StudentReport(
                service=name, student_id=f"imagenet-r50/{number}", state="steady",
                upper_bytes=512 << 20, lower_bytes=128 << 20,
            )  # fmt: skip
            student = pb.StudentStatus(report=report, lease_remaining_s=5.0)
            self.students[name][report.student_id] = student
        for name in names:
            self._assign(name, "the first assignment of a new term")

    def status(self) -> pb.MeshStatus:
        with self._lock:
            services = [self._service(name) for name in self.teachers]
            managers = ["10.0.0.1:7500", "10.0.0.2:7500"]
            return pb.MeshStatus(services=services, managers=managers, redis_time_ms=_now_ms())

    def events(self, service: str, after: str, last: int) -> Sequence[pb.Event]:
        with self._lock:
            news = [event for event in self.log[service] if event.id > after]
            return news[-last:] if last else news

    def drain(self, service: str, teacher_id: str) -> None:
        with self._lock:
            teacher = self.teachers.get(service, {}).get(teacher_id)
            if teacher is None:
                raise UsageError(f"there is no teacher {teacher_id} of service {service}")
            teacher.state = "draining"
            self.drained.append((service, teacher_id))
            self._assign(service, f"{teacher_id} drains")

    def subscribe(self, service: str, student_id: str) -> None:
        """Add a service with one student, which may have named both as it likes."""
        with self._lock:
            report = pb.StudentReport(service=service, student_id=student_id, state="steady")
            self.teachers[service], self.log[service] = {}, []
            self.students[service] = {student_id: pb.StudentStatus(report=report)}

    def kill(self, service: str, teacher_id: str) -> None:
        with self._lock:
            del self.teachers[service][teacher_id]
            self._note(service, "lost", teacher_id, "no heartbeat within its TTL of 6 s")
            self._assign(service, f"{teacher_id} was lost")

    def _assign(self, service: str, reason: str) -> None:
        """Deal the usable teachers out in rounds."""
        teachers = self.teachers[service].items()
        good = ("serving", "admitted")
        usable = [name for name, one in teachers if (one.state, one.admission) == good]
        students = list(self.students[service].values())
        for number, student in enumerate(students):
            student.assigned[:] = usable[number :: len(students)]
            student.report.want = student.report.needed = -(-len(usable) // len(students))
            student.reason = reason
            self._note(service, "assigned", student.report.student_id, reason)

    def _service(self, name: str) -> pb.ServiceStatus:
        teachers, students = self.teachers[name].values(), self.students[name].values()
        busy = {teacher for student in students for teacher in student.assigned}
        for teacher in teachers:
            works = teacher.teacher_id in busy
            teacher.samples_per_second = works * (400 + next(self._numbers) % 70)
        for student in students:
            student.report.volume_bytes = next(self._numbers) % 512 << 20
            student.report.samples_per_second = 400.0 * len(student.assigned)
        return pb.ServiceStatus(
            name=name, teachers=teachers, students=students, term=1, teacher_count=len(teachers),
            student_count=len(students), leader="10.0.0.1:7500",
            samples_per_second=sum(student.report.samples_per_second for student in students),
        )  # fmt: skip

    def _note(self, service: str, kind: str, subject: str, text: str) -> None:
        now_ms = _now_ms()
        told = {"service": service, "kind": kind, "subject": subject, "text": text}
        event_id = f"{now_ms}-{next(self._numbers):06d}"
        self.log[service].append(pb.Event(id=event_id, time_ms=now_ms, **told))


def _now_ms() -> int:
    return int(1000 * time.time())
