"""A thousand students that subscribe, report each second and note what they are given.

    python -m edl.benchmarks.load.students URL SERVICE FILE COUNT WANT MORE

They spread over the live managers as readers do. SIGUSR1 begins the second phase, in which all go
on as they are; again, the third, in which each starves and wants MORE teachers than before; again,
the end: what was measured is written to FILE.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import grpc

from ...coordinator.calling.discovery import CHANNEL_OPTIONS, live_managers
from ...coordinator.registry import connect
from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...runtime.supervise import end_with_parent
from . import schedule

#: Streams share connections: what a manager spends on one does not depend on it.
CHANNELS: Final = 20
#: As the reader's engine.
REPORT_EVERY_S: Final = 1.0
#: The crowd comes over this time.
_GATHER_S: Final = 5.0
_SUBSCRIBE: Final = "/edl.coordinator.v1.Coordinator/Subscribe"


@dataclass
class StudentLoadStats:
    """What happened when, in monotonic seconds, and how much of it."""

    gained: dict[str, float] = field(default_factory=dict)  # teacher -> first assigned to anybody
    lost: dict[str, float] = field(default_factory=dict)  # teacher -> first told as lost
    freed: dict[str, float] = field(
        default_factory=dict
    )  # teacher -> given back, and nobody's since
    first_s: list[float] = field(default_factory=list)  # from subscribing to the first teachers
    reports: int = 0
    assignments: int = 0


class Student:
    """One stream of reports and assignments."""

    def __init__(self, name: str, service: str, want: int, figures: StudentLoadStats) -> None:
        self.want = want
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
        """Want so many teachers more, and say so and why with the next report."""
        self.want += more
        self._report.state = "starved"

    async def live(self, channel: grpc.aio.Channel) -> None:
        """Subscribe, and follow what comes until cancelled."""
        call = channel.stream_stream(
            _SUBSCRIBE, pb.StudentReport.SerializeToString, pb.Assignment.FromString
        )(self._reports())
        began = time.monotonic()
        async for assignment in call:
            self._take(assignment, began)

    async def _reports(self) -> AsyncIterator[pb.StudentReport]:
        while True:
            self._figures.reports += 1
            yield self._next_report()
            await asyncio.sleep(REPORT_EVERY_S)

    def _next_report(self) -> pb.StudentReport:
        """All figures move, as those of a student at work do."""
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

    def _take(self, assignment: pb.Assignment, began: float) -> None:
        now, figures = time.monotonic(), self._figures
        figures.assignments += 1
        teachers = tuple(teacher.teacher_id for teacher in assignment.teachers)
        if teachers and not self._held:
            figures.first_s.append(now - began)
        for name in self._held:
            figures.freed[name] = now
        for name in teachers:
            figures.gained.setdefault(name, now)
            figures.freed.pop(name, None)
        for name in assignment.lost:
            figures.lost.setdefault(name, now)
        self._held = teachers
        self._report.term, self._report.counter = assignment.term, assignment.counter


async def main(url: str, service: str, file: str, count: int, want: int, more: int) -> None:
    """Gather, and follow the schedule."""
    phases, figures = schedule.Phases(), StudentLoadStats()
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
    while len(figures.first_s) < count:
        _raise_from(lives)
        await asyncio.sleep(0.1)
    schedule.ready()
    await phases.reach(2)
    for student in students:
        student.starve(more)
    await phases.reach(3)
    _raise_from(lives)
    schedule.tell(
        file,
        {
            "gained": figures.gained,
            "lost": figures.lost,
            "freed": figures.freed,
            "first_s": figures.first_s,
            "reports": figures.reports,
            "assignments": figures.assignments,
        },
    )
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    for channel in channels:
        await channel.close(None)


def _raise_from(lives: list[asyncio.Task[None]]) -> None:
    """Nobody may fall out of the crowd unseen."""
    for life in lives:
        if life.done():
            life.result()
            raise RuntimeError("a subscription ended by itself")


if __name__ == "__main__":
    end_with_parent()
    url_, service_, file_, count_, want_, more_ = sys.argv[1:]
    asyncio.run(main(url_, service_, file_, int(count_), int(want_), int(more_)))
