"""Upgrades in any order of events: no student mixes two contents, none waits in vain for one."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations, product
from typing import get_args

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.scheduler.assignment import (
    AssignmentChange,
    AssignmentEvent,
    AssignmentState,
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
from edl.scheduler.assignment.state import When, pools
from edl.scheduler.reader_core.events import Advice
from edl.scheduler.reader_core.model_switch import (
    AWAY_S,
    ContentState,
    SwitchAction,
    advise,
    begin,
    tick,
)

from . import assignment_laws as laws

CONTENTS = ("x", "y", "z")
TEACHERS = tuple(f"t{index}" for index in range(6))
STUDENTS = ("a/0", "a/1", "b/0")


@dataclass
class Reader:
    """A student that does with contents what `model_switch` says.

    Attributes:
        sending: the content that teachers label with now; None: it sends nothing.
        had_teachers: it has had some in this epoch, so it may have labels.
        labelled: the contents of the batches of this epoch.
        may_mix: in this epoch it was moved at once, rightly.
        moved: the leader moved it within an epoch, and it has not followed yet.
        heard: the last change that it heard.
        mail: what it has not heard yet.
    """

    switch: ContentState = field(default_factory=lambda: ContentState(data_epoch=1))
    sending: str | None = None
    had_teachers: bool = False
    labelled: set[str] = field(default_factory=set)
    may_mix: bool = False
    moved: bool = False
    heard: AssignmentChange | None = None
    mail: AssignmentChange | None = None


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
        asks = {
            event.student_id
            for event in events
            if isinstance(event, StudentReported) and not event.content_id
        }
        for name, old in before.students.items():
            entry = self.state.students.get(name)
            if entry and old.labelled and old.content_id != entry.content_id and name not in asks:
                assert self.may_move_within_an_epoch(old.content_id, entry.content_id)
                self.readers[name].moved = True

    def may_move_within_an_epoch(self, old: str, new: str) -> bool:
        """Whether the operator said so, or nobody serves the old content and nobody plans it."""
        plan = self.state.plan
        forgotten = old not in (plan.current, plan.next, *pools(self.state.teachers))
        return forgotten or (plan.at == "now" and new == plan.next)

    def report(self, name: str, holding: tuple[str, ...] = ()) -> None:
        switch = self.readers[name].switch
        epoch, content = switch.data_epoch, switch.reported
        self.see([StudentReported(name, 2, holding, data_epoch=epoch, content_id=content)])

    def do(self, name: str, after: tuple[ContentState, SwitchAction]) -> None:
        """A student takes a step, and reports it."""
        reader = self.readers[name]
        before, (reader.switch, step) = reader.switch, after
        if step == "relabel":
            free = reader.moved or not reader.had_teachers
            assert self.moved_by_word or free, "moved in the midst of an epoch"
            reader.may_mix, reader.moved = True, False
        if step in ("follow", "relabel"):
            reader.sending = reader.switch.content_id or None
        elif step == "hold":
            reader.sending = None
        reader.had_teachers |= bool(reader.sending and reader.heard and reader.heard.teachers)
        if reader.switch != before:
            self.report(name)

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
        if change is not None:
            reader.heard = change
            advice = Advice(change.content_id, change.next_content_id, change.data_epoch)
            self.do(name, advise(reader.switch, advice, self.now))

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 2), seconds=st.floats(0.1, 2 * AWAY_S), away=st.booleans())
    def time_goes_by(self, index: int, seconds: float, away: bool) -> None:
        self.now += seconds
        name = list(self.readers)[index % len(self.readers)]
        reader, since = self.readers[name], self.now - seconds if away else None
        self.do(name, tick(reader.switch, self.now, since, usable=reader.sending is not None))

    @rule()
    def a_batch_is_labelled(self) -> None:
        for reader in self.readers.values():
            if reader.sending is not None and reader.had_teachers:
                reader.labelled.add(reader.sending)

    moved_by_word = False

    @invariant()
    def an_operator_said_now(self) -> None:
        """Once moved by an operator's word, late mail may still say so."""
        self.moved_by_word = self.moved_by_word or self.at_now

    @precondition(lambda self: self.readers)
    @rule(index=st.integers(0, 2))
    def a_student_begins_an_epoch(self, index: int) -> None:
        name = list(self.readers)[index % len(self.readers)]
        reader = self.readers[name]
        reader.labelled, reader.may_mix, reader.had_teachers = set(), False, False
        self.do(name, begin(reader.switch, reader.switch.data_epoch + 1, self.now))

    @invariant()
    def an_epoch_is_of_one_content(self) -> None:
        for reader in self.readers.values():
            assert len(reader.labelled) <= 1 or reader.may_mix
            assert reader.sending in (None, reader.switch.reported), "it uses what it tells"

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
    def a_student_waits_only_for_a_planned_content(self) -> None:
        """With a teacher of the service's content, a student of a forgotten one makes progress."""
        plan, served = self.state.plan, pools(self.state.teachers)
        if not self.state.recovering and (plan.current in served or plan.next in served):
            for name, entry in self.state.students.items():
                planned = entry.content_id in (plan.current, plan.next)
                assert entry.teachers or planned, f"{name} waits for {entry.content_id}"

    @invariant()
    def who_waits_for_an_answer_has_one(self) -> None:
        """Or no teacher serves what it is to have."""
        for name, reader in self.readers.items():
            entry = self.state.students.get(name)
            is_held = reader.switch.held_since is not None
            if is_held and entry is not None and entry.teachers:
                answer = reader.mail or reader.heard
                assert answer is not None
                assert answer.data_epoch >= reader.switch.data_epoch, f"{name} waits for ever"

    def teardown(self) -> None:
        """Once all is said, each has what it is to have, at an epoch's begin."""
        self.see([RecoveryEnded()])
        for index, (name, reader) in enumerate(self.readers.items()):
            self.a_student_begins_an_epoch(index)
            while reader.mail is not None:
                self.a_student_hears(index)
            entry = self.state.students[name]
            assert not entry.teachers or reader.sending == entry.content_id, "stranded"


PLANS = [
    ContentPlanned(current, following, at)
    for current in CONTENTS
    for following in ("", *CONTENTS)
    for at in get_args(When)
    if following != current
]
SERVED = [set(some) for size in range(4) for some in combinations(CONTENTS, size)]


@pytest.mark.parametrize("recovering", [False, True])
@pytest.mark.parametrize("content", CONTENTS)
def test_an_epoch_has_one_content_unless_no_teacher_of_it_can_come(
    content: str, recovering: bool
) -> None:
    """For every plan and every set of contents with a teacher."""
    for plan, served in product(PLANS, SERVED):
        ups = [TeacherUp(name, 1, content_id=name) for name in sorted(served)]
        begin: list[AssignmentEvent] = [plan, *ups]
        report = StudentReported("a/0", 1, data_epoch=1, content_id=content)
        begun = [RecoveryBegan(), *begin] if recovering else begin
        state, _ = reduce(AssignmentState(), [*begun, report], 0.0)
        entry, planned = state.students["a/0"], {plan.current, plan.next} - {""}
        if entry.content_id != content:
            assert not recovering
            assert entry.content_id in planned & served, "nobody plans or serves it"
            at_once = plan.at == "now" and entry.content_id == plan.next
            assert at_once or content not in planned | served, "else labels of two models are mixed"
        elif not recovering and planned & served:
            assert entry.teachers or content in planned, "it waits in vain"
        state, _ = reduce(state, [StudentReported("a/0", 1, data_epoch=2)], 0.0)
        if (goal := plan.next or plan.current) in served:
            assert state.students["a/0"].content_id == goal, "an epoch begins with the new content"


TestUpgrade = Upgrade.TestCase
TestUpgrade.settings = settings(max_examples=settings().max_examples, stateful_step_count=60)
