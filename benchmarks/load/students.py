"""Simulated students that subscribe, report every second, and record their assignments."""

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

#: Connections that the streams share; their number does not change the manager's cost of a stream.
CHANNELS: Final = 20
#: Period of reports, as in the reader's engine.
REPORT_EVERY_S: Final = 1.0
#: Seconds in which all students subscribe, one after another.
_SUBSCRIBING_S: Final = 5.0
_SUBSCRIBE: Final = "/edl.coordinator.v1.Coordinator/Subscribe"


@dataclass
class StudentLoadStats:
    """Times of events, in monotonic seconds."""

    #: Teacher -> its first assignment.
    gained: dict[str, float] = field(default_factory=dict)
    #: Teacher -> the first report of its loss.
    lost: dict[str, float] = field(default_factory=dict)
    #: Teacher -> its last release; without teachers that were assigned again later.
    freed: dict[str, float] = field(default_factory=dict)


class Student:
    """One stream of reports and assignments.

    Attributes:
        want: number of wanted teachers.
        served: whether it has been assigned a teacher.
    """

    def __init__(self, name: str, service: str, want: int, stats: StudentLoadStats) -> None:
        self.want = want
        self.served = False
        self._stats = stats
        self._teachers: tuple[str, ...] = ()
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

    async def follow(self, channel: grpc.aio.Channel) -> None:
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
        """Return a report with new figures, as from a training student."""
        report = self._report
        report.want = self.want
        report.volume_bytes = self._rng.randrange(128 << 20, 256 << 20)
        report.batches_delivered += 3
        report.samples_delivered += 96
        report.samples_per_second = 96.0 + self._rng.random()
        report.blocked_seconds += 0.1
        del report.teachers[:]
        report.teachers.extend(self._teachers)
        return report

    def _take(self, assignment: pb.Assignment) -> None:
        now, stats = time.monotonic(), self._stats
        teachers = tuple(teacher.teacher_id for teacher in assignment.teachers)
        self.served = self.served or bool(teachers)
        for name in self._teachers:
            stats.freed[name] = now
        for name in teachers:
            stats.gained.setdefault(name, now)
            stats.freed.pop(name, None)
        for name in assignment.lost:
            stats.lost.setdefault(name, now)
        self._teachers = teachers
        self._report.term, self._report.counter = assignment.term, assignment.counter


def run_students(
    channel: Channel, url: str, service: str, count: int, want: int, more: int
) -> None:
    """Subscribe students to the live managers, spread like readers, and follow the phases.

    Before phase 2 nothing changes. In phase 2 each student is starved and wants `more` additional
    teachers. In phase 3 the process sends its figures and ends.

    Args:
        channel: its first message to the benchmark means that all students have teachers.
        url: URL of Redis.
        service: service of the teachers.
        count: number of students.
        want: number of teachers that each student wants at first.
        more: number of further teachers that each student wants from phase 2 on.
    """
    asyncio.run(_run(channel, url, service, count, want, more))


async def _run(channel: Channel, url: str, service: str, count: int, want: int, more: int) -> None:
    phases, stats = Phases(channel), StudentLoadStats()
    registry = connect(url)
    managers = live_managers(registry)
    registry.close()
    channels = [
        grpc.aio.insecure_channel(managers[number % len(managers)], options=CHANNEL_OPTIONS)
        for number in range(CHANNELS)
    ]
    students = [Student(f"job-{n // 4}/{n % 4}", service, want, stats) for n in range(count)]
    subscriptions = []
    for number, student in enumerate(students):
        subscriptions.append(asyncio.create_task(student.follow(channels[number % CHANNELS])))
        await asyncio.sleep(_SUBSCRIBING_S / count)
    while not all(student.served for student in students):
        _raise_from(subscriptions)
        await asyncio.sleep(0.1)
    channel.send("ready")
    await phases.reach(2)
    for student in students:
        student.starve(more)
    await phases.reach(3)
    _raise_from(subscriptions)
    channel.send("stats", **asdict(stats))
    for subscription in subscriptions:
        subscription.cancel()
    await asyncio.gather(*subscriptions, return_exceptions=True)
    for each in channels:
        await each.close(None)


def _raise_from(subscriptions: list[asyncio.Task[None]]) -> None:
    """Raise if a subscription has ended: figures without all students would be wrong."""
    for subscription in subscriptions:
        if subscription.done():
            subscription.result()
            raise RuntimeError("a subscription ended by itself")
