"""Whoever comes and goes, assignments obey the laws and change no more than they must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.scheduler import assignment

from . import assignment_laws as laws

TEACHERS = tuple(f"t{index}" for index in range(9))
STUDENTS = tuple(f"{job}/{rank}" for job in "abc" for rank in range(3))
HOSTS = ("", "left", "right")
teachers, students = st.sampled_from(TEACHERS), st.sampled_from(STUDENTS)


class Machine(RuleBasedStateMachine):
    """A coordinator's view of one service; `told` is what the students have heard."""

    #: Samples per second of teachers, and n with t_t / t_s of students (None: not measured).
    speeds: ClassVar[Sequence[float]] = (100.0,)
    ratios: ClassVar[Sequence[float | None]] = (None,)
    #: Whether all ranks of a job have the same priority and `min`.
    alike: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.state = assignment.AssignmentState()
        self.now = 0.0
        self.told: dict[str, tuple[str, ...]] = {}
        self.incarnations = 0
        self.see([assignment.TeacherUp("anchor", speed=100.0)])
        self.see([assignment.TeacherDown("anchor", lost=False)])

    def see(
        self, events: list[assignment.AssignmentEvent]
    ) -> dict[str, assignment.AssignmentChange]:
        before = self.state
        self.state, changes = assignment.reduce(before, events, self.now)
        again = assignment.reduce(before, events, self.now)
        assert again == (self.state, changes), "not a function"
        assert len({change.student_id for change in changes}) == len(changes)
        for change in changes:
            old = before.students.get(change.student_id)
            assert old is None or old.teachers != change.teachers or change.lost, "told nothing new"
            assert not set(change.lost) - set(old.teachers + old.finishing if old else ())
            assert "; has " in change.reason
            assert "begins epoch" not in change.reason, "nobody does, here"
            self.told[change.student_id] = change.teachers
        return {change.student_id: change for change in changes}

    @property
    def apart(self) -> bool:
        return not any(pool.shares(name) for pool in laws.pools(self.state) for name in pool.asking)

    @property
    def all_give_labels(self) -> bool:
        return not any(pool.silent for pool in laws.pools(self.state))

    @rule(name=teachers, speed=st.integers(0, 9), host=st.sampled_from(HOSTS))
    def a_teacher_comes(self, name: str, speed: int, host: str) -> None:
        known, apart, recovering = name in self.state.teachers, self.apart, self.state.recovering
        silent = sum(len(pool.silent) for pool in laws.pools(self.state))
        self.incarnations += 1
        chosen = self.speeds[speed % len(self.speeds)]
        changes = self.see([assignment.TeacherUp(name, self.incarnations, chosen, host=host)])
        if not (known or recovering) and apart and self.apart and len(self.speeds) == 1:
            jobs = {student.rpartition("/")[0] for student in changes}
            # Who has enough then gives back those that gave it no labels, which others may take.
            assert len(changes) <= 1 + silent or len(jobs) > 1, "one came, and more than one moved"

    @precondition(lambda self: self.state.teachers)
    @rule(index=st.integers(0, 8), speed=st.integers(0, 9))
    def a_teacher_is_measured_anew(self, index: int, speed: int) -> None:
        name, known = list(self.state.teachers.items())[index % len(self.state.teachers)]
        if not known.draining:
            speeds = self.speeds[speed % len(self.speeds)]
            self.see([assignment.TeacherUp(name, known.incarnation, speeds, host=known.host)])

    @rule(name=teachers)
    def a_teacher_drains(self, name: str) -> None:
        for change in self.see([assignment.TeacherDraining(name)]).values():
            assert change.lost == ()

    @rule(name=teachers, lost=st.booleans())
    def a_teacher_goes(self, name: str, lost: bool) -> None:
        held_by = {s for s, entry in self.state.students.items() if name in entry.teachers}
        changes = self.see([assignment.TeacherDown(name, lost)])
        assert held_by <= set(changes)
        for student in held_by:
            assert changes[student].lost == ((name,) if lost else ())

    @rule(
        name=students,
        report=st.builds(
            assignment.StudentReported,
            st.just(""),
            want=st.integers(0, 6),
            holding=st.lists(teachers, max_size=4).map(tuple),
            min=st.integers(0, 3),
            priority=st.integers(0, 1),
            urgent=st.booleans(),
            unreachable=st.integers(0, 1),
            unavailable=st.lists(teachers, max_size=3, unique=True).map(tuple),
            cut_off=st.booleans(),
            host=st.sampled_from(HOSTS),
        ),
        ratio=st.integers(0, 9),
    )
    def a_student_reports(self, name: str, report: assignment.StudentReported, ratio: int) -> None:
        new = name not in self.state.students
        silent = report.unavailable  # an older reader names none
        unreachable = min(len(silent) or report.unreachable, report.want)
        report = replace(report, student_id=name, unreachable=unreachable)
        if (measured := self.ratios[ratio % len(self.ratios)]) is not None:
            needed = max(1, -int(-measured // 1))
            report = replace(report, needed=needed, t_t_s=0.01, t_s_s=0.01 / measured)
        if self.alike:
            least, priority = {"a": (1, 0), "b": (2, 1), "c": (1, 1)}[name[0]]
            report = replace(report, min=least, priority=priority)
        self.now += 0.5
        changes = self.see([report])
        assert not new or name in changes

    @precondition(lambda self: self.state.students)
    @rule(index=st.integers(0, 8))
    def a_student_goes(self, index: int) -> None:
        name = list(self.state.students)[index % len(self.state.students)]
        del self.told[name]
        self.see([assignment.StudentGone(name)])

    @rule(seconds=st.sampled_from([1.0, 16.0, 31.0, 130.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.see([assignment.Ticked()])
        due = assignment.next_due(self.state)
        assert due is None or due > self.now

    @rule()
    def teachers_are_forgotten_and_register_anew(self) -> None:
        if not self.state.recovering:
            self.see([assignment.RecoveryBegan()])

    @rule()
    def everybody_is_known_again(self) -> None:
        self.see([assignment.RecoveryEnded()])

    @invariant()
    def students_know_what_is_theirs(self) -> None:
        assert self.told == {n: entry.teachers for n, entry in self.state.students.items()}

    @invariant()
    def the_laws_hold(self) -> None:
        if not self.state.recovering:
            laws.check(self.state)

    @invariant()
    def nothing_moves_by_itself(self) -> None:
        if not self.state.recovering:
            assert laws.settled(self.state, self.now)

    @invariant()
    def what_still_finishes_is_remembered_and_nothing_else(self) -> None:
        for entry in self.state.students.values():
            assert set(entry.finishing) <= set(self.state.teachers) - set(entry.teachers)


class EqualTeachers(Machine):
    """Of one speed: then what comes out is that of a fresh start, however it came about."""

    @invariant()
    def it_is_as_good_as_from_nothing(self) -> None:
        if not self.state.recovering and self.all_give_labels:
            fresh = laws.from_nothing(self.state, self.now)
            assert laws.outcome(self.state) == laws.outcome(fresh)


class WholeJobs(EqualTeachers):
    alike = True

    @invariant()
    def as_few_jobs_are_slow_as_from_nothing(self) -> None:
        if not self.state.recovering and self.apart and self.all_give_labels:
            fresh = laws.from_nothing(self.state, self.now)
            assert laws.slow_jobs(self.state) == laws.slow_jobs(fresh)


class UnequalTeachers(Machine):
    """Of several speeds, and students of which one teacher can feed several."""

    speeds = (100.0, 100.0, 400.0, 50.0, 210.0, 0.0)
    ratios = (None, 0.2, 0.4, 0.5, 0.9, 1.5, 3.7)


TestEqualTeachers = EqualTeachers.TestCase
TestWholeJobs = WholeJobs.TestCase
TestUnequalTeachers = UnequalTeachers.TestCase
