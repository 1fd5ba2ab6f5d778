"""Which teachers are ejected, and which are compared with others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler import circuit_breakers
from edl.scheduler.canaries import (
    ALONE_S,
    CanaryConfig,
    ComparisonPanel,
    ComparisonVerdict,
)
from edl.scheduler.circuit_breakers import (
    LONGEST_PAUSE_OF_LIARS_S,
    SILENCE_S,
    Cause,
    CircuitBreaker,
    CircuitBreakers,
)

ALWAYS, NEVER = CanaryConfig(share=1.0), CanaryConfig(share=0.0)
SEEDS = st.integers(0, 2**32 - 1)
rng = random.Random(0)


def panel(names: str, trial: str = "") -> ComparisonPanel:
    """Teachers in the order of joining, trusted but for those in `trial`."""
    it = ComparisonPanel()
    for name in names:
        it.join(name)
    for name in names[1:]:
        if name not in trial:
            it.judge([names[0], name], {frozenset((names[0], name))})
    assert set(it.trusted) == set(names) - set(trial)
    return it


def agreeing(*groups: str) -> set[frozenset[str]]:
    return {frozenset(pair) for group in groups for pair in combinations(group, 2)}


class TestCanaries:
    def test_copies_go_to_each_teacher_on_trial_once(self) -> None:
        it = panel("abc", trial="bc")
        assert it.copies("a", rng, NEVER, copying="") == ("b", "c")
        assert it.copies("a", rng, NEVER, copying="bc") == (), "they work on one"
        assert it.copies("a", rng, NEVER, copying="c") == ("b",)

    def test_a_share_of_the_requests_is_copied_to_other_trusted_teachers(self) -> None:
        seen: list[str] = []
        it, draw = panel("abc"), random.Random(1)
        for _ in range(2000):
            to = it.copies("a", draw, CanaryConfig(share=0.05), copying="")
            seen += to
        assert set(seen) == {"b", "c"}
        assert 70 < len(seen) < 130
        assert panel("a").copies("a", rng, ALWAYS, copying="") == ()
        it = panel("ab", trial="b")
        for name in ("a", "b", "unknown"):
            assert it.copies(name, rng, ALWAYS, copying="b") == ()

    @pytest.mark.parametrize(
        ("it", "answers", "agree", "verdict", "trusted"),
        [
            (panel("ab", trial="b"), "ab", ("ab",), ComparisonVerdict(readmit=("b",)), "ab"),
            (panel("abc"), "abc", ("bc",), ComparisonVerdict(liars=("a",)), "bc"),
            (panel("abcde"), "abcde", ("bd",), ComparisonVerdict(liars=("a", "c", "e")), "bd"),
            # Without a third teacher the elder goes on, and nobody is called a liar.
            (panel("ab", trial="b"), "ab", (), ComparisonVerdict(disputed=("a", "b")), "a"),
            (panel("ab"), "ba", (), ComparisonVerdict(trial=("b",), disputed=("a", "b")), "a"),
            (panel("abc", trial="bc"), "abc", (), ComparisonVerdict(disputed=("a", "b", "c")), "a"),
            # Near the tolerance agreement is not transitive.
            (panel("abc"), "abc", ("ab", "bc"), ComparisonVerdict(), "abc"),
            (panel("ab"), "a", (), ComparisonVerdict(), "ab"),
            (panel("ab"), "ax", (), ComparisonVerdict(), "ab"),  # x is gone
        ],
    )
    def test_verdicts(
        self,
        it: ComparisonPanel,
        answers: str,
        agree: tuple[str, ...],
        verdict: ComparisonVerdict,
        trusted: str,
    ) -> None:
        found = it.judge(list(answers), agreeing(*agree))
        assert (found, it.trusted) == (verdict, list(trusted))

    def test_a_dispute_is_reported_once_and_wants_another_teacher(self) -> None:
        for gone in "ab":
            it = panel("ab", trial="b")
            assert it.judge(["b", "a"], set()) == ComparisonVerdict(disputed=("a", "b"))
            assert it.judges == 1
            assert it.judge(["a", "b"], set()) == ComparisonVerdict()
            assert it.judges == 1
            it.leave(gone)
            assert (it.judges, it.disputed) == (0, ())
        it = panel("ab", trial="b")
        it.judge(["b", "a"], set())
        it.join("c")
        assert it.judges == 1, "the coordinator must not take it away again"
        it = panel("abc", trial="bc")
        it.judge(["a", "b", "c"], set())
        assert it.judges == 2, "as many as are on trial"

    def test_the_next_is_readmitted_when_the_last_trusted_leaves_or_refuses(self) -> None:
        it = panel("abc", trial="bc")
        verdict = it.leave("a")
        assert (verdict, it.trusted) == (ComparisonVerdict(readmit=("b",)), ["b"])
        assert it.leave("c") == ComparisonVerdict()
        assert it.leave("b") == ComparisonVerdict()
        assert it.trusted == []
        assert it.join("d") is False
        it = panel("abc", trial="bc")
        assert it.refused("a") == ComparisonVerdict(readmit=("b",))
        assert it.refused("a") == ComparisonVerdict(), "another one can be asked"
        assert panel("a").refused("a") == ComparisonVerdict()
        assert panel("ab", trial="b").refused("b") == ComparisonVerdict(), "it was a copy"

    def test_one_is_readmitted_when_only_teachers_on_trial_answer_for_long(self) -> None:
        it = panel("abc", trial="bc")
        for now, answering in ((0.0, "abc"), (1.0, "bc"), (1.9, "abc"), (2.0, "c"), (2.9, "bc")):
            assert it.tick(answering, now) == ComparisonVerdict()
        assert it.tick("c", 2.0 + ALONE_S) == ComparisonVerdict(readmit=("c",))
        assert it.tick("bc", 10.0) == ComparisonVerdict(), "one is enough"
        it = panel("ab", trial="b")
        for now in (0.0, 5.0, 10.0):
            assert it.tick("", now) == ComparisonVerdict()

    def test_teachers_readmitted_without_proof_are_compared_first(self) -> None:
        it = panel("abc", trial="c")
        it.leave("b")
        it.leave("a")
        assert it.trusted == ["c"]
        it.join("d")
        it.judge(["c", "d"], set())
        it.refused("c")
        assert it.trusted == ["c", "d"]
        assert it.copies("c", rng, NEVER, copying="") == ("d",)

    def test_newcomers_that_agree_are_still_compared_with_the_elder(self) -> None:
        """The elder lies and is silent for a moment: newcomers vouch for each other meanwhile."""
        it = panel("ab")
        it.leave("b")
        for name in "cd":
            it.join(name)
        it.tick(["c", "d"], 0.0)
        assert it.tick(["c", "d"], ALONE_S).readmit == ("c",)
        assert it.judge(["c", "d"], agreeing("cd")).readmit == ("d",)
        assert it.copies("c", rng, NEVER, copying="") == (), "not again while the elder is silent"
        assert it.copies("a", rng, NEVER, copying="") == ("c", "d")
        assert it.judge(["a", "c", "d"], agreeing("cd")).liars == ("a",)

    def test_an_unproven_teacher_that_gets_all_requests_is_compared_with_a_proven_one(self) -> None:
        it = ComparisonPanel()
        for name in "acd":
            it.join(name)
        for now in (0.0, ALONE_S):
            it.tick(["c", "d"], now)
        it.judge(["c", "d"], agreeing("cd"))
        assert it.trusted == ["a", "c", "d"]
        assert it.copies("a", rng, NEVER, copying="") == ("c",)
        assert it.judge(["a", "c"], set()).trial == ("a", "c")
        assert it.copies("d", rng, NEVER, copying="") == ("a", "c")

    def test_settings(self) -> None:
        config = CanaryConfig()
        assert config.tolerance("cpu-fp32", "cpu-fp32") == config.same_numerics
        assert config.tolerance("cpu-fp32", "gpu-fp16") == config.other_numerics
        assert config.tolerance("", "") == config.other_numerics, "unknown is not equal"


@dataclass
class Case:
    """One teacher of a pool, and a clock."""

    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    now: float = 100.0
    others: int = 3
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def happens(self, what: str) -> bool:
        """Whether that ejects it, or lets it in again."""
        breaker = self.breaker
        match what:
            case "answered":
                breaker.answered(self.now)
            case "heard of":
                breaker.silent_since = None
            case "failed":
                return breaker.failed(self.others, self.now, self.rng)
            case "silent":
                return breaker.silent(self.others, self.now, self.rng)
            case "wrong" | "lied" | "refused":
                return breaker.open(what, self.now, self.rng)
            case _:
                assert what == "probed"
                return breaker.close(self.now)
        return False

    def eject(self, cause: Cause) -> None:
        match cause:
            case "failed":
                assert [self.happens("failed") for _ in range(3)][-1]
            case "silent":
                self.happens("silent")
                self.now += SILENCE_S
                assert self.happens("silent")
            case _:
                assert self.happens(cause)

    def pause_s(self) -> float:
        due = self.breaker.probe_at(self.others)
        assert due is not None
        return due - self.now


CAUSES: tuple[Cause, ...] = ("failed", "silent", "wrong", "lied", "refused")
Event = tuple[str, int, float]  # what happens to which of five teachers, after so many seconds
EVENTS = st.tuples(
    st.sampled_from(("answered", "heard of", *CAUSES)), st.integers(0, 4), st.floats(0.001, 30.0)
)


class TestCircuitBreakers:
    def test_three_failures_in_a_row_eject(self) -> None:
        case = Case()
        for what in ("failed", "failed", "answered", "failed", "failed"):
            assert not case.happens(what)
        assert case.happens("failed")
        assert case.breaker.cause == "failed"
        assert not case.happens("failed"), "it is ejected already"

    def test_lasting_silence_ejects(self) -> None:
        case = Case()
        assert not case.happens("silent")
        case.now += SILENCE_S
        case.happens("heard of")
        assert not case.happens("silent")
        case.now += SILENCE_S
        assert case.happens("silent")

    @pytest.mark.parametrize("cause", CAUSES)
    def test_pauses_double_up_to_a_limit_and_are_scattered(self, cause: Cause) -> None:
        case = Case()
        pauses = []
        for _ in range(13):
            case.happens("answered")
            case.eject(cause)
            pauses.append(case.pause_s())
            case.now += case.pause_s()
            case.happens("probed")
        longest_s = (
            LONGEST_PAUSE_OF_LIARS_S if cause == "lied" else circuit_breakers.LONGEST_PAUSE_S
        )
        assert max(pauses) <= longest_s
        assert min(pauses[-3:]) >= longest_s / 2
        assert all(b >= 0.99 * a or b > longest_s / 2 for a, b in pairwise(pauses))
        assert len(set(pauses)) == len(pauses)

    @pytest.mark.parametrize("cause", CAUSES)
    def test_passed_probe_readmits_on_trial(self, cause: Cause) -> None:
        case = Case()
        case.eject(cause)
        case.now += case.pause_s()
        assert case.happens("probed")
        assert not case.happens("probed"), "it is in"
        assert case.breaker.probe_at(case.others) is None
        assert case.happens("failed"), "it has labelled nothing yet"
        assert case.breaker.ejections == 2
        case = Case()
        case.eject(cause)
        case.happens("probed")
        case.happens("answered")
        assert not case.happens("failed")

    @pytest.mark.parametrize("cause", CAUSES)
    def test_without_usable_teachers_all_but_liars_are_probed_soon(self, cause: Cause) -> None:
        case = Case(CircuitBreaker(ejections=6))
        case.eject(cause)
        assert case.pause_s() >= 15.0
        case.others = 0
        assert (case.pause_s() == circuit_breakers.DESPERATE_S) == (cause != "lied")

    def test_ejections_are_forgotten_after_a_while(self) -> None:
        case = Case()
        case.eject("wrong")
        case.happens("probed")
        case.now += circuit_breakers.FORGIVEN_S - 1
        case.happens("answered")
        assert case.breaker.ejections == 1
        case.now += 1
        case.happens("answered")
        assert case.breaker == CircuitBreaker()

    @given(SEEDS, st.lists(EVENTS, min_size=10))
    def test_a_pool_keeps_its_last_teacher(self, seed: int, events: list[Event]) -> None:
        rng = random.Random(seed)
        cases = [Case(rng=rng) for _ in range(5)]
        now = 0.0
        for what, index, after_s in events:
            now += after_s
            for case in cases:
                case.now = now
                usable = sum(other.breaker.cause is None for other in cases)
                due = case.breaker.probe_at(usable)
                assert (due is None) == (case.breaker.cause is None)
                if due is not None:
                    assert due <= case.breaker.since + LONGEST_PAUSE_OF_LIARS_S
                    if now >= due:
                        assert case.happens("probed")
            case = cases[index]
            case.others = sum(o.breaker.cause is None for o in cases if o is not case)
            was_in, ejected = case.breaker.cause is None, case.happens(what)
            if what in ("wrong", "lied", "refused"):
                assert ejected == was_in
            else:
                assert case.others or not ejected

    def test_a_tick_never_ejects_the_last_reachable_teacher(self) -> None:
        said = list[str]()
        breakers = CircuitBreakers(rng, lambda level, text, name: said.append(f"{level} {name}"))
        assert breakers.record_silence("abcd", set("abcd"), set("abcd"), 9.0) == []
        assert breakers.record_silence("abcd", set("abd"), set("abd"), 10.0) == ["a", "b"]
        assert breakers.ejected == {"a": "silent", "b": "silent"}
        assert (said, breakers.ejections.total()) == (["warning a", "warning b"], 2)
        assert breakers.record_silence("cd", set("cd"), set("cd"), 10.0 + SILENCE_S / 2) == ["d"]
        assert not breakers.is_open("c"), "it was heard of meanwhile"
        breakers.probed("a", 11.0)
        assert (list(breakers.ejected), breakers.readmissions) == (["b", "d"], 1)
        assert said[-1] == "info a"
        breakers.forget_others("ac")
        assert breakers.ejected == {}

    def test_a_newcomer_that_never_answers_is_ejected_while_another_is_usable(self) -> None:
        for usable, ejected in ((["elder"], ["newcomer"]), ([], [])):
            breakers = CircuitBreakers(rng, lambda level, text, name: None)
            for now in (0.0, 1.0):
                found = breakers.record_silence(["elder", "newcomer"], ["newcomer"], usable, now)
            assert found == ejected
