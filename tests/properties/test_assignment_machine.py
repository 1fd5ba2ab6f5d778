"""Whoever comes and goes, assignments obey the rule and change no more than they must."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.scheduler.assignment import (
    AssignmentEvent,
    AssignmentState,
    Change,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherDraining,
    TeacherUp,
    reduce,
)

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

TEACHERS = tuple(f"t{index}" for index in range(7))
STUDENTS = tuple(f"job/{rank}" for rank in range(9))
teachers, students = st.sampled_from(TEACHERS), st.sampled_from(STUDENTS)


class AssignmentMachine(RuleBasedStateMachine):
    """A coordinator's view of one service; `told` is what the students have heard."""

    def __init__(self) -> None:
        super().__init__()
        self.state = AssignmentState()
        self.serving: dict[str, int] = {}
        self.wants: dict[str, int] = {}
        self.told: dict[str, tuple[str, ...]] = {}
        self.incarnations = 0

    def see(self, event: AssignmentEvent) -> tuple[Change, ...]:
        assert reduce(self.state, event) == reduce(self.state, event)
        before = {name: entry.teachers for name, entry in self.state.students.items()}
        self.state, changes = reduce(self.state, event)
        assert len({change.student_id for change in changes}) == len(changes)
        for change in changes:
            moved = before.get(change.student_id) != change.teachers
            assert moved or change.lost, "told nothing new"
            assert change.reason
            self.told[change.student_id] = change.teachers
        return changes

    @property
    def counts(self) -> dict[str, int]:
        return {name: len(entry.teachers) for name, entry in self.state.students.items()}

    @property
    def apart(self) -> bool:
        """Whether there is a teacher for each student that wants one."""
        return sum(want > 0 for want in self.wants.values()) <= len(self.serving)

    # ------------------------------------------------------------------------------------- rules

    @rule(name=teachers)
    def a_teacher_comes(self, name: str) -> None:
        was_apart, known = self.apart, name in self.serving
        self.incarnations += 1
        self.serving[name] = self.incarnations
        changes = self.see(TeacherUp(name, self.incarnations))
        if was_apart and not known:
            assert len([c for c in changes if name in c.teachers]) <= 1
            assert len([c for c in changes if not c.lost]) <= 1, "one came, and more than one moved"

    @rule(name=teachers)
    def a_teacher_drains(self, name: str) -> None:
        self.serving.pop(name, None)
        for change in self.see(TeacherDraining(name)):
            assert change.lost == ()

    @rule(name=teachers, lost=st.booleans())
    def a_teacher_goes(self, name: str, lost: bool) -> None:
        held_by = {s for s, entry in self.state.students.items() if name in entry.teachers}
        was_apart = self.apart
        self.serving.pop(name, None)
        changes = {change.student_id: change for change in self.see(TeacherDown(name, lost))}
        assert held_by <= set(changes)
        for student in held_by:
            assert changes[student].lost == ((name,) if lost else ())
        if was_apart and self.apart:
            moved = [change for change in changes.values() if not change.lost]
            assert len(moved) <= 2, "one went: its student, and at most one that gives way"

    @rule(name=students, want=st.integers(0, 6), holding=st.lists(teachers, max_size=4))
    def a_student_reports(self, name: str, want: int, holding: list[str]) -> None:
        new = name not in self.wants
        free = set(self.serving) - {t for held in self.told.values() for t in held}
        self.wants[name] = want
        changes = self.see(StudentReported(name, want, tuple(holding)))
        if new:
            assert name in {change.student_id for change in changes}
        if new and self.apart:
            kept = [t for t in dict.fromkeys(holding) if t in free]
            mine = self.told[name]
            assert set(kept[: len(mine)]) <= set(mine), "took away what it held"

    @precondition(lambda self: self.wants)
    @rule(index=st.integers(0, 8))
    def a_student_goes(self, index: int) -> None:
        name = list(self.wants)[index % len(self.wants)]
        del self.wants[name]
        del self.told[name]
        self.see(StudentGone(name))

    # -------------------------------------------------------------------------------- invariants

    @invariant()
    def students_know_what_is_theirs(self) -> None:
        assert self.told == {n: entry.teachers for n, entry in self.state.students.items()}
        assert set(self.told) == set(self.wants)

    @invariant()
    def only_serving_teachers_are_assigned_and_none_twice_to_one(self) -> None:
        for held in self.told.values():
            assert set(held) <= set(self.serving)
            assert len(set(held)) == len(held)

    @invariant()
    def nobody_has_more_than_it_wants_or_none_at_all(self) -> None:
        for name, want in self.wants.items():
            assert self.counts[name] <= want
            if want and self.serving:
                assert self.counts[name] >= 1

    @invariant()
    def no_teacher_serves_two_unless_students_outnumber_teachers(self) -> None:
        load = Counter(teacher for held in self.told.values() for teacher in held)
        if self.apart:
            assert set(load.values()) <= {1}
        elif self.serving:
            counts = [load[name] for name in self.serving]
            assert max(counts) - min(counts) <= 1, "shared unevenly"

    @invariant()
    def nothing_idles_that_is_wanted(self) -> None:
        if self.apart:
            wanted = sum(self.wants.values())
            assert sum(self.counts.values()) == min(wanted, len(self.serving))

    @invariant()
    def the_counts_are_those_of_a_fresh_start(self) -> None:
        """However it came about, each student has as many as if all were told anew, in order."""
        fresh = AssignmentState()
        for name, incarnation in self.serving.items():
            fresh, _ = reduce(fresh, TeacherUp(name, incarnation))
        for name, entry in self.state.students.items():
            fresh, _ = reduce(fresh, StudentReported(name, entry.want))
        assert {name: len(entry.teachers) for name, entry in fresh.students.items()} == self.counts

    @invariant()
    def what_still_finishes_is_remembered_and_nothing_else(self) -> None:
        for entry in self.state.students.values():
            assert set(entry.finishing) <= set(self.state.teachers) - set(entry.teachers)


TestAssignmentMachine = AssignmentMachine.TestCase
