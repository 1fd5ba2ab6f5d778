"""Upgrades in any order of events: no student mixes two contents, none is stranded by a move."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.scheduler.assignment import (
    AssignmentEvent,
    AssignmentState,
    Change,
    ContentPlanned,
    RecoveryBegan,
    RecoveryEnded,
    StudentGone,
    StudentReported,
    TeacherDown,
    TeacherUp,
    plan_is_complete,
    reduce,
)

from . import assignment_laws as laws

CONTENTS = ("x", "y", "z")
TEACHERS = tuple(f"t{index}" for index in range(6))
STUDENTS = ("a/0", "a/1", "b/0")


@dataclass
class Reader:
    """What a student does with what it hears; `mail` is what it has not heard yet.

    Attributes:
        bound: the content of the epoch that it is in; "": it is between two, and waits if
            `waiting`.
        heard: the last change that it heard.
    """

    epoch: int = 1
    bound: str = ""
    waiting: bool = True
    heard: Change | None = None
    mail: Change | None = None


class Upgrade(RuleBasedStateMachine):
    """A leader, teachers of several contents, and readers that hear of changes late."""

    def __init__(self) -> None:
        super().__init__()
        self.state = AssignmentState()
        self.now = 0.0
        self.readers: dict[str, Reader] = {}
        self.at_now = False
        self.current = "x"
        self.see([ContentPlanned("x")])

    def see(self, events: list[AssignmentEvent]) -> None:
        before = self.state
        self.state, changes = reduce(self.state, events, self.now)
        for change in changes:
            name = change.student_id
            old = before.students.get(name)
            if old is not None and old.content_id != change.content_id and change.teachers == ():
                assert not old.teachers, f"{name} was stranded by its move"
            if name in self.readers:
                self.readers[name].mail = change

    def report(self, name: str, holding: tuple[str, ...] = ()) -> None:
        one = self.readers[name]
        self.see([StudentReported(name, 2, holding, data_epoch=one.epoch, content_id=one.bound)])

    @rule(name=st.sampled_from(TEACHERS), content=st.sampled_from(CONTENTS))
    def a_teacher_comes(self, name: str, content: str) -> None:
        self.now += 1
        self.see([TeacherUp(name, int(self.now), content_id=content)])

    @rule(name=st.sampled_from(TEACHERS), lost=st.booleans())
    def a_teacher_goes(self, name: str, lost: bool) -> None:
        self.see([TeacherDown(name, lost)])

    @rule(content=st.sampled_from(CONTENTS), now=st.booleans())
    def an_upgrade_is_asked_for(self, content: str, now: bool) -> None:
        if content != self.current:
            self.at_now = now
            self.see([ContentPlanned(self.current, content, "now" if now else "epoch")])

    @precondition(lambda self: plan_is_complete(self.state))
    @rule()
    def an_upgrade_is_over(self) -> None:
        self.current = self.state.plan.next
        self.at_now = False
        self.see([ContentPlanned(self.current)])

    @rule()
    def a_recovery_begins_or_ends(self) -> None:
        self.see([RecoveryEnded() if self.state.recovering else RecoveryBegan()])

    @rule()
    def another_leader_takes_over(self) -> None:
        """It knows teachers and the plan, and of students what they report."""
        plan, teachers = self.state.plan, self.state.teachers
        self.state = AssignmentState()
        ups = [TeacherUp(n, t.incarnation, content_id=t.content_id) for n, t in teachers.items()]
        self.see([RecoveryBegan(), ContentPlanned(plan.current, plan.next, plan.at), *ups])
        for name, reader in self.readers.items():
            holding = reader.heard.teachers if reader.heard else ()
            self.report(name, holding)

    @rule(name=st.sampled_from(STUDENTS))
    def a_student_begins_or_reports(self, name: str) -> None:
        if name not in self.readers:
            self.readers[name] = Reader()
        self.report(name)

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 2))
    def a_student_goes(self, index: int) -> None:
        name = list(self.readers)[index % len(self.readers)]
        del self.readers[name]
        self.see([StudentGone(name)])

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 2))
    def a_student_hears(self, index: int) -> None:
        name = list(self.readers)[index % len(self.readers)]
        reader = self.readers[name]
        change, reader.mail = reader.mail, None
        if change is None:
            return
        reader.heard = change
        if reader.waiting:
            if change.data_epoch >= reader.epoch and change.teachers:
                reader.bound, reader.waiting = change.content_id, False
                self.report(name)
        elif change.content_id != reader.bound:
            moved_by_word = self.state.plan.at == "now" or self.moved_by_word
            unknown = reader.bound not in (self.current, self.state.plan.next)
            assert moved_by_word or unknown, "moved in the midst of an epoch"
            reader.bound = change.content_id
            self.report(name)

    moved_by_word = False

    @invariant()
    def an_operator_said_now(self) -> None:
        """Once moved by an operator's word, late mail may still say so."""
        self.moved_by_word = self.moved_by_word or self.at_now

    @precondition(lambda self: any(not reader.waiting for reader in self.readers.values()))
    @rule(index=st.integers(0, 2))
    def a_student_ends_its_epoch(self, index: int) -> None:
        running = [name for name, reader in self.readers.items() if not reader.waiting]
        reader = self.readers[running[index % len(running)]]
        reader.epoch += 1
        if reader.heard is not None and reader.heard.next_content_id:
            reader.bound, reader.waiting = "", True
        self.report(running[index % len(running)])

    @invariant()
    def the_laws_hold(self) -> None:
        if not self.state.recovering:
            laws.check(self.state)

    @invariant()
    def all_teachers_of_a_student_serve_its_content(self) -> None:
        for entry in self.state.students.values():
            for teacher in entry.teachers:
                assert self.state.teachers[teacher].content_id == entry.content_id

    @invariant()
    def who_waits_for_an_answer_has_one(self) -> None:
        """Or no teacher serves what it is to have."""
        for name, reader in self.readers.items():
            entry = self.state.students.get(name)
            if reader.waiting and entry is not None and entry.teachers:
                answer = reader.mail or reader.heard
                assert answer is not None
                assert answer.data_epoch >= reader.epoch, f"{name} waits for ever"


TestUpgrade = Upgrade.TestCase
