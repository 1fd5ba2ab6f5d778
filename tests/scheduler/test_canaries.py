"""Which teachers are ejected, and which are compared with others."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import canaries, circuit_breakers
from edl.scheduler.canaries import (
    ALONE_S,
    CanaryConfig,
    Panel,
    Verdict,
    copies,
    ended,
    join,
    judge,
    leave,
    refused,
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


def panel(names: str, trial: str = "") -> Panel:
    """Teachers in the order of joining, trusted but for those in `trial`."""
    it = Panel()
    for name in names:
        it, _ = join(it, name)
    for name in names[1:]:
        if name not in trial:
            it, _ = judge(it, [names[0], name], {frozenset((names[0], name))})
    assert set(it.trusted) == set(names) - set(trial)
    return it


def agreeing(*groups: str) -> set[frozenset[str]]:
    return {frozenset(pair) for group in groups for pair in combinations(group, 2)}


class TestCanaries:
    def test_copies_go_to_each_teacher_on_trial_once(self) -> None:
        it, to = copies(panel("abc", trial="bc"), "a", rng, NEVER)
        assert to == ("b", "c")
        it, to = copies(it, "a", rng, NEVER)
        assert to == (), "they work on one"
        assert copies(ended(it, "b"), "a", rng, NEVER)[1] == ("b",)

    def test_a_share_of_the_requests_is_copied_to_other_trusted_teachers(self) -> None:
        seen: list[str] = []
        it, draw = panel("abc"), random.Random(1)
        for _ in range(2000):
            it, to = copies(it, "a", draw, CanaryConfig(share=0.05))
            seen += to
        assert set(seen) == {"b", "c"}
        assert 70 < len(seen) < 130
        assert copies(panel("a"), "a", rng, ALWAYS)[1] == ()
        it, _ = copies(panel("ab", trial="b"), "a", rng, ALWAYS)
        for name in ("a", "b", "unknown"):
            assert copies(it, name, rng, ALWAYS)[1] == ()

    @pytest.mark.parametrize(
        ("it", "answers", "agree", "verdict", "trusted"),
        [
            (panel("ab", trial="b"), "ab", ("ab",), Verdict(readmit=("b",)), "ab"),
            (panel("abc"), "abc", ("bc",), Verdict(liars=("a",)), "bc"),
            (panel("abcde"), "abcde", ("bd",), Verdict(liars=("a", "c", "e")), "bd"),
            # Without a third teacher the elder goes on, and nobody is called a liar.
            (panel("ab", trial="b"), "ab", (), Verdict(disputed=("a", "b")), "a"),
            (panel("ab"), "ba", (), Verdict(trial=("b",), disputed=("a", "b")), "a"),
            (panel("abc", trial="bc"), "abc", (), Verdict(disputed=("a", "b", "c")), "a"),
            # Near the tolerance agreement is not transitive.
            (panel("abc"), "abc", ("ab", "bc"), Verdict(), "abc"),
            (panel("ab"), "a", (), Verdict(), "ab"),
            (panel("ab"), "ax", (), Verdict(), "ab"),  # x is gone
        ],
    )
    def test_verdicts(
        self, it: Panel, answers: str, agree: tuple[str, ...], verdict: Verdict, trusted: str
    ) -> None:
        it, found = judge(it, list(answers), agreeing(*agree))
        assert (found, it.trusted) == (verdict, list(trusted))

    def test_a_dispute_is_reported_once_and_wants_another_teacher(self) -> None:
        disputed, verdict = judge(panel("ab", trial="b"), ["b", "a"], set())
        assert (verdict, disputed.judges) == (Verdict(disputed=("a", "b")), 1)
        again, verdict = judge(disputed, ["a", "b"], set())
        assert (verdict, again.judges) == (Verdict(), 1)
        joined, _ = join(disputed, "c")
        assert joined.judges == 1, "the coordinator must not take it away again"
        for gone in "ab":
            it, _ = leave(disputed, gone)
            assert (it.judges, it.disputed) == (0, ())
        it, _ = judge(panel("abc", trial="bc"), ["a", "b", "c"], set())
        assert it.judges == 2, "as many as are on trial"

    def test_the_next_is_readmitted_when_the_last_trusted_leaves_or_refuses(self) -> None:
        it, verdict = leave(panel("abc", trial="bc"), "a")
        assert (verdict, it.trusted) == (Verdict(readmit=("b",)), ["b"])
        it, verdict = leave(it, "c")
        assert verdict == Verdict()
        it, verdict = leave(it, "b")
        assert (it.trusted, verdict) == ([], Verdict())
        assert join(it, "d")[1] is False
        it, verdict = refused(panel("abc", trial="bc"), "a")
        assert verdict == Verdict(readmit=("b",))
        assert refused(it, "a")[1] == Verdict(), "another one can be asked"
        assert refused(panel("a"), "a")[1] == Verdict()
        assert refused(panel("ab", trial="b"), "b")[1] == Verdict(), "it was a copy"

    def test_one_is_readmitted_when_only_teachers_on_trial_answer_for_long(self) -> None:
        it = panel("abc", trial="bc")
        for now, answering in ((0.0, "abc"), (1.0, "bc"), (1.9, "abc"), (2.0, "c"), (2.9, "bc")):
            it, verdict = canaries.look(it, answering, now)
            assert verdict == Verdict()
        it, verdict = canaries.look(it, "c", 2.0 + ALONE_S)
        assert verdict == Verdict(readmit=("c",))
        assert canaries.look(it, "bc", 10.0)[1] == Verdict(), "one is enough"
        it = panel("ab", trial="b")
        for now in (0.0, 5.0, 10.0):
            it, verdict = canaries.look(it, "", now)
            assert verdict == Verdict()

    def test_teachers_readmitted_without_proof_are_compared_first(self) -> None:
        it, _ = leave(panel("abc", trial="c"), "b")
        it, _ = leave(it, "a")
        assert it.trusted == ["c"]
        it, _ = join(it, "d")
        it, _ = judge(it, ["c", "d"], set())
        it, _ = refused(it, "c")
        assert it.trusted == ["c", "d"]
        assert copies(it, "c", rng, NEVER)[1] == ("d",)

    def test_newcomers_that_agree_are_still_compared_with_the_elder(self) -> None:
        """The elder lies and is silent for a moment: newcomers vouch for each other meanwhile."""
        it, _ = leave(panel("ab"), "b")
        for name in "cd":
            it, _ = join(it, name)
        it, _ = canaries.look(it, ["c", "d"], 0.0)
        it, verdict = canaries.look(it, ["c", "d"], ALONE_S)
        assert verdict.readmit == ("c",)
        it, verdict = judge(it, ["c", "d"], agreeing("cd"))
        assert verdict.readmit == ("d",)
        assert copies(it, "c", rng, NEVER)[1] == (), "not again while the elder is silent"
        it, to = copies(it, "a", rng, NEVER)
        assert to == ("c", "d")
        _, verdict = judge(it, ["a", "c", "d"], agreeing("cd"))
        assert verdict.liars == ("a",)

    def test_an_unproven_teacher_that_gets_all_requests_is_compared_with_a_proven_one(self) -> None:
        it = Panel()
        for name in "acd":
            it, _ = join(it, name)
        for now in (0.0, ALONE_S):
            it, _ = canaries.look(it, ["c", "d"], now)
        it, _ = judge(it, ["c", "d"], agreeing("cd"))
        assert it.trusted == ["a", "c", "d"]
        assert copies(it, "a", rng, NEVER)[1] == ("c",)
        it, verdict = judge(it, ["a", "c"], set())
        assert verdict.trial == ("a", "c")
        assert copies(it, "d", rng, NEVER)[1] == ("a", "c")

    def test_settings(self) -> None:
        config = CanaryConfig()
        assert config.tolerance("cpu-fp32", "cpu-fp32") == config.same
        assert config.tolerance("cpu-fp32", "gpu-fp16") == config.other
        assert config.tolerance("", "") == config.other, "unknown is not equal"

    @settings(max_examples=max(20, settings().max_examples // 2))
    @given(SEEDS, st.integers(2, 4), st.integers(0, 4), st.sampled_from([0.0, 0.3]))
    def test_exactly_the_liars_are_found(
        self, seed: int, honest: int, liars: int, fail: float
    ) -> None:
        """In any order of joining, and with lost answers; each liar has its own lie."""
        draw = random.Random(seed)
        names = [f"honest-{i}" for i in range(honest)] + [f"liar-{i}" for i in range(liars)]
        draw.shuffle(names)
        it, waiting, found = Panel(), list(names), set()
        for turn in range(400):
            if waiting and draw.random() < 0.2:
                it, trial = join(it, waiting.pop())
                assert trial == (len(it.members) > 1)
            if not it.trusted:
                assert not it.members, "somebody must be trusted"
                continue
            asked = draw.choice(it.trusted)
            it, to = copies(it, asked, draw, CanaryConfig(share=0.3))
            answers = [name for name in (asked, *to) if name == asked or draw.random() >= fail]
            for name in set(to) - set(answers):
                it = ended(it, name)
            if not to:
                continue
            true = [name for name in answers if name.startswith("honest")]
            before = set(it.trusted)
            it, verdict = judge(it, answers, {frozenset(pair) for pair in combinations(true, 2)})
            assert all(name.startswith("liar") for name in verdict.liars), f"in turn {turn}"
            removed = {*verdict.liars, *verdict.trial}
            assert set(it.trusted) == (before | set(verdict.readmit)) - removed
            found |= set(verdict.liars)
            assert set(it.disputed) <= set(it.members)
            assert it.judges == 0 or len(it.trusted) == 1, "two could tell who is wrong"
        assert found == {name for name in names if name.startswith("liar")}
        assert it.judges == 0
        assert len(it.trusted) == honest, "the honest are all trusted in the end"


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

    def test_a_look_never_ejects_the_last_reachable_teacher(self) -> None:
        said = list[str]()
        breakers = CircuitBreakers(rng, lambda level, text, name: said.append(f"{level} {name}"))
        assert breakers.look("abcd", set("abcd"), set("abcd"), 9.0) == []
        assert breakers.look("abcd", set("abd"), set("abd"), 10.0) == ["a", "b"]
        assert breakers.ejected == {"a": "silent", "b": "silent"}
        assert (said, breakers.ejections.total()) == (["warning a", "warning b"], 2)
        assert breakers.look("cd", set("cd"), set("cd"), 10.0 + SILENCE_S / 2) == ["d"]
        assert not breakers.is_open("c"), "it was heard of meanwhile"
        breakers.probed("a", 11.0)
        assert (list(breakers.ejected), breakers.readmissions) == (["b", "d"], 1)
        assert said[-1] == "info a"
        breakers.keep("ac")
        assert breakers.ejected == {}

    def test_a_newcomer_that_never_answers_is_ejected_while_another_is_usable(self) -> None:
        for usable, ejected in ((["elder"], ["newcomer"]), ([], [])):
            breakers = CircuitBreakers(rng, lambda level, text, name: None)
            for now in (0.0, 1.0):
                found = breakers.look(["elder", "newcomer"], ["newcomer"], usable, now)
            assert found == ejected
