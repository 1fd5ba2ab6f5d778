"""Teachers in virtual time: their devices, leases, speeds, failures and drains.

A request begins once it has arrived and a lane is free.

A lease expires one TTL after the last heartbeat. Heartbeats are not simulated one by one: their
times follow from the time of registration and a random phase.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from .. import assignment as rule
from ..leadership import BEATS_PER_TTL
from ..ledger.events import Send
from .environment import Generator, NetworkPort, SimulationRun, lifetime_s
from .scenario import FaultKind, TeacherEnding, TeacherGroup

#: "starting": ordered, but not serving yet. "serving": takes requests. "draining": takes nothing
#: new. "hung": does not answer. "gone": its process has ended. The lease of a "hung" or "gone"
#: teacher may not have expired yet.
TeacherState = Literal["starting", "serving", "draining", "hung", "gone"]


@dataclass(eq=False, slots=True)
class DeviceJob:
    """A request at a teacher.

    Attributes:
        answered: called when the labels arrive.
        port: network of the sending machine.
        answer_bytes: bytes of one row's labels.
        link: number of the connection; answers over a closed connection are ignored.
        send: the ledger's instruction.
        rows: number of rows.
        sent_s: when it was sent.
        began_s: when the device began with it.
        left_s: device time that was left when the device last began, stopped or resumed it.
        device_s: device time in all.
        ends_s: when the device will finish it; negative: the device is stopped.
    """

    answered: Callable[[DeviceJob], None]
    port: NetworkPort
    answer_bytes: float
    link: int
    send: Send
    rows: int
    sent_s: float
    began_s: float = 0.0
    left_s: float = 0.0
    device_s: float = 0.0
    ends_s: float = 0.0


class SimulatedTeacher:
    """One teacher, which labels the requests that arrive.

    Args:
        run: the run.
        group: its group.
        number: its number in the group, in the order of starting.
        on_idle: called when it drains and is idle (see `is_idle`).

    Attributes:
        name: its id.
        state: its state; call `apply_state` after a change.
        slowdown: its work takes this many times as long as usual.
        leased: the registry has its lease.
        lease_number: grows when it registers, and when it wakes from a hang before its lease has
            expired. An expiry that was planned under an older number is ignored.
        registered_at: time of its latest registration.
        beats_from: its heartbeats come at this time plus multiples of TTL / 2.5.
        present_from: since when it has been in the mesh, which costs money; None: it is not in it.
        earlier_s: seconds of its earlier stays in the mesh.
        drain_is_known: students know that it takes nothing new.
        is_due: its lifetime is over.
        batches: number of batches that it labelled and students used; a part of a batch is a
            fraction.
    """

    def __init__(
        self,
        run: SimulationRun,
        group: TeacherGroup,
        number: int,
        on_idle: Callable[[SimulatedTeacher], None],
    ) -> None:
        self.name = f"{group.name}/{number}"
        self.group = group
        self.state: TeacherState = "starting"
        self.slowdown = 1.0
        self.leased = self.drain_is_known = self.is_due = False
        self.lease_number = 0
        self.registered_at = self.beats_from = self.earlier_s = self.batches = 0.0
        self.present_from: float | None = None
        self._clock = run.clock
        self._port = NetworkPort(run, self.name, group.link)
        self._jitter = run.jitter(self.name, "work", group.jitter)
        self._on_idle = on_idle
        self._waiting: deque[DeviceJob] = deque()
        self._running: list[DeviceJob] = []
        self._in_transit = 0  # number of requests and answers
        # Stops of the device so far. An end of a job that was scheduled before a stop is ignored.
        self._stops = 0
        self._busy_s = 0.0

    @property
    def works(self) -> bool:
        """Whether the device works on requests."""
        return self.state in ("serving", "draining")

    def device_s(self, samples: int) -> float:
        """Return the seconds of a request that begins now, without jitter."""
        return self.slowdown * self.group.device_s(self._clock.now, samples)

    @property
    def present_s(self) -> float:
        """Seconds that the teacher was in the mesh, until now."""
        since = self.present_from
        return self.earlier_s + (0.0 if since is None else self._clock.now - since)

    @property
    def is_idle(self) -> bool:
        """Whether the teacher has no work, and nothing is in transit from or to it."""
        return not (self._waiting or self._running or self._in_transit)

    @property
    def busy_s(self) -> float:
        """Lane-seconds that the teacher worked, until now."""
        now = self._clock.now
        if not self.works:
            return self._busy_s
        return self._busy_s + sum(now - job.ends_s + job.left_s for job in self._running)

    def send(self, job: DeviceJob, nbytes: float) -> None:
        """Send a request of `nbytes` to the teacher."""
        now = self._clock.now
        self._in_transit += 1
        arrives = job.port.arrives_at(self._port, nbytes, now)
        self._clock.at(arrives, partial(self._arrive, job))

    def _arrive(self, job: DeviceJob) -> None:
        self._in_transit -= 1
        if self.state == "gone":
            return
        self._waiting.append(job)
        self._begin()

    def _begin(self) -> None:
        if not self.works:
            return
        now = self._clock.now
        while self._waiting and len(self._running) < self.group.lanes:
            job = self._waiting.popleft()
            job.began_s = now
            job.device_s = self.device_s(job.rows) * self._jitter.factor()
            job.left_s = job.device_s
            self._plan(job)

    def _plan(self, job: DeviceJob) -> None:
        """Let the device work on a job until the job is finished or the device stops."""
        self._running.append(job)
        job.ends_s = self._clock.now + job.left_s
        self._clock.at(job.ends_s, partial(self._end, job, self._stops))

    def _end(self, job: DeviceJob, stops: int) -> None:
        if stops != self._stops:
            return
        self._running.remove(job)
        self._busy_s += job.left_s
        arrives = self._port.arrives_at(job.port, job.rows * job.answer_bytes, self._clock.now)
        self._in_transit += 1
        self._clock.at(arrives, partial(self._answer, job))
        self._begin()

    def _answer(self, job: DeviceJob) -> None:
        self._in_transit -= 1
        job.answered(job)
        if self.state == "draining" and self.is_idle:
            self._on_idle(self)

    def apply_state(self) -> None:
        """Apply a change of the state.

        "serving": it works (again). "draining": it works; `on_idle` is called once it is idle,
        perhaps now. "hung": its device stops and keeps its work. "gone": its work is lost.
        """
        if self.works:
            stopped = [job for job in self._running if job.ends_s < 0]
            self._running = [job for job in self._running if job.ends_s >= 0]
            for job in stopped:
                self._plan(job)
            self._begin()
            if self.state == "draining" and self.is_idle:
                self._on_idle(self)
            return
        self._stop_device()
        if self.state == "gone":
            self._waiting.clear()
            self._running.clear()

    def _stop_device(self) -> None:
        now = self._clock.now
        self._stops += 1
        for job in self._running:
            if job.ends_s < 0:
                continue  # it is stopped already
            worked_s = max(job.left_s - (job.ends_s - now), 0.0)
            self._busy_s += worked_s
            job.left_s -= worked_s
            job.ends_s = -1.0


#: All teachers of a simulated service serve the same model.
CONTENT: Final = "model"


class TeacherFleet:
    """All teachers of a run.

    Args:
        run: the run.
        on_disconnect: called with the name of a teacher when its connections break.
        on_event: called with a service and an event for its assignment.

    Attributes:
        teachers: every teacher that was ever ordered, by name.
        started, lost: number of teachers that began to serve, and of expired leases, by group.
        draining: draining teachers, by name.
        replacements_due: number of replacements that will be ordered.
    """

    def __init__(
        self,
        run: SimulationRun,
        on_disconnect: Callable[[str], None],
        on_event: Callable[[str, rule.AssignmentEvent], None],
    ) -> None:
        self.teachers: dict[str, SimulatedTeacher] = {}
        self.started: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.draining: dict[str, SimulatedTeacher] = {}
        self.replacements_due = 0
        self._run, self._scenario = run, run.scenario
        self._clock, self._trace = run.clock, run.trace
        self._on_disconnect = on_disconnect
        self._on_event = on_event
        groups = run.scenario.teachers
        self._rngs = {group.name: run.rng("lives", group.name) for group in groups}
        self._numbers: Counter[str] = Counter()
        self._usual_batch = {
            group.service: group.batch for group in reversed(run.scenario.students)
        }

    def begin(self) -> None:
        """Schedule the starts and the planned changes of speed of all groups."""
        for group in self._scenario.teachers:
            for number in range(group.count):
                self.order(group, group.join_s + number * group.join_every_s)
            for change in group.changes:
                self._clock.at(change.at_s, partial(self._group_speed_changed, group))

    # -- queries

    def of_service(self, service: str) -> Iterator[SimulatedTeacher]:
        """Return the teachers of a service, in the order in which they were ordered."""
        return (t for t in self.teachers.values() if t.group.service == service)

    def count(self, service: str, state: TeacherState) -> int:
        """Return how many teachers of a service are in a state."""
        return sum(teacher.state == state for teacher in self.of_service(service))

    def count_registered(self, service: str) -> int:
        """Return how many teachers serve as far as the registry knows: leased, not draining."""
        return sum(t.leased and t.state != "draining" for t in self.of_service(service))

    def running(self, service: str) -> list[SimulatedTeacher]:
        """Return the teachers that autoscaling counts for a service.

        They are starting or serving, or they hang but still have a lease.
        """
        return [
            teacher
            for teacher in self.of_service(service)
            if teacher.state in ("starting", "serving")
            or (teacher.state == "hung" and teacher.leased)
        ]

    def _set_state(self, teacher: SimulatedTeacher, state: TeacherState) -> None:
        teacher.state = state
        if state == "draining":
            self.draining[teacher.name] = teacher
        else:
            self.draining.pop(teacher.name, None)

    # -- starts

    def order(self, group: TeacherGroup, in_s: float) -> None:
        """Start another teacher, which serves after `in_s` seconds."""
        number = self._numbers[group.name]
        self._numbers[group.name] += 1
        teacher = SimulatedTeacher(self._run, group, number, self.end_if_idle)
        self.teachers[teacher.name] = teacher
        if in_s <= 0:
            self._serve(teacher)
        else:
            self._clock.after(in_s, partial(self._serve, teacher))

    def _serve(self, teacher: SimulatedTeacher) -> None:
        if teacher.state != "starting":
            return  # it was cancelled
        now, group = self._clock.now, teacher.group
        self._set_state(teacher, "serving")
        teacher.present_from = now
        self.started[group.name] += 1
        self._trace.record("serve", teacher.name)
        teacher.apply_state()
        self._register(teacher)
        if group.leave_per_minute:
            leaves_in_s = lifetime_s(self._rngs[group.name], group.leave_per_minute)
            self._clock.after(leaves_in_s, partial(self._leave, teacher))

    def _register(self, teacher: SimulatedTeacher) -> None:
        teacher.leased = True
        teacher.lease_number += 1
        teacher.registered_at = self._clock.now
        # Processes start at any time, so the phase of their heartbeats is random.
        phase_s = self._rngs[teacher.group.name].random() * self._beat_s
        teacher.beats_from = self._clock.now - phase_s
        self._report_speed(teacher)

    def _report_speed(self, teacher: SimulatedTeacher) -> None:
        group = teacher.group
        batch = self._usual_batch.get(group.service, 1)
        speed = group.lanes * batch / teacher.device_s(batch)
        up = rule.TeacherUp(teacher.name, 0, speed, CONTENT)
        self._on_event(group.service, up)

    # -- changes of speed

    def _group_speed_changed(self, group: TeacherGroup) -> None:
        self._trace.record("pace", group.name, f"{group.t_t_at(self._clock.now):g} s per sample")
        for teacher in list(self.teachers.values()):
            if teacher.group is group and teacher.works:
                self._speed_changed(teacher)

    def slow(self, teacher: SimulatedTeacher, factor: float) -> None:
        """Multiply the device time of the requests that a teacher begins from now on."""
        teacher.slowdown *= factor
        self._trace.record("slow", teacher.name, f"{teacher.slowdown:g} times its usual time")
        self._speed_changed(teacher)

    def _speed_changed(self, teacher: SimulatedTeacher) -> None:
        """Let the teacher report its new speed with its next heartbeat."""

        def report() -> None:
            if teacher.leased and teacher.state == "serving":
                self._report_speed(teacher)

        self._clock.at(self._next_beat(teacher), report)

    # -- ends

    def _leave(self, teacher: SimulatedTeacher) -> None:
        """End a teacher whose lifetime is over; one that hangs ends when it wakes."""
        teacher.is_due = True
        if teacher.state == "serving":
            self.end(teacher, teacher.group.leaves_by)

    def end(
        self, teacher: SimulatedTeacher, how: TeacherEnding, for_s: float | None = None
    ) -> None:
        """Let a teacher crash, hang or drain, and order a replacement if its group gets any.

        Args:
            teacher: the teacher.
            how: what happens to it.
            for_s: seconds after which a hang ends by itself; then no replacement is ordered. None:
                a hang does not end.
        """
        self._trace.record(how, teacher.name)
        match how:
            case "crash":
                self._stop(teacher)
            case "hang":
                self._hang(teacher, for_s)
            case "drain":
                self.drain(teacher)
        group = teacher.group
        back_after_s = group.back_after_s if self._scenario.autoscale is None else None
        if back_after_s is not None and for_s is None:
            self.replacements_due += 1
            self._clock.after(back_after_s, partial(self._replace, group))

    def _replace(self, group: TeacherGroup) -> None:
        self.replacements_due -= 1
        self.order(group, group.start_s)

    def _stop(self, teacher: SimulatedTeacher) -> None:
        """End a teacher's process without notice: its lease remains until it expires."""
        self._plan_expiry(teacher)
        self._end_process(teacher)

    def _hang(self, teacher: SimulatedTeacher, for_s: float | None) -> None:
        self._plan_expiry(teacher)
        self._set_state(teacher, "hung")
        teacher.apply_state()
        if for_s is not None:
            self._clock.after(for_s, partial(self._resume, teacher))

    def _resume(self, teacher: SimulatedTeacher) -> None:
        if teacher.state != "hung":
            return
        self._set_state(teacher, "serving")
        if teacher.present_from is None:
            teacher.present_from = self._clock.now
        self._trace.record("wake", teacher.name)
        teacher.apply_state()
        if teacher.leased:
            teacher.lease_number += 1  # it sends heartbeats again: the lease does not expire
        else:
            self._register(teacher)
        if teacher.is_due:
            self._leave(teacher)

    def _plan_expiry(self, teacher: SimulatedTeacher) -> None:
        """Let the lease expire one TTL after the teacher's last heartbeat."""
        if not teacher.leased:
            return
        last_beat = max(self._next_beat(teacher) - self._beat_s, teacher.registered_at)
        expiry = partial(self._expire, teacher, teacher.lease_number)
        self._clock.at(last_beat + self._scenario.ttl_s, expiry)

    def _expire(self, teacher: SimulatedTeacher, lease_number: int) -> None:
        if not teacher.leased or teacher.lease_number != lease_number:
            return
        teacher.leased = False
        if teacher.state == "hung":
            self._stop_costs(teacher)
        self.lost[teacher.group.name] += 1
        self._trace.record("lost", teacher.name, "its lease ran out")
        self._on_event(teacher.group.service, rule.TeacherDown(teacher.name, lost=True))

    def drain(self, teacher: SimulatedTeacher) -> None:
        """Drain a serving teacher; stop a hung one, and cancel a starting one."""
        if teacher.state == "starting":
            self._set_state(teacher, "gone")
            return
        if teacher.state == "hung":
            self._stop(teacher)
            return
        if teacher.state != "serving":
            return
        self._set_state(teacher, "draining")
        self._on_event(teacher.group.service, rule.TeacherDraining(teacher.name))
        teacher.apply_state()

    def _end_process(self, teacher: SimulatedTeacher) -> None:
        """End a teacher's process; students with requests at it notice this at once."""
        self._set_state(teacher, "gone")
        self._stop_costs(teacher)
        teacher.apply_state()
        self._on_disconnect(teacher.name)

    def end_if_idle(self, teacher: SimulatedTeacher) -> None:
        """End a teacher if it drains, is idle, and students know that it drains."""
        if teacher.state != "draining" or not (teacher.drain_is_known and teacher.is_idle):
            return
        teacher.leased = False
        self._trace.record("leave", teacher.name, "drained")
        self._end_process(teacher)
        self._on_event(teacher.group.service, rule.TeacherDown(teacher.name, lost=False))

    def pick(
        self, group: str, kind: FaultKind, count: int, rng: Generator
    ) -> list[SimulatedTeacher]:
        """Return at most `count` random members of a group to which a fault can happen."""
        candidates = [t for t in self.teachers.values() if t.group.name == group and t.works]
        if kind != "slow":
            candidates = [teacher for teacher in candidates if teacher.state == "serving"]
        rng.shuffle(candidates)
        return candidates[:count]

    # -- time

    def _stop_costs(self, teacher: SimulatedTeacher) -> None:
        """End a stay of the teacher in the mesh: from now on it costs nothing."""
        teacher.earlier_s, teacher.present_from = teacher.present_s, None

    @property
    def _beat_s(self) -> float:
        return self._scenario.ttl_s / BEATS_PER_TTL

    def _next_beat(self, teacher: SimulatedTeacher) -> float:
        """Return the time of the teacher's next heartbeat, after this moment."""
        passed = (self._clock.now - teacher.beats_from) // self._beat_s
        return teacher.beats_from + (passed + 1) * self._beat_s
