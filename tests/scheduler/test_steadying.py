"""A wish that flickers moves nothing; one that lasts, leaps or starves comes into force."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.steadying import DRIFT_S, FALL_S, RISE_S, Steady, begin, elapse, follow


def after(wishes: Iterable[float], steady: Steady, start: float = 0.0) -> Steady:
    """One report a second."""
    for second, wish in enumerate(wishes):
        steady = follow(steady, wish, False, start + second)
    return steady


def test_the_first_wish_is_in_force_at_once() -> None:
    assert begin(3).value == 3
    assert begin(3).due is None


def test_a_wish_that_lasts_comes_into_force_by_time_alone() -> None:
    steady = follow(begin(4), 5, False, 100.0)
    assert steady.value == 4
    assert steady.due == 100.0 + RISE_S
    assert elapse(steady, 100.0 + RISE_S - 0.1).value == 4
    assert elapse(steady, 100.0 + RISE_S) == begin(5)


def test_who_starves_has_more_at_once_and_so_has_who_wants_twice_as_much() -> None:
    assert follow(begin(4), 5, True, 0.0) == begin(5)
    assert follow(begin(4), 8, False, 0.0) == begin(8)
    assert follow(begin(4), 7, False, 0.0).value == 4


def test_urgency_is_no_reason_for_less() -> None:
    assert follow(begin(4), 3, True, 0.0).value == 4


def test_who_wants_nothing_has_nothing_and_who_wants_again_has_it_at_once() -> None:
    assert follow(begin(4), 0, False, 0.0) == begin(0)
    assert follow(begin(0), 1, False, 0.0) == begin(1)


def test_one_report_below_begins_the_rise_anew() -> None:
    steady = after([5] * 10 + [4] + [5] * 14, begin(4))
    assert steady.value == 4
    assert steady.due == 11 + RISE_S


def test_a_rise_goes_to_the_mean_of_what_was_wished() -> None:
    assert after([6, 7] * 8, begin(4)).value == pytest.approx(97 / 15)


@pytest.mark.parametrize(("high", "low"), [(5, 4), (2, 1), (9, 8), (4, 1)])
def test_a_lower_wish_comes_into_force_when_it_has_lasted(high: int, low: int) -> None:
    steady = follow(begin(high), low, False, 0.0)
    assert steady.due == FALL_S
    assert elapse(steady, FALL_S - 0.1).value == high
    assert elapse(steady, FALL_S) == begin(low)


def test_a_fall_goes_to_the_greatest_of_what_was_wished() -> None:
    assert after([3, 5, 4] * 11, begin(8)).value == 5


def test_a_wish_just_below_the_one_in_force_takes_longer() -> None:
    steady = follow(begin(11), 10, False, 0.0)
    assert elapse(steady, DRIFT_S - 0.1).value == 11
    assert elapse(steady, DRIFT_S) == begin(10)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("base", [2, 5, 12, 40])
def test_noise_of_thirty_percent_over_five_minutes_moves_it_twice_at_most(
    base: int, seed: int
) -> None:
    noise = Random(seed)
    steady = begin(round(base * noise.uniform(0.7, 1.3)))
    moves = 0
    for second in range(300):
        wish = round(base * noise.uniform(0.7, 1.3))
        latest = follow(steady, wish, False, second)
        moves += latest.value != steady.value
        steady = latest
    assert moves <= 2


wishes = st.lists(st.tuples(st.integers(0, 20), st.booleans(), st.floats(0, 40)), max_size=60)


@given(wishes)
def test_what_is_in_force_lies_between_what_was_wished(
    reports: list[tuple[int, bool, float]],
) -> None:
    steady, now, said = begin(7), 0.0, [7]
    for wish, urgent, seconds in reports:
        now += seconds
        steady = follow(steady, wish, urgent, now)
        said.append(wish)
        assert min(said) <= steady.value <= max(said)
        assert (steady.value == 0) == (wish == 0)
        assert steady.due is None or steady.due > now


@given(wishes, st.integers(1, 20))
def test_what_is_said_for_long_enough_is_in_force(
    reports: list[tuple[int, bool, float]], last: int
) -> None:
    steady, now = begin(7), 0.0
    for wish, urgent, seconds in [*reports, (last, False, 0.0)]:
        now += seconds
        steady = follow(steady, wish, urgent, now)
    while steady.due is not None:
        now = steady.due
        steady = elapse(steady, now)
    assert steady == begin(last)
