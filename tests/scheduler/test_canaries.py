"""Which teachers are ejected, and which are compared."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler import canaries
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
from edl.scheduler.outliers import (
    DESPERATE_S,
    FORGIVEN_S,
    LONGEST_PAUSE_OF_LIARS_S,
    LONGEST_PAUSE_S,
    SILENCE_S,
    Cause,
    Standing,
    Step,
    answered,
    failed,
    heard_of,
    lied,
    look,
    probe_at,
    probed,
    silent,
    wrong,
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
            it, verdict = canaries.look(it, answering, now)
            assert verdict == Verdict()
        it, verdict = canaries.look(it, "c", 2.0 + ALONE_S)
        assert verdict == Verdict(readmit=("c",))
        it, verdict = canaries.look(it, "bc", 10.0)
        assert verdict == Verdict(), "one is enough"

    def test_nobody_is_admitted_who_does_not_answer_either(self) -> None:
        it = panel("a", "b", trial="b")
        for now in (0.0, 5.0, 10.0):
            it, verdict = canaries.look(it, "", now)
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


class TestSettings:
    def test_tolerance_depends_on_numerics(self) -> None:
        config = CanaryConfig()
        assert config.tolerance("cpu-fp32", "cpu-fp32") == config.same
        assert config.tolerance("cpu-fp32", "gpu-fp16") == config.other
        assert config.tolerance("", "") == config.other, "unknown is not equal"

    @pytest.mark.parametrize(("share", "same"), [(-0.1, 0.0), (1.1, 0.0), (0.5, 0.9)])
    def test_settings_are_checked(self, share: float, same: float) -> None:
        with pytest.raises(ValueError, match="share"):
            CanaryConfig(share, same)

    @settings(max_examples=max(20, settings().max_examples // 2))
    @given(
        seed=st.integers(0, 2**32 - 1),
        honest=st.integers(2, 4),
        liars=st.integers(0, 4),
        fail=st.sampled_from([0.0, 0.3]),
    )
    def test_liars_are_found_and_nobody_else(
        self, seed: int, honest: int, liars: int, fail: float
    ) -> None:
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


@dataclass
class Case:
    """One teacher of a pool, and a clock."""

    standing: Standing = field(default_factory=Standing)
    now: float = 100.0
    others: int = 3
    rng: random.Random = field(default_factory=lambda: random.Random(0))

    def happens(self, what: str) -> Step:
        """Something happens to it; returns what is to be done."""
        step: Step = "stay"
        match what:
            case "answered":
                self.standing = answered(self.standing, self.now)
            case "failed":
                self.standing, step = failed(self.standing, self.others, self.now, self.rng)
            case "silent":
                self.standing, step = silent(self.standing, self.others, self.now, self.rng)
            case "heard of":
                self.standing = heard_of(self.standing)
            case "wrong":
                self.standing, step = wrong(self.standing, self.now, self.rng)
            case "lied":
                self.standing, step = lied(self.standing, self.now, self.rng)
            case "probed well" | "probed in vain":
                well = what == "probed well"
                self.standing, step = probed(self.standing, well, self.now, self.rng)
            case _:
                pytest.fail(what)
        return step

    def eject(self, cause: Cause) -> None:
        match cause:
            case "failed":
                assert [self.happens("failed") for _ in range(3)][-1] == "eject"
            case "silent":
                self.happens("silent")
                self.now += SILENCE_S
                assert self.happens("silent") == "eject"
            case _:
                assert self.happens(cause) == "eject"

    def pause_s(self) -> float:
        due = probe_at(self.standing, self.others)
        assert due is not None
        return due - self.now


CAUSES: tuple[Cause, ...] = ("failed", "silent", "wrong", "lied")


HAPPENINGS = ("answered", "failed", "silent", "heard of", *CAUSES[2:])


class TestOutliers:
    def test_three_failures_in_a_row_eject(self) -> None:
        case = Case()
        steps = [
            case.happens(what) for what in ("failed", "failed", "answered", "failed", "failed")
        ]
        assert steps == ["stay"] * 5
        assert case.happens("failed") == "eject"
        assert case.standing.cause == "failed"
        assert case.happens("failed") == "stay", "once is enough"

    def test_silence_that_lasts_ejects(self) -> None:
        case = Case()
        assert case.happens("silent") == "stay"
        case.now += SILENCE_S
        case.happens("heard of")
        assert case.happens("silent") == "stay"
        case.now += SILENCE_S
        assert case.happens("silent") == "eject"

    @pytest.mark.parametrize("cause", ["wrong", "lied"])
    def test_what_is_not_to_be_believed_goes_at_once_even_the_last(self, cause: Cause) -> None:
        assert Case(others=0).happens(cause) == "eject"

    def test_the_last_usable_teacher_stays_however_poor(self) -> None:
        case = Case(others=0)
        for _ in range(50):
            assert case.happens("failed") == "stay"
            assert case.happens("silent") == "stay"
            case.now += 1.0
        case.others = 1
        assert case.happens("failed") == "eject"

    @pytest.mark.parametrize("cause", CAUSES)
    def test_pauses_double_up_to_a_limit_and_are_scattered(self, cause: Cause) -> None:
        case = Case()
        case.eject(cause)
        pauses = [case.pause_s()]
        for _ in range(12):
            case.now += case.pause_s()
            case.happens("probed in vain")
            pauses.append(case.pause_s())
        longest_s = LONGEST_PAUSE_OF_LIARS_S if cause == "lied" else LONGEST_PAUSE_S
        assert max(pauses) <= longest_s
        assert min(pauses[-3:]) >= longest_s / 2
        assert all(
            later >= 0.99 * earlier or later > longest_s / 2 for earlier, later in pairwise(pauses)
        )
        assert len(set(pauses)) == len(pauses)

    @pytest.mark.parametrize("cause", CAUSES)
    def test_one_that_answers_its_probe_is_let_in_on_trial(self, cause: Cause) -> None:
        case = Case()
        case.eject(cause)
        case.now += case.pause_s()
        assert case.happens("probed well") == "readmit"
        assert probe_at(case.standing, case.others) is None
        assert case.happens("failed") == "eject", "it has labelled nothing yet"
        first, case = case.standing.ejections, Case()
        case.eject(cause)
        case.happens("probed well")
        case.happens("answered")
        assert case.happens("failed") == "stay"
        assert first == 2

    @pytest.mark.parametrize("cause", CAUSES)
    def test_without_any_usable_teacher_all_are_probed_soon_but_a_liar(self, cause: Cause) -> None:
        case = Case()
        for _ in range(6):
            case.eject(cause)
            case.happens("probed well")
            case.happens("answered")
        case.eject(cause)
        assert case.pause_s() >= 15.0
        case.others = 0
        assert (case.pause_s() == DESPERATE_S) == (cause != "lied")

    def test_all_is_forgiven_after_a_while(self) -> None:
        case = Case()
        case.eject("wrong")
        case.happens("probed well")
        case.now += FORGIVEN_S - 1
        case.happens("answered")
        assert case.standing.ejections == 1
        case.now += 1
        case.happens("answered")
        assert case.standing == Standing()

    @given(
        seed=st.integers(0, 2**32 - 1),
        happenings=st.lists(
            st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 4), st.floats(0.001, 30.0))
        ),
    )
    def test_a_pool_of_five_never_loses_its_last_to_failure_or_silence(
        self, seed: int, happenings: list[tuple[str, int, float]]
    ) -> None:
        """And nobody is out for ever: each that is out has a time for its probe."""
        rng = random.Random(seed)
        cases = [Case(rng=rng) for _ in range(5)]
        now = 0.0
        for what, index, after_s in happenings:
            now += after_s
            for case in cases:
                case.now = now
                usable = sum(not other.standing.ejected for other in cases)
                due = probe_at(case.standing, usable)
                assert (due is None) == (not case.standing.ejected)
                if due is not None:
                    assert due <= case.standing.since + LONGEST_PAUSE_OF_LIARS_S
                    if now >= due:
                        assert case.happens("probed well") == "readmit"
            case = cases[index]
            case.others = sum(not o.standing.ejected for o in cases if o is not case)
            if case.happens(what) == "eject":
                assert case.others or what in ("wrong", "lied")

    def test_a_look_never_ejects_the_last_one_that_can_be_sent_to(self) -> None:
        quiet = Standing(silent_since=0.0)
        standings = {"a": quiet, "b": quiet, "c": Standing(silent_since=4.0), "d": quiet}
        after, ejected = look(standings, {"a", "b", "d"}, 3, 10.0, random.Random(1))
        assert ejected == ("a", "b")
        assert [after[name].ejected for name in "abcd"] == [True, True, False, False]
        assert after["c"].silent_since is None
        assert after["d"] == quiet
