"""Answers are kept until they can be compared, and nothing is kept or awaited for ever."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.distill_reader.canaries import CanaryPolicy
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.engine.comparing import Comparing
from edl.distill_reader.engine.outcomes import Done, Job
from edl.errors import UsageError
from edl.proto.arena import Array
from edl.scheduler.canaries import Verdict
from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev

CONFIG = ReaderConfig("s", teachers=("a:1",), canaries=CanaryPolicy(share=0.3))
TRUE = np.array([[1.0, 2.0, 3.0]], np.float32)


class Desk:
    """A ledger, what is compared, and nobody else: whoever is sent something waits to be told."""

    def __init__(self, config: ReaderConfig = CONFIG) -> None:
        self.ledger = Ledger()
        self.comparing = Comparing(config, self.ledger)
        self.batches = 0
        self.sent: list[tuple[int, str]] = []  # in flight
        self.copies: set[tuple[int, str]] = set()  # those of them in memory of their own
        self.liars: list[str] = []

    @property
    def on_trial(self) -> list[str]:
        return list(self.ledger.on_trial)

    @property
    def cases(self) -> list[int]:
        """Requests whose answers are kept to be compared."""
        return list(self.comparing._cases)  # noqa: SLF001  # only seen here

    def tell(self, event: ev.Event) -> bool:
        """Whether an answer was accepted."""
        copies: list[ev.Hedge] = []
        accepted = False
        for instruction in self.ledger.handle(event):
            match instruction:
                case ev.Send(request, teacher):
                    if self.comparing.is_copy(instruction):
                        self.copies.add((request, teacher))
                    self.sent.append((request, teacher))
                    copies += self.comparing.sent(instruction)
                case ev.Accept():
                    accepted = True
                case ev.Deliver(batch):
                    self.ledger.handle(ev.Taken(batch))
        for copy in copies:
            self.tell(copy)
        return accepted

    def carry_out(self, verdicts: list[Verdict]) -> None:
        for verdict in verdicts:
            for name in verdict.readmit:
                self.tell(ev.Readmitted(name))
            for name in verdict.trial:
                self.tell(ev.Ejected(name))
            for name in verdict.liars:
                self.liars.append(name)
                self.tell(ev.Disbelieve(name))
                self.carry_out(self.comparing.left(name))

    def queue(self) -> None:
        self.tell(ev.Queued(self.batches, 100, 1))
        self.batches += 1

    def join(self, name: str) -> bool:
        on_trial = self.comparing.joined(name, "cpu")
        self.tell(replace(ev.TeacherJoined(name, 2), on_trial=on_trial))
        if on_trial:
            for copy in self.comparing.catch_up():
                self.tell(copy)
        return on_trial

    def answer(self, request: int, teacher: str, labels: Array = TRUE) -> None:
        self.sent.remove((request, teacher))
        accepted = self.tell(ev.Answered(teacher, request, 4, 0.01))
        job = Job(request, (), {}, (), 1)
        done = Done(job, {"y": labels}, 0.01, False, 0.01, numerics_id="cpu")
        self.carry_out(self.comparing.answered(teacher, done, accepted))

    def answer_all(self, **labels: Array) -> None:
        """Everybody answers what he has, in the order in which it was sent."""
        while self.sent:
            request, teacher = self.sent[0]
            self.answer(request, teacher, labels.get(teacher, TRUE))

    def fail(self, request: int, teacher: str) -> None:
        self.sent.remove((request, teacher))
        self.comparing.rests(teacher)
        self.tell(ev.Failed(teacher, request))
        self.carry_out(self.comparing.ended(teacher, request))

    def lose(self, name: str) -> None:
        self.sent = [one for one in self.sent if one[1] != name]
        self.tell(ev.TeacherLost(name))
        self.carry_out(self.comparing.left(name))


def trusted(*names: str) -> Desk:
    """All of whose requests are compared from now on."""
    desk = Desk(replace(CONFIG, canaries=CanaryPolicy(share=1.0)))
    for name in names:
        desk.join(name)
    desk.queue()
    desk.answer_all()
    assert (desk.on_trial, desk.cases) == ([], [])
    return desk


def test_one_that_agrees_is_admitted_and_its_answer_was_not_needed() -> None:
    desk = Desk()
    assert desk.join("a") is False
    assert desk.join("b") is True
    desk.queue()
    assert desk.sent == [(1, "a"), (1, "b")]
    assert desk.copies == {(1, "b")}
    desk.answer(1, "b")
    assert desk.on_trial == ["b"]
    desk.answer(1, "a")
    assert desk.on_trial == []


def test_one_that_joins_is_given_a_copy_of_what_is_in_flight() -> None:
    desk = Desk()
    desk.join("a")
    desk.queue()
    desk.join("b")
    assert desk.sent == [(1, "a"), (1, "b")]
    desk.answer_all()
    assert desk.on_trial == []


def test_two_that_agree_do_not_wait_for_a_slow_third() -> None:
    desk = Desk()
    for name in "abc":
        desk.join(name)
    desk.queue()
    desk.answer(1, "b")
    desk.answer(1, "c")
    assert desk.on_trial == []
    desk.answer(1, "a", -TRUE)
    assert desk.liars == ["a"]


def test_what_a_lost_teacher_said_does_not_count() -> None:
    desk = trusted("a", "b", "c")
    desk.queue()
    (request, first), (_, second) = desk.sent
    desk.answer(request, first, -TRUE)
    desk.lose(first)
    desk.answer(request, second)
    assert desk.liars == []
    assert desk.on_trial == []


def test_a_late_answer_may_be_of_other_samples_and_says_nothing() -> None:
    """Its batch was consumed: what was sent of it may have been what was put there next."""
    desk = trusted("a", "b", "c")
    desk.queue()
    (request, first), (_, second) = desk.sent
    desk.tell(ev.Hedge(request))
    (third,) = {"a", "b", "c"} - {first, second}
    assert (request, third) in desk.sent
    desk.answer(request, third)
    desk.answer(request, second)
    desk.answer(request, first, -TRUE)
    assert desk.liars == []


def test_without_canaries_everybody_is_believed() -> None:
    desk = Desk(replace(CONFIG, canaries=None))
    assert not any(desk.join(name) for name in "abc")
    for _ in range(20):
        desk.queue()
        desk.answer_all(a=-TRUE)
    assert desk.ledger.probes == 0
    assert desk.liars == []


def test_of_two_that_differ_it_says_so_and_wants_a_third() -> None:
    desk = Desk()
    desk.join("a")
    desk.join("b")
    assert (desk.comparing.dispute, desk.comparing.judges) == ("", 0)
    desk.queue()
    desk.answer_all(b=TRUE / 2)
    assert desk.comparing.disputed == ("a", "b")
    assert desk.comparing.judges == 1
    assert desk.comparing.dispute == (
        "teachers a, b of 's' disagree by 0.5 of its greatest value on output 'y';"
        " another one is needed to tell who is wrong"
    )
    desk.join("c")
    desk.queue()
    desk.answer_all(b=TRUE / 2)
    assert desk.liars == ["b"]
    assert (desk.comparing.dispute, desk.comparing.judges) == ("", 0)


@pytest.mark.parametrize("wrong", [{"share": 2}, {"same_numerics": 0.5, "other_numerics": 0.1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="share"):
        CanaryPolicy(**wrong)


# --- whatever teachers do


class Machine(RuleBasedStateMachine):
    """Teachers come, answer in any order, fail and go; some lie, each in a way of its own."""

    @initialize(share=st.sampled_from([0.0, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.desk = Desk(replace(CONFIG, canaries=CanaryPolicy(share=share)))
        self.names = iter(range(10_000))
        self.there: dict[str, Array] = {}
        self.now = 0.0

    @rule(lies=st.booleans())
    def join(self, lies: bool) -> None:
        if len(self.there) < 5:
            self.add(lies)

    def add(self, lies: bool) -> None:
        number = next(self.names)
        name = f"liar-{number}" if lies else f"honest-{number}"
        self.there[name] = TRUE * np.float32(2 * 1.1**number) if lies else TRUE
        self.desk.join(name)

    @rule()
    def queue(self) -> None:
        self.desk.queue()

    @precondition(lambda self: self.desk.sent)
    @rule(data=st.data(), fate=st.sampled_from(["answers"] * 4 + ["fails", "is lost"]))
    def something_comes_of_a_request(self, data: st.DataObject, fate: str) -> None:
        desk = self.desk
        request, name = data.draw(st.sampled_from(desk.sent))
        if fate == "answers":
            desk.answer(request, name, self.there[name])
        elif fate == "fails":
            desk.fail(request, name)
            on_trial = desk.comparing.joined(name, "cpu")
            desk.tell(replace(ev.TeacherJoined(name, 2), on_trial=on_trial))
        else:
            desk.lose(name)
            del self.there[name]

    @rule(data=st.data())
    def time_goes_by(self, data: st.DataObject) -> None:
        self.now += 0.7
        answering = {name for name in self.there if data.draw(st.booleans())}
        self.desk.carry_out(self.desk.comparing.look(answering, self.now))

    @rule()
    def the_epoch_is_left(self) -> None:
        self.desk.comparing.clear()
        self.desk.tell(ev.Reset())

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        desk.ledger.validate()
        assert not self.there or set(desk.on_trial) != set(self.there), "somebody is believed"
        in_flight = {request for request, _ in desk.sent}
        assert set(desk.cases) <= in_flight, "nothing is kept of what is over"
        assert all(name.startswith("liar") for name in desk.liars), "the honest are not convicted"
        assert set(desk.liars) & set(self.there) <= set(desk.on_trial), "a liar gets nothing more"

    def teardown(self) -> None:
        """In the end the honest are trusted, and nobody else."""
        if not hasattr(self, "desk"):
            return
        desk = self.desk
        while sum(name.startswith("honest") for name in self.there) < 2:
            self.add(lies=False)
        desk.answer_all(**self.there)
        for _ in range(20):
            desk.queue()
            desk.answer_all(**self.there)
        assert desk.cases == []
        trusted = set(self.there) - set(desk.on_trial)
        assert trusted == {name for name in self.there if name.startswith("honest")}


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
