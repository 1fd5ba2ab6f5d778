"""A mesh that plays a part: for looking at the page at any size, without processes.

`python -m edl.tests.coordinator.web.scripted_mesh 500` serves it until it is interrupted.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl.coordinator.web.server import WebServer
from edl.errors import UsageError
from edl.proto import coordinator_pb2 as pb

_UPPER = 512 << 20
_LOWER = 128 << 20
_SERVICES = {"resnet101": "9f2c61d07a", "bert-large": "41be0c77d2"}
_DEVICES = ("Tesla P4", "Tesla P4", "Tesla P4", "CPU")


@dataclass
class _Student:
    report: pb.StudentReport
    assigned: list[str] = field(default_factory=list)
    reason: str = ""


class ScriptedMesh:
    """Teachers on hosts of four or eight, students that wander between full and starved.

    Args:
        teachers: how many there are at first.
        students: how many.
        services: among which they are dealt out.
        seed: of everything that is drawn.
    """

    def __init__(self, teachers: int, students: int, services: int = 1, seed: int = 7) -> None:
        self._rng = random.Random(seed)
        self._lock = threading.Lock()
        self._number = 0
        self._at_host = 4 if teachers <= 20 else 8
        self._began = self._then = time.monotonic()
        self._epoch_ms = int(time.time() * 1000)
        self._names = list(_SERVICES)[:services]
        self.teachers: dict[str, dict[str, pb.Teacher]] = {name: {} for name in self._names}
        self.students: dict[str, dict[str, _Student]] = {name: {} for name in self._names}
        self.log: dict[str, list[pb.Event]] = {name: [] for name in self._names}
        self.drained: list[tuple[str, str]] = []
        for number in range(teachers):
            # The first service has three fifths of the teachers.
            name = self._names[-1 if services > 1 and number % 5 >= 3 else 0]
            self._join(name, number)
        for number in range(students):
            self._subscribe(self._names[number % len(self._names)], number)
        for name in self._names:
            self._share(name, "the first assignment of a new term")

    # -- what the page asks

    def status(self) -> pb.MeshStatus:
        with self._lock:
            self._advance()
            return pb.MeshStatus(
                services=[self._service(name) for name in self._names],
                managers=["10.0.0.1:7500", "10.0.0.2:7500"],
                redis_time_ms=self._now_ms(),
            )

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
            self._say(service, "draining", teacher_id, "an administrator asked it to leave")
            self._share(service, f"{teacher_id} drains")

    # -- what a test does to it

    def kill(self, service: str, teacher_id: str) -> None:
        """The teacher's lease ends."""
        with self._lock:
            del self.teachers[service][teacher_id]
            self._say(service, "lost", teacher_id, "no heartbeat within its TTL of 6 s")
            self._share(service, f"{teacher_id} was lost")

    def refuse(self, service: str, teacher_id: str, why: str) -> None:
        with self._lock:
            self.teachers[service][teacher_id].admission = why
            self._say(service, "refused", teacher_id, why)
            self._share(service, f"{teacher_id} was refused")

    def blame(
        self, service: str, student: str, *, straggler: str, ejected: str, cause: str
    ) -> None:
        """Have a student name a slow teacher, and one that it has put out of its pool."""
        with self._lock:
            report = self.students[service][student].report
            report.stragglers.append(straggler)
            report.ejected.append(ejected)
            report.ejected_for.append(cause)

    def put(self, service: str, student_id: str, state: str) -> None:
        """Let a student be in this state from now on."""
        with self._lock:
            self.students[service][student_id].report.state = state
            if state == "starved":
                why = "nothing is deliverable, and every window of its teachers is full"
                self._say(service, "starved", student_id, why)

    # -- its inside

    def _join(self, service: str, number: int) -> None:
        host = f"p4-{number // self._at_host + 1:02d}"
        device = self._rng.choice(_DEVICES)
        t_t_s = self._rng.uniform(0.9, 1.2) * (0.0021 if device != "CPU" else 0.0064)
        teacher = pb.Teacher(
            teacher_id=f"{host}-{number % self._at_host}",
            incarnation=self._now_ms() - self._rng.randrange(3_600_000),
            address=f"10.0.1.{number // self._at_host + 1}:{9000 + number % self._at_host}",
            protocol="oip",
            content_id=_SERVICES[service],
            numerics_id="onnxruntime-1.20/float32/mb8/avx2",
            verified="declared",
            device=device,
            state="serving",
            slots=4,
            lanes=1,
            t_t_seconds=t_t_s,
            model=service,
            host=host,
            admission="admitted",
        )
        self.teachers[service][teacher.teacher_id] = teacher
        self._say(service, "registered", teacher.teacher_id, f"{device} on {host}, probed well")

    def _subscribe(self, service: str, number: int) -> None:
        job = ("imagenet-r50", "imagenet-r50", "distil-mobile")[number % 3]
        rank = number // 3 * (2 if job == "imagenet-r50" else 1) + (number % 3 == 1)
        report = pb.StudentReport(
            service=service,
            student_id=f"{job}/{rank}",
            incarnation=self._epoch_ms,
            want=0,
            min=1,
            priority=0 if job == "imagenet-r50" else 1,
            t_s_seconds=self._rng.uniform(0.0005, 0.0008),
            t_t_seconds=0.0022,
            upper_bytes=_UPPER,
            lower_bytes=_LOWER,
            volume_bytes=self._rng.randrange(_LOWER // 2, _UPPER),
            state="steady",
            host=f"v100-{number // 4 + 1}",
            data_epoch=3,
            content_id=_SERVICES[service],
            starved_seconds=self._rng.uniform(0, 4),
            samples_delivered=self._rng.randrange(100_000, 900_000),
        )
        self.students[service][report.student_id] = _Student(report)
        self._say(service, "subscribed", report.student_id, f"from {report.host}, wants 1")

    def _share(self, service: str, reason: str) -> None:
        """Deal the usable teachers out in rounds, as the scheduler would with equal ones."""
        usable = [
            t.teacher_id
            for t in self.teachers[service].values()
            if t.state == "serving" and t.admission == "admitted"
        ]
        students = list(self.students[service].values())
        for place, student in enumerate(students):
            before, student.assigned = student.assigned, usable[place :: len(students)]
            student.report.want = max(1, -(-len(self.teachers[service]) // len(students)))
            student.report.needed = student.report.want
            if before != student.assigned:
                student.reason = reason
                name = student.report.student_id
                self._say(service, "assigned", name, reason, before, student.assigned)

    def _advance(self) -> None:
        now = time.monotonic()
        passed_s, self._then = now - self._then, now
        for service in self._names:
            for student in self.students[service].values():
                self._live(student.report, len(student.assigned), passed_s)
            busy = {t for s in self.students[service].values() for t in s.assigned}
            for teacher in self.teachers[service].values():
                works = teacher.teacher_id in busy
                noise = self._rng.uniform(0.86, 0.99) if works else 0.0
                teacher.samples_per_second = noise / teacher.t_t_seconds
                teacher.in_flight = self._rng.randint(1, 4) if works else 0
                teacher.lease_remaining_s = 6.0 - (now + hash(teacher.teacher_id) % 100 / 50) % 2

    def _live(self, report: pb.StudentReport, teachers: int, passed_s: float) -> None:
        flow = {"starved": -1.0, "blocked": 1.0, "source_wait": -0.4}.get(report.state, 0.0)
        volume = report.volume_bytes + (flow + self._rng.uniform(-0.25, 0.25)) * passed_s * 4e7
        report.volume_bytes = int(min(_UPPER, max(0, volume)))
        pace = {"starved": 0.45, "source_wait": 0.6}.get(report.state, 0.97)
        rate = pace * min(teachers / 0.0024, 1 / report.t_s_seconds)
        report.samples_per_second = rate * self._rng.uniform(0.94, 1.04)
        report.samples_delivered += int(rate * passed_s)
        report.starved_seconds += passed_s * (report.state == "starved")
        report.blocked_seconds += passed_s * (report.state == "blocked")
        report.source_wait_seconds += passed_s * (report.state == "source_wait")

    def _service(self, name: str) -> pb.ServiceStatus:
        teachers = self.teachers[name].values()
        reports = [student.report for student in self.students[name].values()]
        return pb.ServiceStatus(
            name=name,
            teachers=teachers,
            students=[
                pb.StudentStatus(
                    report=student.report,
                    assigned=student.assigned,
                    lease_remaining_s=5.0,
                    reason=student.reason,
                )
                for student in self.students[name].values()
            ],
            term=self._epoch_ms,
            counter=self._number,
            teacher_count=len(teachers),
            student_count=len(reports),
            wanted=sum(report.want for report in reports),
            assigned=sum(len(student.assigned) for student in self.students[name].values()),
            samples_per_second=sum(report.samples_per_second for report in reports),
            starved_seconds=sum(report.starved_seconds for report in reports),
            blocked_seconds=sum(report.blocked_seconds for report in reports),
            source_wait_seconds=sum(report.source_wait_seconds for report in reports),
            leader="10.0.0.1:7500",
            content_id=_SERVICES[name],
            content_teachers={_SERVICES[name]: len(teachers)},
            content_students={_SERVICES[name]: len(reports)},
        )

    def _say(
        self,
        service: str,
        kind: str,
        subject: str,
        text: str,
        before: Sequence[str] = (),
        after: Sequence[str] = (),
    ) -> None:
        self._number += 1
        self.log[service].append(
            pb.Event(
                service=service,
                id=f"{self._now_ms()}-{self._number:06d}",
                time_ms=self._now_ms(),
                kind=kind,
                subject=subject,
                text=text,
                before=before,
                after=after,
            )
        )

    def _now_ms(self) -> int:
        return self._epoch_ms + int(1000 * (time.monotonic() - self._began))


def scene(teachers: int) -> ScriptedMesh:
    """A mesh with something of everything that the page can show."""
    students = 3 if teachers <= 20 else max(3, teachers // 14)
    mesh = ScriptedMesh(teachers, students, services=1 if teachers <= 20 else 2)
    for service, members in mesh.teachers.items():
        ids = list(members)
        ranks = list(mesh.students[service])
        mesh.put(service, ranks[0], "blocked")
        mesh.put(service, ranks[-1], "starved")
        for number, teacher_id in enumerate(ids):
            if number % 61 == 3:
                mesh.drain(service, teacher_id)
            elif number % 83 == 7:
                mesh.refuse(service, teacher_id, "its content is not that of the service")
    return mesh


def main() -> None:
    """Serve a scene on a free port until interrupted."""
    mesh = scene(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
    server = WebServer(mesh, sys.argv[2] if len(sys.argv) > 2 else "0")
    print("page", server.start(), flush=True)
    try:
        while True:
            time.sleep(4)
            first = next(iter(mesh.teachers))
            if len(mesh.teachers[first]) > 10:
                mesh.kill(first, list(mesh.teachers[first])[-2])
    except KeyboardInterrupt:
        server.stop()


if __name__ == "__main__":
    main()
