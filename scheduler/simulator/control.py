"""The control plane of a simulated mesh, and `simulate`, which runs it to the end.

Students arrive, report and leave. Teachers start, fail and leave (`TeacherFleet`). The leader of
each service collects events and assigns teachers (`leader.py`). Autoscaling starts and drains
teachers. A leader's decision reaches students and teachers after the latency of the scenario's
link.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Final

from .. import assignment as rule
from ..backoff import RetryPause
from ..fleet import FleetProcess, fleet_change
from .environment import EventTrace, Seeding, SimulationRun, VirtualClock
from .leader import SimulatedLeader
from .result import MeshSample, SimulationResult, StudentResult, TeachersResult
from .scenario import Scenario, ScenarioFault, StudentGroup, TeacherGroup
from .student import JobRanks, SimulatedStudent
from .teacher import SimulatedTeacher, TeacherFleet

#: A run without a duration counts as stuck after `MIN_PATIENCE_S` virtual seconds without a trained
#: batch, or after `PATIENCE_TIMES` times the time of a batch if that is longer.
MIN_PATIENCE_S: Final = 600.0
PATIENCE_TIMES: Final = 20.0


class SimulatedControl:
    """Runs a scenario's control plane on the virtual clock.

    Args:
        run: the run.

    Attributes:
        scenario, clock, trace: as in `run`.
        students: all students of the scenario, in its order.
        fleet: the teachers.
        points: the samples for curves so far.
    """

    def __init__(self, run: SimulationRun) -> None:
        self.scenario, self.clock, self.trace = run.scenario, run.clock, run.trace
        self._present: list[SimulatedStudent] = []  # in the order of arrival
        self.fleet = TeacherFleet(run, self._on_disconnect, self._on_teacher_event)
        ranks = {group.name: JobRanks() for group in run.scenario.students if group.together}
        self.students = [
            SimulatedStudent(
                run,
                group,
                number,
                self.fleet.teachers,
                ranks.get(group.name),
                self._report,
                partial(self._remove, kind="done", text="has trained its last batch"),
            )
            for group in run.scenario.students
            for number in range(group.count)
        ]
        self._by_name = {student.name: student for student in self.students}
        self.points: list[MeshSample] = []
        self._leaders = {
            name: SimulatedLeader(run.scenario.autoscale) for name in run.scenario.services
        }
        self._decide_at = dict.fromkeys(self._leaders, inf)
        self._rng = run.seeding(f"{run.scenario.seed}/faults")
        self._not_ended = len(self.students)
        self._samples, self._sampled_at = 0, 0.0
        self._progress = (0, 0.0)  # batches of all students, and when they last grew

    # -- the run

    def begin(self) -> None:
        """Schedule everything that the scenario contains."""
        scenario, clock = self.scenario, self.clock
        self.fleet.begin()
        for student in self.students:
            group = student.group
            joins_s = group.join_s + student.number * group.join_every_s
            clock.at(joins_s, partial(self._join, student))
            if group.leave_s is not None:
                clock.at(group.leave_s, partial(self._leave, student))
        for group in scenario.students:
            for change in group.changes:
                clock.at(change.at_s, partial(self._group_speed_changed, group))
        for fault in scenario.faults:
            clock.at(fault.at_s, partial(self._inject, fault))
        clock.after(scenario.report_s, self._report_all)
        clock.at(0.0, self._sample)

    @property
    def is_over(self) -> bool:
        """Whether all students have left."""
        return self._not_ended == 0

    @property
    def progress(self) -> float | None:
        """Finished share of the run; None: unknown."""
        if self.scenario.duration_s is not None:
            return min(self.clock.now / self.scenario.duration_s, 1.0)
        limits = [student.limit for student in self.students]
        return self._batches / sum(limit or 0 for limit in limits) if all(limits) else None

    @property
    def _batches(self) -> int:
        """Batches trained by all students."""
        return sum(student.batches for student in self.students)

    # -- students

    def _join(self, student: SimulatedStudent) -> None:
        if student.ended_s is not None:
            return
        self.trace.record("join", student.name)
        self._present.append(student)
        student.begin()
        self._report(student)

    def _leave(self, student: SimulatedStudent) -> None:
        if student.is_present:
            student.leave()
            self._remove(student, "leave", "leaves as the scenario says")
        elif student.ended_s is None:
            student.ended_s = self.clock.now  # it never came
            self._not_ended -= 1

    def _remove(
        self, student: SimulatedStudent, kind: str, text: str, notice_s: float = 0.0
    ) -> None:
        """Remove a student that has ended; the leader notices it after `notice_s` seconds."""
        student.ended_s = self.clock.now
        self._present.remove(student)
        self._not_ended -= 1
        self.trace.record(kind, student.name, text)
        if student.group.needs_labels:
            self.clock.after(notice_s, partial(self._forget, student))

    def _forget(self, student: SimulatedStudent) -> None:
        self._leaders[student.group.service].forget(student)
        self._schedule_decision(student.group.service, self.clock.now + self.scenario.look_s)

    def _report(self, student: SimulatedStudent) -> None:
        if not (student.group.needs_labels and student.is_present):
            return
        service = student.group.service
        if self._leaders[service].add_report(student):
            self._schedule_decision(service, self.clock.now + self.scenario.look_s)

    def _group_speed_changed(self, group: StudentGroup) -> None:
        self.trace.record("pace", group.name, f"{group.t_s_at(self.clock.now):g} s per sample")

    # -- faults

    def _on_disconnect(self, teacher: str) -> None:
        """Tell students at once that a teacher's process has ended, if they have requests there."""
        for student in self._present:
            student.reader.disconnected(teacher)

    def _inject(self, fault: ScenarioFault) -> None:
        members = [s for s in self.students if s.group.name == fault.group]
        if not members:
            for teacher in self.fleet.pick(fault.group, fault.kind, fault.count, self._rng):
                if fault.kind == "slow":
                    self._slow(fault, partial(self.fleet.slow, teacher))
                else:
                    self.fleet.end(teacher, fault.kind, fault.for_s)
            return
        present = [student for student in members if student.is_present]
        self._rng.shuffle(present)
        for student in present[: fault.count]:
            if fault.kind == "slow":
                self._slow(fault, partial(self._slow_student, student))
                continue
            student.leave()
            is_crash = fault.kind == "crash"
            text = "crashes" if is_crash else "leaves in good order"
            self._remove(student, fault.kind, text, self.scenario.ttl_s if is_crash else 0.0)

    def _slow(self, fault: ScenarioFault, slow: Callable[[float], None]) -> None:
        slow(fault.factor)
        if fault.for_s is not None:
            self.clock.after(fault.for_s, partial(slow, 1 / fault.factor))

    def _slow_student(self, student: SimulatedStudent, factor: float) -> None:
        student.slowdown *= factor
        self.trace.record("slow", student.name, f"{student.slowdown:g} times its usual time")

    # -- the coordinator

    def _on_teacher_event(self, service: str, event: rule.AssignmentEvent) -> None:
        self._leaders[service].add_event(event)
        self._schedule_decision(service, self.clock.now + self.scenario.look_s)

    def _schedule_decision(self, service: str, moment: float) -> None:
        """Let the leader of a service decide at `moment`, unless it will do so earlier."""
        if moment < self._decide_at[service]:
            self._decide_at[service] = moment
            self.clock.at(moment, partial(self._decide, service))

    def _decide(self, service: str) -> None:
        now = self.clock.now
        if now < self._decide_at[service]:
            return  # the leader has decided earlier
        self._decide_at[service] = inf
        leader = self._leaders[service]
        changes = leader.assign(now)
        draining = [t for t in self.fleet.draining.values() if t.group.service == service]
        self.clock.after(self.scenario.link.latency_s, partial(self._push, changes, draining))
        if (due := rule.next_due(leader.state)) is not None:
            self._schedule_decision(service, max(due, now + self.scenario.look_s))

    def _push(
        self, changes: tuple[rule.AssignmentChange, ...], draining: list[SimulatedTeacher]
    ) -> None:
        """Deliver the leader's decisions to students; from now on they know of these drains."""
        for change in changes:
            student = self._by_name[change.student_id]
            if student.is_present:
                text = f"{len(change.teachers)} teachers: {change.reason}"
                self.trace.record("assign", student.name, text)
                student.reader.assign(change.teachers, change.lost)
        for teacher in draining:
            teacher.drain_is_known = True
            self.fleet.end_if_idle(teacher)

    def _report_all(self) -> None:
        """Let all students report, and let autoscaling decide, every `report_s`."""
        self.clock.after(self.scenario.report_s, self._report_all)
        for student in self.students:
            self._report(student)
        for service, leader in self._leaders.items():
            before = leader.desired
            starting = self.fleet.count(service, "starting")
            serving = self.fleet.count_registered(service)
            desired = leader.update_desired(serving, starting, self.clock.now)
            if desired is not None:
                if before is None or desired.count != before.count:
                    text = f"{desired.count} teachers: {desired.reason}"
                    self.trace.record("desired", service, text)
                self._resize_fleet(service, desired.count)
        self._check_progress()

    def _resize_fleet(self, service: str, desired: int) -> None:
        """Start and drain teachers to get the desired number."""
        groups = [group for group in self.scenario.teachers if group.service == service]
        if not groups:
            return
        processes = [
            FleetProcess(teacher.name, serves=teacher.state == "serving")
            for teacher in self.fleet.running(service)
        ]
        change = fleet_change(processes, desired, RetryPause(), self.clock.now)
        for _ in range(change.start):
            self.fleet.order(groups[0], groups[0].start_s)
        for name in change.drain:
            self.trace.record("drain", name, "not desired any more")
            self.fleet.drain(self.fleet.teachers[name])

    def _check_progress(self) -> None:
        """Raise ValueError if a run without a duration is stuck.

        It is not stuck while a teacher starts, or while planned events or replacements are due.
        """
        if self.scenario.duration_s is not None:
            return
        teachers_start = self.fleet.replacements_due > 0 or any(
            self.fleet.count(service, "starting") for service in self._leaders
        )
        batches, now = self._batches, self.clock.now
        if batches != self._progress[0] or teachers_start or now < self.scenario.quiet_from_s:
            self._progress = (batches, now)
        elif now - self._progress[1] >= self._patience_s():
            raise ValueError(
                f"no student has trained anything since second {self._progress[1]:.0f}: add"
                " teachers to the students' services, or set duration_s"
            )

    def _patience_s(self) -> float:
        """Return the seconds without a trained batch after which the run counts as stuck."""
        scenario, students = self.scenario, self._present
        teachers = [teacher for teacher in self.fleet.teachers.values() if teacher.works]
        batch = max((s.group.batch for s in students), default=0)
        step_s = max((s.step_s(s.group.teachers_max) for s in students), default=0.0)
        source_s = max((s.group.source_s for s in students), default=0.0)
        device_s = max((teacher.device_s(batch) for teacher in teachers), default=0.0)
        groups: list[StudentGroup | TeacherGroup] = [*scenario.students, *scenario.teachers]
        links = [scenario.link, *(group.link for group in groups if group.link is not None)]
        slowest = min(link.bandwidth_bytes_per_s or inf for link in links)
        nbytes = max((s.group.batch_bytes for s in students), default=0)
        transfer_s = nbytes / slowest + 2 * max(link.latency_s for link in links)
        return max(MIN_PATIENCE_S, PATIENCE_TIMES * (step_s + source_s + device_s + transfer_s))

    # -- the curves

    def _sample(self) -> None:
        self.clock.after(self.scenario.sample_s, self._sample)
        self.points.append(self.point())

    def point(self) -> MeshSample:
        """Return the state of the mesh now; its rate counts from the previous call."""
        now = self.clock.now
        present = [student for student in self.students if student.is_present]
        cores = [student.reader.core for student in present if student.group.needs_labels]
        samples = sum(student.batches * student.group.batch for student in self.students)
        span_s = now - self._sampled_at
        rate = (samples - self._samples) / span_s if span_s > 0 else 0.0
        self._samples, self._sampled_at = samples, now
        desired = [o.desired.count for o in self._leaders.values() if o.desired is not None]
        return MeshSample(
            now,
            len(present),
            sum(self.fleet.count(service, "serving") for service in self._leaders),
            sum(
                len(entry.teachers)
                for leader in self._leaders.values()
                for entry in leader.state.students.values()
            ),
            sum(core.decision.want for core in cores),
            sum(desired) if desired else None,
            sum(
                student.reader.ledger.volume_bytes / student.group.batch_bytes
                for student in present
            ),
            rate,
            sum(core.starves for core in cores),
        )


def _result(control: SimulatedControl) -> SimulationResult:
    """Return the result of a finished run."""
    control.points.append(control.point())
    trace = control.trace
    students = tuple(_student_result(student, control) for student in control.students)
    for student in students:
        trace.hash(student)
    return SimulationResult(
        virtual_s=control.clock.now,
        students=students,
        teachers=tuple(_teachers_result(group, control) for group in control.scenario.teachers),
        points=tuple(control.points),
        mesh_events=tuple(trace.mesh_events),
        requests=tuple(trace.requests),
        steps=tuple(trace.steps),
        trace_hash=trace.digest,
        events=control.clock.events,
        samples_per_s=_total_rate(control),
    )


def _total_rate(control: SimulatedControl) -> float:
    """Return the samples per second of all students together."""
    present = [student for student in control.students if student.began_s is not None]
    times = [_measured_time(student, control) for student in present]
    span_s = max((end for _, end in times), default=0.0) - min(
        (begin for begin, _ in times), default=0.0
    )
    samples = sum(student.measured * student.group.batch for student in present)
    return samples / span_s if span_s > 0 else 0.0


def _measured_time(student: SimulatedStudent, control: SimulatedControl) -> tuple[float, float]:
    """Return between which moments the rate of a student is measured."""
    now = control.clock.now
    began_s = now if student.began_s is None else student.began_s
    is_done = student.limit is not None and student.batches >= student.limit
    until_s = student.last_s if is_done else now if student.ended_s is None else student.ended_s
    return max(began_s, control.scenario.warm_up_s), until_s


def _student_result(student: SimulatedStudent, control: SimulatedControl) -> StudentResult:
    group, reader, now = student.group, student.reader, control.clock.now
    has_come = student.began_s is not None
    began_s = now if student.began_s is None else student.began_s
    ended_s = student.ended_s if has_come and student.ended_s is not None else now
    measured_from_s, measured_until_s = _measured_time(student, control)
    measured_s = measured_until_s - measured_from_s
    rate = student.measured / measured_s if measured_s > 0 else 0.0
    memory = reader.core.memory
    return StudentResult(
        name=student.name,
        group=group.name,
        batches=student.batches,
        samples=student.batches * group.batch,
        began_s=began_s,
        ended_s=ended_s,
        batches_per_s=rate,
        samples_per_s=rate * group.batch,
        training_s=student.training_s,
        starved_s=memory.starved_s,
        blocked_s=memory.blocked_s,
        source_wait_s=memory.source_wait_s,
        resends=reader.ledger.resends,
        hedges=reader.ledger.hedges,
        want=reader.core.decision.want if has_come and group.needs_labels else 0,
        most_volume=reader.most_volume / group.batch_bytes,
    )


def _teachers_result(group: TeacherGroup, control: SimulatedControl) -> TeachersResult:
    teachers = [teacher for teacher in control.fleet.teachers.values() if teacher.group is group]
    there_s = sum(teacher.present_s for teacher in teachers)
    busy_s = sum(teacher.busy_s for teacher in teachers)
    return TeachersResult(
        group=group.name,
        started=control.fleet.started[group.name],
        lost=control.fleet.lost[group.name],
        there_s=there_s,
        busy_s=busy_s,
        utilization=busy_s / (there_s * group.lanes) if there_s > 0 else 0.0,
        batches=sum(teacher.batches for teacher in teachers),
        cost=there_s / 3600 * group.price_per_hour,
    )


#: Number of events between two calls of `on_progress`.
PROGRESS_EVERY = 5_000


def simulate(
    scenario: Scenario,
    seeding: Seeding,
    on_progress: Callable[[float, float | None], None] | None = None,
    keep_batches: bool = False,
) -> SimulationResult:
    """Run a scenario.

    Args:
        scenario: the scenario.
        seeding: makes a random generator from a seed text; pass the class `random.Random`. There
            is no other randomness.
        on_progress: called from time to time with the virtual seconds so far, and the finished
            share of the run (0 to 1; None: unknown).
        keep_batches: keep every request and step in the result.

    Returns:
        The result; equal scenarios give equal results, to the last bit.

    Raises:
        ValueError: the scenario has no duration, and no student makes progress any more.
    """
    clock = VirtualClock()
    control = SimulatedControl(
        SimulationRun(scenario, seeding, clock, EventTrace(clock, keep_batches))
    )
    control.begin()
    end_s = inf if scenario.duration_s is None else scenario.duration_s
    while clock.next_at <= end_s and not (control.is_over and end_s == inf):
        clock.step()
        if on_progress is not None and clock.events % PROGRESS_EVERY == 0:
            on_progress(clock.now, control.progress)
    if end_s < inf:
        clock.now = end_s
    return _result(control)
