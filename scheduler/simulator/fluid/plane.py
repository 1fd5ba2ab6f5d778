"""The fluid data plane: carries what the control plane says to the streams, and wakes them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from ..cast import Student, Teacher
from ..plane import Mesh, Report, Tally, Work
from ..result import PlaneName
from .devices import Device, User
from .jobs import Job
from .stream import Stream

#: A teacher is found silent after so many times what a batch takes, and never before so long.
SILENT_BATCHES, SILENT_S = 6.0, 0.5


class FluidPlane:
    """Follows rates; see `Plane`."""

    name: Final[PlaneName] = "fluid"

    def begin(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._clock = mesh.clock
        self._devices: dict[str, Device] = {}
        self._streams: dict[str, Stream] = {}
        self._jobs: dict[str, Job] = {}

    def advance(self) -> None:
        """Each stream is brought up to date where it is looked at."""

    # -- students

    def join(self, student: Student) -> None:
        group, job = student.group, None
        if group.together:
            job = self._jobs.setdefault(group.name, Job(group.jitter))
        stream = Stream(student, self._mesh.scenario, job, self._clock.now)
        self._streams[student.name] = stream
        if job is not None:
            job.ranks[student.name] = stream
        self._turn(stream, asked=True)

    def leave(self, student: Student) -> None:
        stream = self._streams[student.name]
        stream.advance(self._clock.now)
        self._end(stream)

    def _end(self, stream: Stream) -> None:
        """Nothing more is heard of it: its teachers finish, its ranks go on without it."""
        now, name = self._clock.now, stream.student.name
        stream.plan += 1
        if stream.job is not None:
            del stream.job.ranks[name]
        shared = [hold.device for hold in stream.crew.holds.values()]
        for teacher in [*stream.crew.holds]:
            stream.crew.part(teacher, now, finishes=True)
        for device in shared:
            self._rest(device)
            self._recount(device.sharing(stream))
        self._follow_job(stream)

    def assign(self, student: Student, teachers: Sequence[str], lost: Sequence[str]) -> None:
        stream, now = self._streams[student.name], self._clock.now
        before = [hold.device for hold in stream.crew.holds.values()]
        stream.assign([self._devices[name] for name in teachers], lost, now)
        after = [hold.device for hold in stream.crew.holds.values()]
        for device in {id(one): one for one in (*before, *after)}.values():
            self._recount(device.sharing(stream))
            self._rest(device)
        self._turn(stream)

    def paced(self, student: Student) -> None:
        self._turn(self._streams[student.name])

    # -- teachers

    def turned(self, teacher: Teacher) -> None:
        device = self._devices.get(teacher.name)
        if device is None:
            self._devices[teacher.name] = Device(teacher)
            return
        now, name = self._clock.now, teacher.name
        for stream in self._users(device):
            match teacher.state:
                case "gone":
                    stream.broke(name, now)
                case "hung":
                    stream.silent(now)
                    hold = stream.crew.holds[name]
                    late_s = max(SILENT_BATCHES * hold.device_s, SILENT_S)
                    self._clock.after(late_s, partial(self._found_silent, teacher, stream))
                case _:
                    stream.paced(name, now)
            self._turn(stream)
        if teacher.state == "serving":
            self._welcome(device)
        self._rest(device)

    def _found_silent(self, teacher: Teacher, stream: Stream) -> None:
        """A teacher has said nothing for too long: its student sends it no more."""
        if teacher.state == "hung" and stream.student.is_there:
            stream.broke(teacher.name, self._clock.now)
            self._turn(stream)

    def _welcome(self, device: Device) -> None:
        """A teacher answers again: students that it was given to send to it."""
        now, name = self._clock.now, device.teacher.name
        for stream in self._streams.values():
            if name in stream.crew.unreachable and stream.student.is_there:
                stream.advance(now)
                stream.crew.unreachable.discard(name)
                stream.crew.join(device, now)
                stream.crew.recount(now)
                self._turn(stream)

    def _rest(self, device: Device) -> None:
        """See whether a draining teacher has nothing to do, now or when it has finished."""
        if device.teacher.state != "draining":
            return
        now = self._clock.now
        if device.is_idle(now):
            self._mesh.rested(device.teacher)
        elif now < device.free_at:
            self._clock.at(device.free_at, partial(self._rest, device))

    def is_idle(self, teacher: Teacher) -> bool:
        return self._devices[teacher.name].is_idle(self._clock.now)

    # -- events

    def _turn(self, stream: Stream, *, asked: bool = False) -> None:
        """Have a stream decide, and come back when something is due.

        Args:
            stream: whose turn it is.
            asked: its report is read anyway.
        """
        now, was_active = self._clock.now, stream.active
        news = stream.turn(now)
        if stream.buffer.is_done and stream.student.is_there:
            self._end(stream)
            self._mesh.done(stream.student)
            return
        self._plan(stream)
        self._follow_job(stream)
        if stream.active is not was_active:
            for hold in stream.crew.holds.values():
                self._recount(hold.device.sharing(stream))
                self._rest(hold.device)
        if news:
            report = stream.report()
            self._mesh.trace.hash(stream.student.name, report.want, report.unreachable)
            if not asked:
                self._mesh.news(stream.student)

    def _plan(self, stream: Stream) -> None:
        self._clock.at(stream.due, partial(self._due, stream, stream.plan))

    def _due(self, stream: Stream, plan: int) -> None:
        if plan == stream.plan:
            self._turn(stream)

    def _recount(self, users: Iterable[User]) -> None:
        """Those who share a teacher have more of it from now on, or less."""
        for user in [*users]:
            stream = self._streams[user.student.name]
            stream.recount(self._clock.now)
            self._turn(stream)

    def _follow_job(self, stream: Stream) -> None:
        """The ranks of a job step together: where one can at another rate, all do."""
        job = stream.job
        if job is None or not job.look():
            return
        ranks = [self._streams[name] for name in job.ranks]
        for _ in range(8):  # what a rank can do may be another thing by the time that it is asked
            for rank in ranks:
                rank.follow_job(self._clock.now)
            if not job.look():
                break
        for rank in ranks:
            self._plan(rank)

    def _users(self, device: Device) -> list[Stream]:
        return [self._streams[name] for name in device.holds]

    # -- what is told

    def report(self, student: Student) -> Report:
        return self._now(student).report()

    def tally(self, student: Student) -> Tally:
        if student.name not in self._streams:
            return Tally(0, 0, 0.0, 0.0)
        return self._now(student).tally()

    def waits(self, student: Student) -> tuple[float, float, float]:
        return self._now(student).waited_s

    def _now(self, student: Student) -> Stream:
        stream = self._streams[student.name]
        if student.is_there:
            stream.advance(self._clock.now)
        return stream

    def work(self, teacher: Teacher) -> Work:
        device = self._devices.get(teacher.name)
        if device is None:
            return Work(0.0, 0.0)
        # Students that have left, too: the device may have finished their batches.
        for user in device.users.values():
            self._now(user.student).crew.credit()
        return device.work
