"""When a student goes over to another content; and that no order of messages mixes contents."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edl.scheduler.switching import (
    AWAY_S,
    Advice,
    Step,
    Switch,
    advise,
    begin,
    look,
    resume,
)

pytestmark = pytest.mark.timeout(1800)  # seconds, for the nightly counts

ON_OLD = Switch("old", 1, Advice("old", "", 1))


def test_the_first_assignment_settles_the_content() -> None:
    state, step = advise(Switch(data_epoch=1), Advice("old", "", 0), 0.0)
    assert (state.told, step) == ("old", "follow")


def test_at_the_epoch_it_waits_to_be_moved() -> None:
    state, step = advise(ON_OLD, Advice("old", "new", 1), 0.0)
    assert (state.told, step) == ("old", "follow")
    state, step = begin(state, 2, 1.0)
    assert (state.told, state.awaited, step) == ("", "new", "hold")
    state, step = advise(state, Advice("old", "new", 1), 1.0)
    assert step == "hold", "the same again is no answer"
    state, step = advise(state, Advice("new", "", 2), 1.1)
    assert (state.told, step) == ("new", "follow")


@pytest.mark.parametrize("answer", [Advice("old", "", 1), Advice("old", "newer", 2)])
def test_the_manager_may_have_changed_its_mind(answer: Advice) -> None:
    state, _ = advise(ON_OLD, Advice("old", "new", 1), 0.0)
    state, step = advise(begin(state, 2, 1.0)[0], answer, 1.1)
    assert (state.told, step) == ("old", "follow")


def test_now_means_at_once() -> None:
    state, step = advise(ON_OLD, Advice("new", "", 1), 0.0)
    assert (state.told, step) == ("new", "relabel")


def test_no_teachers_are_no_change_of_content() -> None:
    state, step = advise(ON_OLD, Advice("", "", 1), 0.0)
    assert (state.told, step) == ("old", "follow")
    assert advise(state, Advice("old", "", 1), 1.0)[1] == "follow"


def test_an_announcement_that_comes_too_late_counts_for_the_next_epoch() -> None:
    state, step = begin(ON_OLD, 2, 0.0)
    assert step == "follow"
    state, step = advise(state, Advice("old", "new", 1), 0.1)  # made before the epoch was told
    assert (state.told, step) == ("old", "follow")
    state, step = advise(state, Advice("new", "", 2), 0.2)  # and followed by the move
    assert (state.told, step) == ("old", "stay")
    state, step = begin(state, 3, 1.0)
    assert (state.told, step) == ("new", "follow")


def test_but_a_stream_does_not_stand_still_for_it() -> None:
    state, _ = advise(begin(ON_OLD, 2, 0.0)[0], Advice("old", "new", 1), 0.1)
    state, _ = advise(state, Advice("new", "", 2), 0.2)
    assert look(state, 1.0, None, usable=1)[1] == "stay"
    state, step = look(state, 1.0, None, usable=0)
    assert (state.told, step) == ("new", "relabel")


def test_without_a_coordinator_the_epoch_begins_on_the_old_content() -> None:
    state, _ = advise(ON_OLD, Advice("old", "new", 1), 0.0)
    state, _ = begin(state, 2, 10.0)
    assert look(state, 100.0, None, usable=0)[1] == "stay", "one that answers is waited for"
    assert look(state, 10.0 + AWAY_S / 2, 3.0, usable=0)[1] == "stay"
    state, step = look(state, 10.0 + AWAY_S, 3.0, usable=0)
    assert (state.told, step) == ("old", "follow")
    state, step = advise(state, Advice("new", "", 2), 20.0)
    assert (state.told, step) == ("old", "stay"), "it has begun"
    assert begin(state, 3, 30.0)[0].told == "new"


@pytest.mark.parametrize(("told", "step"), [("", "hold"), ("old", "follow")])
def test_a_new_engine_goes_on_where_the_last_one_stood(told: str, step: Step) -> None:
    advice = Advice("old", "new", 1)
    for before, heard in ((advise(Switch(), advice, 0.0)[0], True), (Switch(), False)):
        state, taken = resume(before, 2, Switch(told, advice=advice), heard, 0.1)
        assert (state.told, taken) == (told, step)
        state, taken = advise(state, advice, 0.2)
        assert (state.told, taken) == (told, step)


def test_a_new_engine_keeps_to_a_content_that_the_last_one_was_bound_to() -> None:
    left = Switch("old", advice=Advice("old", "", 1), bound=True)
    state, step = resume(Switch(), 2, left, False, 0.0)
    assert (state.told, step) == ("old", "follow")
    state, step = advise(state, Advice("new", "", 2), 1.0)
    assert (state.told, step) == ("old", "stay")
    heard, _ = advise(Switch(), Advice("new", "", 2), 0.0)
    state, step = resume(heard, 2, left, True, 1.0)
    assert (state.told, step) == ("old", "stay")


class SwitchMachine(RuleBasedStateMachine):
    """A student, a manager that moves it, and messages that take their time both ways.

    The manager is the simplest that keeps the rules: it moves a student when it reports an epoch
    after the one of the announcement, whether it had heard of that or not.
    """

    @initialize()
    def they_meet(self) -> None:
        self.now = 0.0
        self.state = Switch(data_epoch=1)
        self.sending: str | None = None  # the content that teachers now label with
        self.labelled: dict[int, list[str]] = {1: []}  # epoch -> content of each batch, in order
        self.at_once: set[int] = set()  # epochs in which the student heard an operator say "now"
        self.row, self.epoch_seen = Advice("c0", "", 1), 1
        self.up: list[int] = []
        self.down: list[tuple[Advice, bool]] = [(self.row, False)]
        self.contents = 0

    # -- the manager

    @rule(now=st.booleans())
    def an_upgrade_is_asked_for(self, now: bool) -> None:
        self.contents += 1
        new = f"c{self.contents}"
        if now:
            self.write(Advice(new, "", self.epoch_seen), at_once=True)
        else:
            self.write(Advice(self.row.content_id, new, self.epoch_seen))

    @rule()
    def it_is_called_off(self) -> None:
        self.write(Advice(self.row.content_id, "", self.epoch_seen))

    def write(self, row: Advice, *, at_once: bool = False) -> None:
        self.row = row
        self.down.append((row, at_once))

    @rule()
    def a_report_arrives(self) -> None:
        if self.up:
            self.epoch_seen = max(self.epoch_seen, self.up.pop(0))
            if self.row.next_content_id and self.epoch_seen > self.row.data_epoch:
                self.write(Advice(self.row.next_content_id, "", self.epoch_seen))

    # -- the student

    def take(self, state: Switch, step: Step) -> None:
        self.state = state
        if step in ("follow", "relabel"):
            self.sending = state.advice.content_id or None  # no assignment yet, so no teachers
        elif step == "hold":
            self.sending = None

    @rule()
    def an_assignment_arrives(self) -> None:
        if self.down:
            advice, at_once = self.down.pop(0)
            if at_once:
                self.at_once.add(self.state.data_epoch)
            self.take(*advise(self.state, advice, self.now))

    @rule()
    def a_batch_is_labelled(self) -> None:
        if self.sending is not None:
            self.labelled[self.state.data_epoch].append(self.sending)

    @rule()
    def an_epoch_begins(self) -> None:
        epoch = self.state.data_epoch + 1
        self.labelled[epoch] = []
        self.take(*begin(self.state, epoch, self.now))
        self.up.append(epoch)

    @rule(seconds=st.floats(0.1, 2 * AWAY_S), away=st.booleans())
    def time_goes_by(self, seconds: float, away: bool) -> None:
        self.now += seconds
        since = self.now - seconds if away else None
        step: Step
        state, step = look(self.state, self.now, since, usable=self.sending is not None)
        self.take(state, step)

    @invariant()
    def an_epoch_is_of_one_content(self) -> None:
        if hasattr(self, "state"):
            for epoch, contents in self.labelled.items():
                assert len(set(contents)) <= 1 or epoch in self.at_once

    @invariant()
    def what_it_tells_is_what_it_uses(self) -> None:
        if hasattr(self, "state") and self.sending is not None:
            assert self.state.told == self.sending

    def teardown(self) -> None:
        """Once all is said, it has what the manager wants it to have, at an epoch's begin."""
        if not hasattr(self, "state"):
            return
        for _ in range(3):
            self.an_epoch_begins()
            for _ in range(3 + len(self.up) + len(self.down)):
                self.a_report_arrives()
                self.an_assignment_arrives()
            assert self.sending is not None, "stranded"
        assert self.sending == self.row.content_id


TestSwitchMachine = SwitchMachine.TestCase
TestSwitchMachine.settings = settings(max_examples=settings().max_examples, stateful_step_count=60)
