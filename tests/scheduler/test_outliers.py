"""Who is ejected from a pool and let in again: by what happened, never for being slow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_three_failures_in_a_row_eject() -> None:
    case = Case()
    steps = [case.happens(what) for what in ("failed", "failed", "answered", "failed", "failed")]
    assert steps == ["stay"] * 5
    assert case.happens("failed") == "eject"
    assert case.standing.cause == "failed"
    assert case.happens("failed") == "stay", "once is enough"


def test_silence_that_lasts_ejects() -> None:
    case = Case()
    assert case.happens("silent") == "stay"
    case.now += SILENCE_S
    case.happens("heard of")
    assert case.happens("silent") == "stay"
    case.now += SILENCE_S
    assert case.happens("silent") == "eject"


@pytest.mark.parametrize("cause", ["wrong", "lied"])
def test_what_is_not_to_be_believed_goes_at_once_even_the_last(cause: Cause) -> None:
    assert Case(others=0).happens(cause) == "eject"


def test_the_last_usable_teacher_stays_however_poor() -> None:
    case = Case(others=0)
    for _ in range(50):
        assert case.happens("failed") == "stay"
        assert case.happens("silent") == "stay"
        case.now += 1.0
    case.others = 1
    assert case.happens("failed") == "eject"


@pytest.mark.parametrize("cause", CAUSES)
def test_pauses_double_up_to_a_limit_and_are_scattered(cause: Cause) -> None:
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
def test_one_that_answers_its_probe_is_let_in_on_trial(cause: Cause) -> None:
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
def test_without_any_usable_teacher_all_are_probed_soon_but_a_liar(cause: Cause) -> None:
    case = Case()
    for _ in range(6):
        case.eject(cause)
        case.happens("probed well")
        case.happens("answered")
    case.eject(cause)
    assert case.pause_s() >= 15.0
    case.others = 0
    assert (case.pause_s() == DESPERATE_S) == (cause != "lied")


def test_all_is_forgiven_after_a_while() -> None:
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
    seed: int, happenings: list[tuple[str, int, float]]
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


def test_a_look_never_ejects_the_last_one_that_can_be_sent_to() -> None:
    quiet = Standing(silent_since=0.0)
    standings = {"a": quiet, "b": quiet, "c": Standing(silent_since=4.0), "d": quiet}
    after, ejected = look(standings, {"a", "b", "d"}, 3, 10.0, random.Random(1))
    assert ejected == ("a", "b")
    assert [after[name].ejected for name in "abcd"] == [True, True, False, False]
    assert after["c"].silent_since is None
    assert after["d"] == quiet
