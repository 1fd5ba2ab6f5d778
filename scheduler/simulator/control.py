"""The control plane of a simulated mesh.

Students arrive, report and leave; teachers come, fail and go (`lives.py`); each service's leader
looks at what has come up and assigns (`office.py`); autoscaling starts and drains teachers. What a
leader decides reaches those concerned after the latency of the scenario's link.
"""

from __future__ import annotations

from functools import partial
from math import inf

from .. import assignment as rule
from .. import headcount
from ..backoff import Rest
from .cast import Student, Teacher
from .clock import Clock, Seeding
from .data_plane import DataPlane
from .lives import Lives
from .office import Office
from .patience import patience_s
from .result import Point
from .scenario import Fault, Scenario, StudentGroup
from .trace import Trace


class Control:
    """Plays a scenario's control plane on a clock; it is the `Mesh` of the data plane.

    Args:
        scenario: what to play.
        seeding: of what is drawn.
        clock: on which all happens.
        trace: hears of it.
        plane: moves the batches.

    Attributes:
        students: all that there will be, in the order of the scenario.
        lives: the teachers.
        points: the curves so far.
    """

    def __init__(
        self, scenario: Scenario, seeding: Seeding, clock: Clock, trace: Trace, plane: DataPlane
    ) -> None:
        self.scenario, self.seeding, self.clock, self.trace = scenario, seeding, clock, trace
        self.students = [
            Student(f"{group.name}/{number}", group, scenario.batches_of(group))
            for group in scenario.students
            for number in range(group.count)
        ]
        self._by_name = {student.name: student for student in self.students}
        self.points: list[Point] = []
        self.lives = Lives(scenario, seeding, clock, trace, plane, self._hear)
        self._plane = plane
        self._offices = {name: Office(scenario.autoscale) for name in scenario.services}
        self._look_at = dict.fromkeys(self._offices, inf)
        self._rng = seeding(f"{scenario.seed}/faults")
        self._to_leave = len(self.students)
        self._samples, self._sampled_at = 0, 0.0
        self._progress = (0, 0.0)  # batches of all students, and when there were more last

    # -- the run

    def begin(self) -> None:
        """Plan all that the scenario says."""
        scenario, clock = self.scenario, self.clock
        self._plane.begin(self)
        self.lives.begin()
        numbers: dict[str, int] = {}
        for student in self.students:
            group = student.group
            number = numbers[group.name] = numbers.get(group.name, -1) + 1
            clock.at(group.join_s + number * group.join_every_s, partial(self._join, student))
            if group.leave_s is not None:
                clock.at(group.leave_s, partial(self._leave, student))
        for group in scenario.students:
            for change in group.changes:
                clock.at(change.at_s, partial(self._repace, group))
        for fault in scenario.faults:
            clock.at(fault.at_s, partial(self._strike, fault))
        clock.after(scenario.report_s, self._sweep)
        clock.at(0.0, self._sample)

    @property
    def is_over(self) -> bool:
        """Whether all students have come and gone."""
        return self._to_leave == 0

    @property
    def progress(self) -> float | None:
        """Share of the run that is done; None: not known."""
        if self.scenario.duration_s is not None:
            return min(self.clock.now / self.scenario.duration_s, 1.0)
        limits = [student.batches for student in self.students]
        if not all(limits):
            return None
        done = sum(self._plane.tally(student).batches for student in self.students)
        return done / sum(limit or 0 for limit in limits)

    # -- what the data plane finds around it

    @property
    def teachers(self) -> dict[str, Teacher]:
        return self.lives.teachers

    def news(self, student: Student) -> None:
        self._report(student)

    def rested(self, teacher: Teacher) -> None:
        self.lives.rested(teacher)

    def done(self, student: Student) -> None:
        self._part(student, "done", "has trained its last batch")

    # -- students

    def _join(self, student: Student) -> None:
        if student.ended_s is not None:
            return
        student.began_s = self.clock.now
        self.trace.tell("join", student.name)
        self._plane.join(student)
        self._report(student)

    def _leave(self, student: Student) -> None:
        if student.is_there:
            self._plane.leave(student)
            self._part(student, "leave", "leaves as the scenario says")
        elif student.ended_s is None:
            student.ended_s = self.clock.now  # it never came
            self._to_leave -= 1

    def _part(self, student: Student, kind: str, text: str, told_in_s: float = 0.0) -> None:
        student.ended_s = self.clock.now
        self._to_leave -= 1
        self.trace.tell(kind, student.name, text)
        if student.group.needs_labels:
            self.clock.after(told_in_s, partial(self._forget, student))

    def _forget(self, student: Student) -> None:
        self._offices[student.group.service].forget(student)
        self._wake(student.group.service, self.clock.now + self.scenario.look_s)

    def _report(self, student: Student) -> None:
        if not (student.group.needs_labels and student.is_there):
            return
        service = student.group.service
        office = self._offices[service]
        office.hear_of(student, self._plane.report(student))
        if office.has_news:
            self._wake(service, self.clock.now + self.scenario.look_s)

    def _repace(self, group: StudentGroup) -> None:
        self.trace.tell("pace", group.name, f"{group.t_s_at(self.clock.now):g} s per sample")

    # -- what goes wrong

    def _strike(self, fault: Fault) -> None:
        members = [s for s in self.students if s.group.name == fault.group]
        if not members:
            for teacher in self.lives.strike(fault.group, fault.kind, fault.count, self._rng):
                if fault.kind == "slow":
                    self._slow_teacher(teacher, fault)
                else:
                    self.lives.end(teacher, fault.kind, fault.for_s)
            return
        there = [student for student in members if student.is_there]
        self._rng.shuffle(there)
        for student in there[: fault.count]:
            if fault.kind == "slow":
                self._slow_student(student, fault)
                continue
            self._plane.leave(student)
            is_crash = fault.kind == "crash"
            text = "crashes" if is_crash else "leaves in good order"
            self._part(student, fault.kind, text, self.scenario.ttl_s if is_crash else 0.0)

    def _slow_teacher(self, teacher: Teacher, fault: Fault) -> None:
        self.lives.slow(teacher, fault.factor)
        if fault.for_s is not None:

            def back() -> None:
                self.lives.slow(teacher, 1 / fault.factor)

            self.clock.after(fault.for_s, back)

    def _slow_student(self, student: Student, fault: Fault) -> None:
        def pace(factor: float) -> None:
            student.slowed *= factor
            self.trace.tell("slow", student.name, f"{student.slowed:g} times its usual time")

        pace(fault.factor)
        if fault.for_s is not None:
            self.clock.after(fault.for_s, partial(pace, 1 / fault.factor))

    # -- the coordinator

    def _hear(self, service: str, event: rule.AssignmentEvent) -> None:
        self._offices[service].hear(event)
        self._wake(service, self.clock.now + self.scenario.look_s)

    def _wake(self, service: str, moment: float) -> None:
        """Have the leader look then, unless it looks sooner."""
        if moment < self._look_at[service]:
            self._look_at[service] = moment
            self.clock.at(moment, partial(self._look, service))

    def _look(self, service: str) -> None:
        now = self.clock.now
        if now < self._look_at[service]:
            return  # it has looked sooner
        self._look_at[service] = inf
        office = self._offices[service]
        changes = office.look(now)
        draining = [t for t in self.lives.draining.values() if t.group.service == service]
        self.clock.after(self.scenario.link.latency_s, partial(self._push, changes, draining))
        if (due := office.due_at) < inf:
            self._wake(service, max(due, now + self.scenario.look_s))

    def _push(self, changes: tuple[rule.Change, ...], draining: list[Teacher]) -> None:
        """Students hear what the leader has decided; draining teachers, that they have."""
        for change in changes:
            student = self._by_name[change.student_id]
            if student.is_there:
                text = f"{len(change.teachers)} teachers: {change.reason}"
                self.trace.tell("assign", student.name, text)
                self._plane.assign(student, change.teachers, change.lost)
        for teacher in draining:
            teacher.drain_heard = True
            self.lives.rested(teacher)

    def _sweep(self) -> None:
        """Once in `report_s`: everybody reports, and autoscaling decides."""
        self.clock.after(self.scenario.report_s, self._sweep)
        for student in self.students:
            self._report(student)
        for service, office in self._offices.items():
            before = office.desired
            starting = self.lives.count(service)[1]
            desired = office.scale(self.lives.believed(service), starting, self.clock.now)
            if desired is not None:
                if before is None or desired.count != before.count:
                    text = f"{desired.count} teachers: {desired.reason}"
                    self.trace.tell("desired", service, text)
                self._follow(service, desired.count)
        self._look_whether_stuck()

    def _follow(self, service: str, desired: int) -> None:
        """Order and drain teachers until there are as many as are desired."""
        groups = [group for group in self.scenario.teachers if group.service == service]
        if not groups:
            return
        hands = [
            headcount.Hand(one.name, serves=one.state == "serving")
            for one in self.lives.kept(service)
        ]
        found = headcount.moves(hands, desired, Rest(), self.clock.now)
        for _ in range(found.start):
            self.lives.order(groups[0], groups[0].start_s)
        for name in found.drain:
            self.trace.tell("drain", name, "not desired any more")
            self.lives.drain(self.lives.teachers[name])

    def _look_whether_stuck(self) -> None:
        """Give up where nothing is trained, and nothing would ever end the run.

        Raises:
            ValueError: so it is.
        """
        if self.scenario.duration_s is not None:
            return
        batches = sum(self._plane.tally(student).batches for student in self.students)
        some_come = any(self.lives.count(service)[1] for service in self._offices)
        if batches != self._progress[0] or some_come or self.clock.now < self.scenario.quiet_from_s:
            self._progress = (batches, self.clock.now)
        elif self.clock.now - self._progress[1] >= patience_s(
            self.scenario, self.students, self.teachers.values(), self.clock.now
        ):
            raise ValueError(
                f"no student has trained anything from {self._progress[1]:.0f} s on: is there a"
                " teacher of its service? With duration_s it would end all the same"
            )

    # -- the curves

    def _sample(self) -> None:
        self.clock.after(self.scenario.sample_s, self._sample)
        self.points.append(self.point())

    def point(self) -> Point:
        """The mesh at this moment."""
        now = self.clock.now
        there = [student for student in self.students if student.is_there]
        reports = [self._plane.report(student) for student in there]
        samples = sum(
            self._plane.tally(student).batches * student.group.batch for student in self.students
        )
        span_s = now - self._sampled_at
        rate = (samples - self._samples) / span_s if span_s > 0 else 0.0
        self._samples, self._sampled_at = samples, now
        desired = [o.desired.count for o in self._offices.values() if o.desired is not None]
        labelled = [(s, r) for s, r in zip(there, reports, strict=True) if s.group.needs_labels]
        return Point(
            now,
            len(there),
            sum(self.lives.count(service)[0] for service in self._offices),
            sum(
                len(entry.teachers)
                for office in self._offices.values()
                for entry in office.state.students.values()
            ),
            sum(report.want for _, report in labelled),
            sum(desired) if desired else None,
            sum(report.volume for report in reports),
            rate,
            sum(report.starves for _, report in labelled),
        )
