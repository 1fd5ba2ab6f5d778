"""Answers of teachers are compared; equal labels agree whatever rounding did to them."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.distill_reader.engine.answers import agree, furthest, labels_of
from edl.distill_reader.label_forms import AS_GIVEN, LabelForms
from edl.distill_reader.options import CanaryPolicy
from edl.errors import UsageError
from edl.proto.arena import Array
from edl.proto.clients import Answer
from edl.proto.forms import encode
from edl.scheduler.canaries import CanaryConfig, Verdict
from edl.scheduler.ledger import Ledger
from edl.scheduler.ledger import events as ev
from edl.scheduler.reader_core.comparisons import Comparisons
from edl.scheduler.reader_core.events import AnswerCame
from edl.scheduler.reader_core.instructions import (
    Disputed,
    DropAllAnswers,
    DropAnswers,
    Instruction,
    KeepAnswer,
)

SOME = CanaryPolicy(share=0.3).rule()
TRUE = np.array([[1.0, 2.0, 3.0]], np.float32)


class ComparisonHarness:
    """A ledger and what is compared; teachers answer when a test says so."""

    def __init__(self, rule: CanaryConfig | None = SOME) -> None:
        self.ledger = Ledger()
        self.comparing = Comparisons(rule, self.ledger, random, self.do)
        self.kept: dict[int, dict[str, Array]] = {}
        self.answered: tuple[int, str, Array] | None = None
        self.disputes: list[tuple[str, ...]] = []
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
        return list(self.kept)

    def do(self, instruction: Instruction) -> None:
        match instruction:
            case KeepAnswer(request, teacher):
                assert self.answered is not None
                assert self.answered[:2] == (request, teacher)
                self.kept.setdefault(request, {})[teacher] = self.answered[2]
            case DropAnswers(request):
                del self.kept[request]
            case DropAllAnswers():
                self.kept.clear()
            case Disputed(request, teachers):
                assert self.kept[request].keys() >= set(teachers)
                self.disputes.append(teachers)

    def tell(self, event: ev.Event) -> tuple[ev.Span, ...]:
        """The rows of which an answer was accepted."""
        copies: list[ev.Hedge] = []
        accepted: tuple[ev.Span, ...] = ()
        for instruction in self.ledger.handle(event):
            match instruction:
                case ev.Send(request, teacher):
                    is_copy, more = self.comparing.sent(instruction)
                    if is_copy:
                        self.copies.add((request, teacher))
                    self.sent.append((request, teacher))
                    copies += more
                case ev.Accept(_, spans):
                    accepted = spans
                case ev.Labelled(batch):
                    self.ledger.handle(ev.Released(batch))
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
        self.answered = (request, teacher, labels)
        agrees = frozenset(
            other
            for other, said in self.kept.get(request, {}).items()
            if agree({"y": labels}, {"y": said}, self.tolerance(teacher, other), AS_GIVEN)
        )
        answer = AnswerCame(teacher, 1, request, 1, 4, 0.01, 1, "cpu", agrees=agrees)
        self.carry_out(self.comparing.answered(answer, accepted))

    def tolerance(self, teacher: str, other: str) -> float:
        return self.comparing.tolerance(teacher, "cpu", other)

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


def trusted(*names: str) -> ComparisonHarness:
    """All of whose requests are compared from now on."""
    desk = ComparisonHarness(CanaryPolicy(share=1.0).rule())
    for name in names:
        desk.join(name)
    desk.queue()
    desk.answer_all()
    assert (desk.on_trial, desk.cases) == ([], [])
    return desk


def test_one_that_agrees_is_admitted_and_its_answer_was_not_needed() -> None:
    desk = ComparisonHarness()
    assert desk.join("a") is False
    assert desk.join("b") is True
    desk.queue()
    assert desk.sent == [(1, "a"), (1, "b")]
    assert desk.copies == {(1, "b")}
    desk.answer(1, "b")
    assert desk.on_trial == ["b"]
    desk.answer(1, "a")
    assert desk.on_trial == []


def test_two_that_agree_do_not_wait_for_a_slow_third() -> None:
    desk = ComparisonHarness()
    for name in "abc":
        desk.join(name)
    desk.queue()
    desk.answer(1, "b")
    desk.answer(1, "c")
    assert desk.on_trial == []
    desk.answer(1, "a", -TRUE)
    assert desk.liars == ["a"]


def test_who_fails_gets_no_copies_until_it_is_probed() -> None:
    desk = ComparisonHarness()
    desk.join("a")
    desk.join("b")
    desk.queue()
    desk.fail(1, "b")
    desk.queue()
    assert desk.sent == [(1, "a"), (2, "a")]
    desk.join("b")
    assert (2, "b") in desk.sent or (1, "b") in desk.sent


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
    desk = ComparisonHarness(None)
    assert not any(desk.join(name) for name in "abc")
    for _ in range(20):
        desk.queue()
        desk.answer_all(a=-TRUE)
    assert desk.ledger.probes == 0
    assert desk.liars == []


def test_of_two_that_differ_it_says_so_and_wants_a_third() -> None:
    desk = ComparisonHarness()
    desk.join("a")
    desk.join("b")
    assert (len(desk.comparing.panel.disputed), desk.comparing.panel.judges) == (0, 0)
    desk.queue()
    desk.answer_all(b=TRUE / 2)
    assert list(desk.comparing.panel.disputed) == ["a", "b"]
    assert desk.comparing.panel.judges == 1
    assert desk.disputes == [("a", "b")]
    desk.join("c")
    desk.queue()
    desk.answer_all(b=TRUE / 2)
    assert desk.liars == ["b"]
    assert (len(desk.comparing.panel.disputed), desk.comparing.panel.judges) == (0, 0)


@pytest.mark.parametrize("wrong", [{"share": 2}, {"same_numerics": 0.5, "other_numerics": 0.1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="share"):
        CanaryPolicy(**wrong)


# --- whatever teachers do


class Machine(RuleBasedStateMachine):
    """Teachers come, answer in any order, fail and go; some lie, each in a way of its own."""

    @initialize(share=st.sampled_from([0.0, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.desk = ComparisonHarness(CanaryPolicy(share=share).rule())
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


# --- agreement of labels

ROWS, CLASSES = 8, 50
SAME = 1e-2
FORMS = ["float32", "float16", "bfloat16", "topk:5", "topk:49"]


def logits(seed: int) -> Array:
    normal: Array = np.random.default_rng(seed).normal(0.0, 4.0, (ROWS, CLASSES))
    return normal.astype(np.float32)


def told(array: Array, forms: LabelForms) -> dict[str, Array]:
    """What the training loop would get of a model's output, by way of the wire."""
    form = forms.of("y")
    if form is None:
        return {"y": array}
    answer = Answer(encode("y", array, form), {}, {})
    first = next(iter(answer.outputs))
    parameters = {first: form.parameters(array.shape[-1])}
    answer = Answer(answer.outputs, {}, parameters)
    return dict(chain(labels_of(answer, "y", form, expand=forms.expand)))


@given(
    seed=st.integers(0, 2**32 - 1),
    form=st.sampled_from([None, *FORMS]),
    temperature=st.sampled_from([None, 2.0]),
    expand=st.booleans(),
    noise=st.sampled_from([0.0, 1e-6, 1e-4, 1e-3]),
)
def test_noise_is_no_lie_and_labels_of_other_samples_are(
    seed: int, form: str | None, temperature: float | None, expand: bool, noise: float
) -> None:
    forms = LabelForms.given(form, temperature, expand)
    ours = logits(seed)
    moved = ours + noise * np.sin(1000 * ours)
    assert agree(told(ours, forms), told(moved, forms), SAME, forms)
    for lie in (np.roll(ours, 1, axis=0), np.roll(ours, 1, axis=1), logits(seed + 1), -ours):
        assert not agree(told(ours, forms), told(lie, forms), SAME, forms)
        assert not agree(told(lie, forms), told(ours, forms), SAME, forms)


@pytest.mark.parametrize("expand", [True, False])
def test_classes_at_the_edge_of_top_k_may_change_places(expand: bool) -> None:
    forms = LabelForms.given("topk:3", None, expand)
    ours = np.array([[9, 5.0, 4.0001, 4.0, 0, 0, 0]], np.float32)
    theirs = np.array([[9, 5.0, 4.0, 4.0001, 0, 0, 0]], np.float32)
    one, other = told(ours, forms), told(theirs, forms)
    assert any((one[name] != other[name]).any() for name in one), "they differ in a class"
    assert agree(one, other, SAME, forms)
    far = np.array([[9, 5.0, 1.0, 4.0, 0, 0, 0]], np.float32)
    assert agree(one, told(far, forms), SAME, forms) is False


@pytest.mark.parametrize("dtypes", [("float32", "float16"), ("bfloat16", "float32")])
def test_teachers_of_unlike_precision_are_held_against_each_other(dtypes: tuple[str, str]) -> None:
    ours, theirs = ({"y": logits(0).astype(dtype)} for dtype in dtypes)
    assert agree(ours, theirs, SAME, AS_GIVEN)
    assert not agree(ours, {"y": -theirs["y"]}, SAME, AS_GIVEN)
    ids = {"y": np.zeros((ROWS, CLASSES), np.int64)}
    assert not agree(ours, ids, SAME, AS_GIVEN)


Y, IDS, ZEROS = logits(0), np.arange(100), np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        ({"y": IDS}, {"y": IDS + (IDS < 5)}, True),  # few class ids may differ
        ({"y": IDS}, {"y": IDS + (IDS < 6)}, False),
        ({"y": IDS[:1]}, {"y": IDS[1:2]}, False),
        ({"y": Y}, {"z": Y}, False),
        ({"y": Y}, {"y": Y[:, 1:]}, False),
        ({"y": Y}, {"y": Y.astype(np.int64)}, False),
        ({"y": Y, "z": Y}, {"y": Y, "z": Y}, True),
        ({"y": Y, "z": Y}, {"y": Y, "z": -Y}, False),
        ({"y": ZEROS}, {"y": ZEROS}, True),
        ({"y": ZEROS}, {"y": ZEROS + 1}, False),
    ],
)
def test_every_output_has_to_agree(
    ours: dict[str, Array], theirs: dict[str, Array], same: bool
) -> None:
    assert agree(ours, theirs, SAME, AS_GIVEN) is same


A_TENTH_LESS, NINES = Y * np.float32(0.9), IDS[:10] // 9 * 9


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ({"y": Y, "i": IDS[:10]}, {"y": A_TENTH_LESS, "i": NINES}, ("i", "0.8 of its values")),
        ({"y": Y, "i": NINES}, {"y": A_TENTH_LESS, "i": NINES}, ("y", "0.1 of its greatest value")),
        ({"y": Y}, {"y": Y[:1]}, ("y", "names or shapes")),
        ({"y": ZEROS}, {"y": ZEROS}, ("y", "0 of its greatest value")),
    ],
)
def test_the_output_that_differs_most_is_named(
    ours: dict[str, Array], theirs: dict[str, Array], named: tuple[str, str]
) -> None:
    assert furthest(ours, theirs) == named
