"""Simulated students that subscribe, report every second, and note their assignments."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from typing import Final

import grpc

from ...coordinator.calling.discovery import CHANNEL_OPTIONS, live_managers
from ...coordinator.registry import connect
from ...proto import coordinator_pb2 as pb
from ...proto.channel import Channel
from ...proto.protocols import PROTOCOL_VERSION
from . import Phases

#: Connections that the streams share; the manager's cost of a stream does not depend on them.
CHANNELS: Final = 20
#: Period of reports, as in the reader's engine.
REPORT_EVERY_S: Final = 1.0
#: Seconds in which all students subscribe, one after another.
_GATHER_S: Final = 5.0
_SUBSCRIBE: Final = "/edl.coordinator.v1.Coordinator/Subscribe"


@dataclass
class StudentLoadStats:
    """Times of events, in monotonic seconds."""

    gained: dict[str, float] = field(default_factory=dict)  # teacher -> first assignment
    lost: dict[str, float] = field(default_factory=dict)  # teacher -> first report of its loss
    freed: dict[str, float] = field(
        default_factory=dict
    )  # teacher -> released, and not assigned since


class Student:
    """One stream of reports and assignments.

    Attributes:
        want: number of wanted teachers.
        served: whether it has been assigned teachers.
    """

    def __init__(self, name: str, service: str, want: int, figures: StudentLoadStats) -> None:
        self.want = want
        self.served = False
        self._figures = figures
        self._held: tuple[str, ...] = ()
        self._rng = random.Random(name)
        self._report = pb.StudentReport(
            protocol_version=PROTOCOL_VERSION,
            service=service,
            student_id=name,
            incarnation=1,
            min=1,
            t_s_seconds=0.001,
            upper_bytes=256 << 20,
            lower_bytes=128 << 20,
            state="steady",
            host="here",
        )

    def starve(self, more: int) -> None:
        """Want `more` additional teachers, and report it with the state "starved" from now on."""
        self.want += more
        self._report.state = "starved"

    async def live(self, channel: grpc.aio.Channel) -> None:
        """Subscribe, and follow the assignments until cancelled."""
        call = channel.stream_stream(
            _SUBSCRIBE, pb.StudentReport.SerializeToString, pb.Assignment.FromString
        )(self._reports())
        async for assignment in call:
            self._take(assignment)

    async def _reports(self) -> AsyncIterator[pb.StudentReport]:
        while True:
            yield self._next_report()
            await asyncio.sleep(REPORT_EVERY_S)

    def _next_report(self) -> pb.StudentReport:
        """Return a report with changed figures, as those of a training student."""
        report = self._report
        report.want = self.want
        report.volume_bytes = self._rng.randrange(128 << 20, 256 << 20)
        report.batches_delivered += 3
        report.samples_delivered += 96
        report.samples_per_second = 96.0 + self._rng.random()
        report.blocked_seconds += 0.1
        del report.teachers[:]
        report.teachers.extend(self._held)
        return report

    def _take(self, assignment: pb.Assignment) -> None:
        now, figures = time.monotonic(), self._figures
        teachers = tuple(teacher.teacher_id for teacher in assignment.teachers)
        self.served = self.served or bool(teachers)
        for name in self._held:
            figures.freed[name] = now
        for name in teachers:
            figures.gained.setdefault(name, now)
            figures.freed.pop(name, None)
        for name in assignment.lost:
            figures.lost.setdefault(name, now)
        self._held = teachers
        self._report.term, self._report.counter = assignment.term, assignment.counter


def run_students(
    channel: Channel, url: str, service: str, count: int, want: int, more: int
) -> None:
    """Subscribe students, spread over the live managers as readers, and follow the phases.

    In the first phase nothing changes. In the second one each student is starved and wants `more`
    additional teachers. The third one ends the process, which sends its figures.

    Args:
        channel: its first message to the benchmark means that all students have teachers.
        url: URL of Redis.
        service: service of the teachers.
        count: number of students.
        want: teachers that each wants at first.
        more: further teachers that each wants from the second phase on.
    """
    asyncio.run(_run(channel, url, service, count, want, more))


async def _run(channel: Channel, url: str, service: str, count: int, want: int, more: int) -> None:
    phases, figures = Phases(channel), StudentLoadStats()
    registry = connect(url)
    managers = live_managers(registry)
    registry.close()
    channels = [
        grpc.aio.insecure_channel(managers[number % len(managers)], options=CHANNEL_OPTIONS)
        for number in range(CHANNELS)
    ]
    students = [Student(f"job-{n // 4}/{n % 4}", service, want, figures) for n in range(count)]
    lives = []
    for number, student in enumerate(students):
        lives.append(asyncio.create_task(student.live(channels[number % CHANNELS])))
        await asyncio.sleep(_GATHER_S / count)
    while not all(student.served for student in students):
        _raise_from(lives)
        await asyncio.sleep(0.1)
    channel.send("ready")
    await phases.reach(2)
    for student in students:
        student.starve(more)
    await phases.reach(3)
    _raise_from(lives)
    channel.send("figures", **asdict(figures))
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    for one in channels:
        await one.close(None)


def _raise_from(lives: list[asyncio.Task[None]]) -> None:
    """Raise if a subscription has ended: figures of an incomplete crowd would be wrong."""
    for life in lives:
        if life.done():
            life.result()
            raise RuntimeError("a subscription ended by itself")
