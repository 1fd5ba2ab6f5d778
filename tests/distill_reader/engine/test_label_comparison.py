"""Answers of teachers are compared; equal labels agree whatever rounding did to them."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl.distill_reader.engine.answers import labels_of
from edl.distill_reader.engine.label_comparison import agree, greatest_difference
from edl.distill_reader.label_forms import NO_FORMS, LabelForms
from edl.distill_reader.options import CanaryPolicy
from edl.proto.arena import Array
from edl.proto.clients import LabelResponse
from edl.proto.forms import encode
from edl.runtime.errors import UsageError
from edl.scheduler.ledger import events as ledger_events
from edl.scheduler.reader_core import events as ev
from edl.scheduler.reader_core import instructions as do
from edl.tests.scheduler.ledger.invariants import check
from edl.tests.scheduler.reader_core.test_core import ROWS, World

TRUE = "the true labels"


class ComparedTeachers(World):
    """A core whose teachers answer, or fail, when a test says so; batches are taken at once."""

    def __init__(self, share: float = 0.3) -> None:
        super().__init__(canaries=CanaryPolicy(share=share))
        self.says: dict[str, str] = {}  # what each teacher answers, of those that are there
        self.kept: dict[int, dict[str, str]] = {}
        self.liars: list[str] = []

    @property
    def trusted(self) -> set[str]:
        return set(self.core.teachers.comparisons.panel.trusted)

    def tell(self, event: ev.Event) -> list[do.Instruction]:
        out, labelled = super().tell(event), set[int]()
        for one in out:
            match one:
                case ledger_events.BatchLabelled(batch):
                    labelled.add(batch)
                case ledger_events.LabelsRevoked(batch):
                    labelled.discard(batch)
                case do.KeepAnswer(request, teacher):
                    self.kept.setdefault(request, {})[teacher] = self.says[teacher]
                case do.DropAnswers(request):
                    del self.kept[request]
                case do.DropAllAnswers():
                    self.kept.clear()
                case do.Disputed(request, teachers, pair):
                    assert self.kept[request].keys() >= set(teachers) >= set(pair)
                    assert len({self.kept[request][name] for name in pair}) == 2
                case do.DropCachedLabels(teacher):
                    self.liars.append(teacher)
                    assert teacher not in self.core.ledger.usable_teachers, "it gets nothing more"
                case do.CloseConnection(link):
                    self.asked = [ask for ask in self.asked if ask.link != link]
                case _:
                    pass
        for batch in labelled:
            self.tell(ev.Released(batch))
            self.tell(ev.BatchTaken(batch, ROWS, None))
        return out

    def join(self, name: str, says: str = TRUE) -> None:
        self.says[name] = says
        self.assign(*self.says, ready=False)
        self.answer_probes()

    def lose(self, *names: str) -> None:
        for name in names:
            del self.says[name]
        peers = tuple(ev.Peer(other, other, "m") for other in self.says)
        self.tell(ev.Assigned(peers, lost=frozenset(names)))

    def answer_probes(self, seconds: float = 0.0) -> None:
        """Once so much time has passed."""
        self.now += seconds
        self.tell(ev.Tick())
        probes, self.probes = self.probes, []
        for name in probes:
            if name in self.says:
                self.tell(ev.Probed(name, self.links[name]))

    def comes_back(self, teacher: str, *, fails: bool = False) -> None:
        """The request that this teacher has had longest comes to labels, or to nothing."""
        ask = next(ask for ask in self.asked if ask.send.teacher == teacher)
        self.asked.remove(ask)
        request, link = ask.send.request, ask.link
        if fails:
            self.tell(ev.RequestFailed(teacher, link, request, "failed", "not now"))
            return
        kept = self.kept.get(request, {})
        agrees = frozenset(other for other in kept if kept[other] == self.says[teacher])
        answer = ev.AnswerCame(teacher, link, request, ROWS, 8, 0.1, ROWS, "cpu", agrees=agrees)
        self.tell(answer)

    def answer_all(self) -> None:
        """In the order in which it was sent."""
        while self.asked:
            self.comes_back(self.asked[0].send.teacher)


def compared(names: str, share: float = 0.0) -> ComparedTeachers:
    """The first of these teachers is trusted, and a batch is sent."""
    world = ComparedTeachers(share)
    for name in names:
        world.join(name)
    world.queue()
    return world


def test_two_that_agree_do_not_wait_for_a_slow_third() -> None:
    world = compared("abc")
    world.comes_back("b")
    world.comes_back("c")
    assert world.trusted == {"a", "b", "c"}
    world.says["a"] = "a lie"
    world.comes_back("a")
    assert world.liars == ["a"]


def lied_to_by(liar: str) -> ComparedTeachers:
    """Of four teachers `a` and `b` have agreed, and another one has lied."""
    world = compared("abcd")
    world.comes_back("a")
    world.comes_back("b")
    world.says[liar] = "a lie"
    world.comes_back(liar)
    return world


def test_teachers_that_are_lost_together_are_not_judged() -> None:
    world = lied_to_by("d")
    world.lose("c", "d")
    assert world.liars == []
    assert world.trusted == {"a", "b"}


def test_an_answer_that_nobody_has_judged_is_judged_when_another_teacher_is_gone() -> None:
    world = lied_to_by("c")
    world.lose("a")
    world.comes_back("d", fails=True)
    assert world.core.teachers.comparisons.panel.disputed == ("b", "c")


def test_a_dispute_names_two_teachers_that_differ() -> None:
    world = compared("abcd")
    world.says |= dict.fromkeys("cd", "another truth")
    for name in "abc":
        world.comes_back(name)
    request = world.asked[0].send.request
    link = world.links["d"]
    agrees = frozenset("c")
    out = world.tell(ev.AnswerCame("d", link, request, ROWS, 8, 0.1, ROWS, agrees=agrees))
    assert do.Disputed(request, ("a", "b", "c", "d"), ("a", "c")) in out


def test_who_fails_gets_no_copies_until_it_is_probed() -> None:
    world = compared("ab")
    world.comes_back("b", fails=True)
    world.queue()
    assert {ask.send.teacher for ask in world.asked} == {"a"}
    world.answer_probes()
    assert {ask.send.teacher for ask in world.asked} == {"a", "b"}


def test_a_late_answer_may_be_of_other_samples_and_says_nothing() -> None:
    """Its batch was consumed: what was sent of it may have been what was put there next."""
    world = compared("abc", share=1.0)
    world.answer_all()
    assert world.trusted == {"a", "b", "c"}
    world.queue()
    first, second = (ask.send.teacher for ask in world.asked)
    world.comes_back(second)
    world.says[first] = "of other samples"
    world.comes_back(first)
    assert world.trusted == {"a", "b", "c"}


def test_teachers_that_name_the_same_numerics_have_to_agree_more_closely() -> None:
    world = compared("ab")
    world.answer_all()
    comparing, rule = world.core.teachers.comparisons, CanaryPolicy()
    assert comparing.tolerance("a", "", "b") == rule.same_numerics
    assert comparing.tolerance("a", "gpu", "b") == rule.other_numerics


@pytest.mark.parametrize("wrong", [{"share": 2}, {"same_numerics": 0.5, "other_numerics": 0.1}])
def test_settings_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="share"):
        CanaryPolicy(**wrong)


class Machine(RuleBasedStateMachine):
    """Teachers come, answer in any order, fail and go; some lie, each in a way of its own."""

    @initialize(share=st.sampled_from([0.0, 0.5, 1.0]))
    def begin(self, share: float) -> None:
        self.world = ComparedTeachers(share)
        self.joined = 0

    @rule(lies=st.booleans())
    def join(self, lies: bool) -> None:
        if len(self.world.says) < 5:
            self.add(lies)

    def add(self, lies: bool) -> None:
        self.joined += 1
        name = f"{'liar' if lies else 'honest'}-{self.joined}"
        self.world.join(name, name if lies else TRUE)

    @rule()
    def queue(self) -> None:
        self.world.queue()

    @precondition(lambda self: self.world.asked)
    @rule(data=st.data(), fate=st.sampled_from(["answers"] * 4 + ["fails", "is lost"]))
    def something_comes_of_a_request(self, data: st.DataObject, fate: str) -> None:
        name = data.draw(st.sampled_from(self.world.asked)).send.teacher
        if fate == "is lost":
            self.world.lose(name)
        else:
            self.world.comes_back(name, fails=fate == "fails")

    @rule(seconds=st.sampled_from([0.0, 0.1, 0.7]))
    def time_goes_by(self, seconds: float) -> None:
        self.world.answer_probes(seconds)

    @rule()
    def the_epoch_is_left(self) -> None:
        self.world.tell(ev.EpochBegan(0))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "world"):
            return
        world = self.world
        check(world.core.ledger)
        assert world.trusted or not world.core.teachers.comparisons.panel.members
        in_flight = {ask.send.request for ask in world.asked}
        assert set(world.kept) <= in_flight, "nothing is kept of what is over"
        assert all(name.startswith("liar") for name in world.liars), "the honest are not convicted"

    def teardown(self) -> None:
        """In the end the honest are trusted, and nobody else."""
        if not hasattr(self, "world"):
            return
        while [*self.world.says.values()].count(TRUE) < 2:
            self.add(lies=False)
        for seconds in [60.0] * 12 + [0.0] * 5:  # pauses end, then requests are compared
            self.world.answer_probes(seconds)
            self.queue()
            self.world.answer_all()
            self.books_agree()
        assert self.world.kept == {}
        assert self.world.trusted == {
            name for name, says in self.world.says.items() if says == TRUE
        }


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)


# --- agreement of labels

CLASSES = 50
SAME = 1e-2
FORMS = ["float32", "float16", "bfloat16", "topk:5", "topk:49"]


def logits(seed: int) -> Array:
    normal: Array = np.random.default_rng(seed).normal(0.0, 4.0, (8, CLASSES))
    return normal.astype(np.float32)


def told(array: Array, forms: LabelForms) -> dict[str, Array]:
    """What the training loop would get of a model's output, by way of the wire."""
    form = forms.of("y")
    if form is None:
        return {"y": array}
    answer = LabelResponse(encode("y", array, form), {}, {})
    first = next(iter(answer.outputs))
    parameters = {first: form.parameters(array.shape[-1])}
    answer = LabelResponse(answer.outputs, {}, parameters)
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
    forms = LabelForms.from_user(form, temperature, expand)
    ours = logits(seed)
    moved = ours + noise * np.sin(1000 * ours)
    assert agree(told(ours, forms), told(moved, forms), SAME, forms)
    for lie in (np.roll(ours, 1, axis=0), np.roll(ours, 1, axis=1), logits(seed + 1), -ours):
        assert not agree(told(ours, forms), told(lie, forms), SAME, forms)
        assert not agree(told(lie, forms), told(ours, forms), SAME, forms)


@pytest.mark.parametrize("expand", [True, False])
def test_classes_at_the_edge_of_top_k_may_change_places(expand: bool) -> None:
    forms = LabelForms.from_user("topk:3", None, expand)
    ours = np.array([[9, 5.0, 4.0001, 4.0, 0, 0, 0]], np.float32)
    theirs = np.array([[9, 5.0, 4.0, 4.0001, 0, 0, 0]], np.float32)
    one, other = told(ours, forms), told(theirs, forms)
    assert any((one[name] != other[name]).any() for name in one), "they differ in a class"
    assert agree(one, other, SAME, forms)
    far = np.array([[9, 5.0, 1.0, 4.0, 0, 0, 0]], np.float32)
    assert agree(one, told(far, forms), SAME, forms) is False


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
    assert agree(ours, theirs, SAME, NO_FORMS) is same


A_TENTH_LESS, NINES = Y * np.float32(0.9), IDS[:10] // 9 * 9


@pytest.mark.parametrize(
    ("ours", "theirs", "named"),
    [
        ({"y": Y, "i": IDS[:10]}, {"y": A_TENTH_LESS, "i": NINES}, ("i", "0.8 of its values")),
        ({"y": Y, "i": NINES}, {"y": A_TENTH_LESS, "i": NINES}, ("y", "0.1 of its greatest value")),
        ({"y": Y}, {"y": Y[:1]}, ("y", "names or shapes")),
        ({"y": Y, "z": Y}, {"y": Y, "z": Y[:, 1:]}, ("z", "names or shapes")),
        ({"y": Y}, {"y": Y, "z": Y}, ("z", "names or shapes")),
        ({"y": ZEROS}, {"y": ZEROS}, ("y", "0 of its greatest value")),
    ],
)
def test_the_output_that_differs_most_is_named(
    ours: dict[str, Array], theirs: dict[str, Array], named: tuple[str, str]
) -> None:
    assert greatest_difference(ours, theirs) == named
