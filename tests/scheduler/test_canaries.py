"""Whose labels are compared, and who lies: decided by the largest group that agrees."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
    look,
    refused,
)

EVERYTHING = CanaryConfig(share=1.0)
NOTHING = CanaryConfig(share=0.0)
rng = random.Random(0)


def panel(*names: str, trial: str = "") -> Panel:
    """Teachers that are trusted, those in `trial` apart; the elder first."""
    it = Panel()
    for name in names:
        it, _ = join(it, name)
    for name in names:
        if name not in (names[0], *trial):
            it, _ = judge(it, [names[0], name], {frozenset((names[0], name))})
    assert set(it.trusted) == set(names) - set(trial)
    return it


def agreeing(*groups: str) -> set[frozenset[str]]:
    return {frozenset(pair) for group in groups for pair in combinations(group, 2)}


class TestAdmission:
    def test_the_first_is_trusted_and_each_later_one_is_on_trial(self) -> None:
        it, trial = join(Panel(), "a")
        assert not trial
        it, trial = join(it, "b")
        assert trial
        it, trial = join(it, "c")
        assert trial
        assert it.trusted == ["a"]

    def test_a_copy_of_a_trusted_ones_request_goes_to_all_on_trial_once(self) -> None:
        it = panel("a", "b", "c", trial="bc")
        it, to = copies(it, "a", rng, NOTHING)
        assert to == ("b", "c")
        it, to = copies(it, "a", rng, NOTHING)
        assert to == (), "they are at it"
        it, to = copies(ended(it, "b"), "a", rng, NOTHING)
        assert to == ("b",)

    def test_one_that_agrees_is_admitted(self) -> None:
        it, verdict = judge(panel("a", "b", trial="b"), ["a", "b"], agreeing("ab"))
        assert verdict == Verdict(readmit=("b",))
        assert it.trusted == ["a", "b"]

    def test_when_the_last_trusted_goes_the_best_on_trial_is_admitted(self) -> None:
        it, verdict = leave(panel("a", "b", "c", trial="bc"), "a")
        assert verdict == Verdict(readmit=("b",))
        assert it.trusted == ["b"]
        it, verdict = leave(it, "c")
        assert verdict == Verdict()
        it, verdict = leave(it, "b")
        assert (it.trusted, verdict) == ([], Verdict())
        assert join(it, "d")[1] is False


class TestWithoutProof:
    def test_where_only_those_on_trial_answer_one_is_admitted_after_a_while(self) -> None:
        it = panel("a", "b", "c", trial="bc")
        for now, answering in ((0.0, "abc"), (1.0, "bc"), (1.9, "abc"), (2.0, "c"), (2.9, "bc")):
            it, verdict = look(it, answering, now)
            assert verdict == Verdict()
        it, verdict = look(it, "c", 2.0 + ALONE_S)
        assert verdict == Verdict(readmit=("c",))
        it, verdict = look(it, "bc", 10.0)
        assert verdict == Verdict(), "one is enough"

    def test_nobody_is_admitted_who_does_not_answer_either(self) -> None:
        it = panel("a", "b", trial="b")
        for now in (0.0, 5.0, 10.0):
            it, verdict = look(it, "", now)
            assert verdict == Verdict()

    def test_a_refusal_by_the_only_trusted_one_is_not_the_last_word(self) -> None:
        it, verdict = refused(panel("a", "b", "c", trial="bc"), "a")
        assert verdict == Verdict(readmit=("b",))
        assert refused(it, "a")[1] == Verdict(), "another one can be asked"
        assert refused(panel("a"), "a")[1] == Verdict()
        assert refused(panel("a", "b", trial="b"), "b")[1] == Verdict(), "it was a copy"

    def test_who_was_admitted_without_proof_is_compared_at_the_first_occasion(self) -> None:
        it, _ = leave(panel("a", "b", "c", trial="c"), "b")
        it, _ = leave(it, "a")
        assert it.trusted == ["c"]
        it, _ = join(it, "d")
        it, _ = judge(it, ["c", "d"], set())
        it, _ = refused(it, "c")
        assert it.trusted == ["c", "d"]
        it, to = copies(it, "c", rng, NOTHING)
        assert to == ("d",)


class TestSample:
    def test_a_share_of_the_requests_goes_to_another_trusted_one(self) -> None:
        config = CanaryConfig(share=0.05)
        seen: list[str] = []
        it, draw = panel("a", "b", "c"), random.Random(1)
        for _ in range(10_000):
            it, to = copies(it, "a", draw, config)
            seen += to
        assert set(seen) == {"b", "c"}
        assert 400 < len(seen) < 600

    def test_nobody_is_sampled_alone_or_on_trial(self) -> None:
        assert copies(panel("a"), "a", rng, EVERYTHING)[1] == ()
        it, _ = copies(panel("a", "b", trial="b"), "a", rng, EVERYTHING)
        assert copies(it, "a", rng, EVERYTHING)[1] == ()
        assert copies(it, "b", rng, EVERYTHING)[1] == ()
        assert copies(it, "a stranger", rng, EVERYTHING)[1] == ()


class TestJudgement:
    def test_of_three_the_one_that_differs_lies(self) -> None:
        it, verdict = judge(panel("a", "b", "c"), ["a", "b", "c"], agreeing("bc"))
        assert verdict == Verdict(liars=("a",))
        assert it.trusted == ["b", "c"]

    def test_of_two_that_differ_a_third_decides(self) -> None:
        it, verdict = judge(panel("a", "b", "c"), ["a", "b"], set())
        assert verdict == Verdict(trial=("a", "b"))
        it, to = copies(it, "c", rng, NOTHING)
        assert to == ("a", "b")
        it, verdict = judge(it, ["c", "a", "b"], agreeing("bc"))
        assert verdict == Verdict(liars=("a",), readmit=("b",))

    def test_without_a_third_the_newcomer_waits_and_is_not_called_a_liar(self) -> None:
        it, verdict = judge(panel("a", "b", trial="b"), ["a", "b"], set())
        assert verdict == Verdict(disputed=("a", "b"))
        assert it.trusted == ["a"]

    def test_without_a_third_the_elder_goes_on(self) -> None:
        it, verdict = judge(panel("a", "b"), ["b", "a"], set())
        assert verdict == Verdict(trial=("b",), disputed=("a", "b"))
        it, _ = join(it, "c")
        it, to = copies(it, "a", rng, NOTHING)
        assert to == ("b", "c")
        it, verdict = judge(it, ["a", "b", "c"], agreeing("bc"))
        assert verdict == Verdict(liars=("a",), readmit=("b", "c")), "the elder was the liar"

    def test_two_against_two_is_no_proof(self) -> None:
        it, verdict = judge(panel("a", "b", "c", "d"), ["a", "b", "c", "d"], agreeing("ab", "cd"))
        assert verdict.liars == ()
        assert it.trusted == ["a"]

    def test_two_who_agree_are_believed_against_many_who_do_not(self) -> None:
        it, verdict = judge(panel(*"abcde"), list("abcde"), agreeing("bd"))
        assert verdict.liars == ("a", "c", "e")
        assert it.trusted == ["b", "d"]

    def test_one_between_two_vouches_for_both(self) -> None:
        """Near the tolerance agreement is not handed on: nobody is a liar for that."""
        _, verdict = judge(panel("a", "b", "c"), ["a", "b", "c"], agreeing("ab", "bc"))
        assert verdict == Verdict()

    def test_one_answer_or_that_of_one_who_is_gone_says_nothing(self) -> None:
        _, verdict = judge(panel("a", "b"), ["a"], set())
        assert verdict == Verdict()
        _, verdict = judge(panel("a", "b"), ["a", "gone"], set())
        assert verdict == Verdict()


class TestDispute:
    """Two contradict each other, and nobody is there to tell who is wrong."""

    def test_it_is_told_once_and_another_one_is_wanted(self) -> None:
        it, verdict = judge(panel("a", "b", trial="b"), ["b", "a"], set())
        assert verdict == Verdict(disputed=("a", "b"))
        assert it.judges == 1
        it, verdict = judge(it, ["a", "b"], set())
        assert (verdict, it.judges) == (Verdict(), 1)

    def test_it_stays_until_the_third_has_spoken(self) -> None:
        it, _ = judge(panel("a", "b", trial="b"), ["a", "b"], set())
        it, _ = join(it, "c")
        assert it.judges == 1, "else the coordinator would take it away again"
        it, verdict = judge(it, ["a", "b", "c"], agreeing("bc"))
        assert (verdict.liars, it.judges) == (("a",), 0)

    def test_it_is_over_when_one_of_them_goes(self) -> None:
        it, _ = judge(panel("a", "b", trial="b"), ["a", "b"], set())
        assert leave(it, "a")[0].judges == leave(it, "b")[0].judges == 0
        assert leave(it, "a")[0].disputed == ()

    def test_it_is_over_when_they_agree(self) -> None:
        it, _ = judge(panel("a", "b", trial="b"), ["a", "b"], set())
        it, verdict = judge(it, ["a", "b"], agreeing("ab"))
        assert (verdict, it.judges) == (Verdict(readmit=("b",)), 0)

    def test_three_that_all_differ_want_two_more(self) -> None:
        it, verdict = judge(panel("a", "b", "c", trial="bc"), ["a", "b", "c"], set())
        assert verdict.disputed == ("a", "b", "c")
        assert it.judges == 2, "as many as are on trial"

    def test_there_is_none_where_a_third_is_at_hand(self) -> None:
        it, verdict = judge(panel("a", "b", "c"), ["a", "b"], set())
        assert (verdict.disputed, it.judges) == ((), 0)

    def test_whom_another_one_bears_out_is_not_disputed_any_more(self) -> None:
        it, _ = judge(panel("a", "b", trial="b"), ["a", "b"], set())
        it, _ = join(it, "c")
        it, _ = judge(it, ["a", "c"], agreeing("ac"))
        assert it.judges == 0, "now two can be asked about b"


def test_tolerance_depends_on_numerics() -> None:
    config = CanaryConfig()
    assert config.tolerance("cpu-fp32", "cpu-fp32") == config.same
    assert config.tolerance("cpu-fp32", "gpu-fp16") == config.other
    assert config.tolerance("", "") == config.other, "unknown is not equal"


@pytest.mark.parametrize(("share", "same"), [(-0.1, 0.0), (1.1, 0.0), (0.5, 0.9)])
def test_settings_are_checked(share: float, same: float) -> None:
    with pytest.raises(ValueError, match="share"):
        CanaryConfig(share, same)


@settings(max_examples=max(20, settings().max_examples // 2))
@given(
    seed=st.integers(0, 2**32 - 1),
    honest=st.integers(2, 4),
    liars=st.integers(0, 4),
    fail=st.sampled_from([0.0, 0.3]),
)
def test_liars_are_found_and_nobody_else(seed: int, honest: int, liars: int, fail: float) -> None:
    """Whoever comes first, and whatever is lost: each liar has a lie of its own."""
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
        assert set(it.trusted) == (before | set(verdict.readmit)) - {
            *verdict.liars,
            *verdict.trial,
        }
        found |= set(verdict.liars)
        assert set(it.disputed) <= set(it.members)
        assert it.judges == 0 or len(it.trusted) == 1, "two could tell who is wrong"
    assert found == {name for name in names if name.startswith("liar")}
    assert it.judges == 0
    assert len(it.trusted) == honest, "the honest are all trusted in the end"
