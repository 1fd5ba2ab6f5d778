"""A scripted mesh of any size for tests of the page: no processes, and a test says what happens."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl.errors import UsageError
from edl.proto import coordinator_pb2 as pb

_UPPER = 512 << 20
_LOWER = 128 << 20
_CONTENTS = {"resnet101": "9f2c61d07a", "bert-large": "41be0c77d2"}


@dataclass
class _Student:
    report: pb.StudentReport
    assigned: list[str] = field(default_factory=list)
    reason: str = ""


class ScriptedMesh:
    """Teachers on hosts of four or eight, and students that share them.

    Rates and volumes change from one status to the next.
    """

    def __init__(self, teachers: int, students: int, services: int = 1) -> None:
        self._rng = random.Random(7)
        self._lock = threading.Lock()
        self._counter = 0
        self._names = list(_CONTENTS)[:services]
        self.teachers: dict[str, dict[str, pb.Teacher]] = {name: {} for name in self._names}
        self.students: dict[str, dict[str, _Student]] = {name: {} for name in self._names}
        self.log: dict[str, list[pb.Event]] = {name: [] for name in self._names}
        self.drained: list[tuple[str, str]] = []
        for number in range(teachers):
            # The first service has three fifths of the teachers.
            name = self._names[-1 if services > 1 and number % 5 >= 3 else 0]
            self._add_teacher(name, number, hosted=4 if teachers <= 20 else 8)
        for number in range(students):
            self._add_student(self._names[number % len(self._names)], number)
        for name in self._names:
            self._assign(name, "the first assignment of a new term")

    def status(self) -> pb.MeshStatus:
        with self._lock:
            services = [self._service(name) for name in self._names]
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
            self._note(service, "draining", teacher_id, "an administrator asked it to leave")
            self._assign(service, f"{teacher_id} drains")

    def kill(self, service: str, teacher_id: str) -> None:
        """End the lease of a teacher."""
        with self._lock:
            del self.teachers[service][teacher_id]
            self._note(service, "lost", teacher_id, "no heartbeat within its TTL of 6 s")
            self._assign(service, f"{teacher_id} was lost")

    def refuse(self, service: str, teacher_id: str, why: str) -> None:
        """Refuse to admit a teacher."""
        with self._lock:
            self.teachers[service][teacher_id].admission = why
            self._note(service, "refused", teacher_id, why)
            self._assign(service, f"{teacher_id} was refused")

    def blame(
        self, service: str, student: str, *, straggler: str, ejected: str, cause: str
    ) -> None:
        """Have a student report a slow teacher, and one that it ejected."""
        with self._lock:
            report = self.students[service][student].report
            report.MergeFrom(
                pb.StudentReport(stragglers=[straggler], ejected=[ejected], ejected_for=[cause])
            )

    def set_state(self, service: str, student_id: str, state: str) -> None:
        with self._lock:
            self.students[service][student_id].report.state = state

    def _add_teacher(self, service: str, number: int, hosted: int) -> None:
        host = f"p4-{number // hosted + 1:02d}"
        teacher = pb.Teacher(
            teacher_id=f"{host}-{number % hosted}", incarnation=_now_ms(), state="serving",
            address=f"10.0.1.{number // hosted + 1}:{9000 + number % hosted}", protocol="oip",
            content_id=_CONTENTS[service], device="Tesla P4", slots=4, model=service, host=host,
            t_t_seconds=self._rng.uniform(0.0019, 0.0025), admission="admitted",
            lease_remaining_s=5.0,
        )  # fmt: skip
        self.teachers[service][teacher.teacher_id] = teacher
        self._note(service, "registered", teacher.teacher_id, f"Tesla P4 on {host}, probed well")

    def _add_student(self, service: str, number: int) -> None:
        job = ("imagenet-r50", "imagenet-r50", "distil-mobile")[number % 3]
        rank = number // 3 * (2 if job == "imagenet-r50" else 1) + (number % 3 == 1)
        report = pb.StudentReport(
            service=service, student_id=f"{job}/{rank}", incarnation=_now_ms(), min=1,
            t_s_seconds=0.0006, t_t_seconds=0.0022, upper_bytes=_UPPER, lower_bytes=_LOWER,
            state="steady", host=f"v100-{number // 4 + 1}", data_epoch=3,
            content_id=_CONTENTS[service],
        )  # fmt: skip
        self.students[service][report.student_id] = _Student(report)
        self._note(service, "subscribed", report.student_id, f"from {report.host}, wants 1")

    def _assign(self, service: str, reason: str) -> None:
        """Deal the usable teachers out in rounds, as the scheduler does with equal ones."""
        usable = [
            t.teacher_id
            for t in self.teachers[service].values()
            if t.state == "serving" and t.admission == "admitted"
        ]
        students = list(self.students[service].values())
        for number, student in enumerate(students):
            before, student.assigned = student.assigned, usable[number :: len(students)]
            want = max(1, -(-len(self.teachers[service]) // len(students)))
            student.report.want = student.report.needed = want
            if before != student.assigned:
                student.reason = reason
                name = student.report.student_id
                self._note(service, "assigned", name, reason, before, student.assigned)

    def _service(self, name: str) -> pb.ServiceStatus:
        students = list(self.students[name].values())
        busy = {teacher for student in students for teacher in student.assigned}
        for teacher in self.teachers[name].values():
            works = teacher.teacher_id in busy
            teacher.samples_per_second = works * self._rng.uniform(400, 470)
            teacher.in_flight = works * self._rng.randint(1, 4)
        for student in students:
            student.report.volume_bytes = self._rng.randrange(_UPPER)
            student.report.samples_per_second = 400.0 * len(student.assigned)
        return pb.ServiceStatus(
            name=name, teachers=self.teachers[name].values(), term=1, counter=self._counter,
            students=[
                pb.StudentStatus(
                    report=student.report, assigned=student.assigned, lease_remaining_s=5.0,
                    reason=student.reason,
                )
                for student in students
            ],
            teacher_count=len(self.teachers[name]), student_count=len(students),
            wanted=sum(student.report.want for student in students),
            assigned=sum(len(student.assigned) for student in students),
            samples_per_second=sum(student.report.samples_per_second for student in students),
            leader="10.0.0.1:7500", content_id=_CONTENTS[name],
            content_teachers={_CONTENTS[name]: len(self.teachers[name])},
            content_students={_CONTENTS[name]: len(students)},
        )  # fmt: skip

    def _note(
        self, service: str, kind: str, subject: str, text: str,
        before: Sequence[str] = (), after: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._counter += 1
        event_id = f"{_now_ms()}-{self._counter:06d}"
        self.log[service].append(
            pb.Event(
                service=service, id=event_id, time_ms=_now_ms(), kind=kind, subject=subject,
                text=text, before=before, after=after,
            )
        )  # fmt: skip


def _now_ms() -> int:
    return int(1000 * time.time())


def scene(teachers: int) -> ScriptedMesh:
    """A mesh with something of everything that the page can show."""
    students = 3 if teachers <= 20 else max(3, teachers // 14)
    mesh = ScriptedMesh(teachers, students, services=1 if teachers <= 20 else 2)
    for service, members in mesh.teachers.items():
        ranks = list(mesh.students[service])
        mesh.set_state(service, ranks[0], "blocked")
        mesh.set_state(service, ranks[-1], "starved")
        for number, teacher_id in enumerate(list(members)):
            if number % 61 == 3:
                mesh.drain(service, teacher_id)
            elif number % 83 == 7:
                mesh.refuse(service, teacher_id, "its content is not that of the service")
    return mesh
