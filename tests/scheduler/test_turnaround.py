"""What is expected of a teacher, and how far the pool strays from that."""

from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.turnaround import LEAST_S, MOST_STRETCH, Turnarounds, began


def answered(times: Turnarounds, teacher: str, count: int, seconds: float, rows: int = 32) -> None:
    for _ in range(count):
        times.answered(teacher, rows, seconds)


def test_nothing_is_expected_before_anybody_has_answered() -> None:
    times = Turnarounds()
    assert times.expected_s("a", 32) is None
    assert times.pool_s(32) is None
    assert times.stretch == 1.0


def test_each_teacher_is_held_against_itself() -> None:
    times = Turnarounds()
    answered(times, "slow", 20, 1.0)
    answered(times, "fast", 20, 0.1)
    assert times.expected_s("slow", 32) == pytest.approx(1.0)
    assert times.expected_s("fast", 32) == pytest.approx(0.1)
    assert times.stretch == pytest.approx(1.0)


def test_a_newcomer_is_held_against_the_median_teacher() -> None:
    times = Turnarounds()
    for name, seconds in (("a", 0.1), ("b", 0.2), ("c", 5.0)):
        answered(times, name, 3, seconds)
    assert times.expected_s("new", 32) == pytest.approx(0.2)
    times.forget("b")
    assert times.expected_s("b", 32) == pytest.approx(0.1)


def test_larger_requests_may_take_longer_and_smaller_ones_as_long() -> None:
    times = Turnarounds()
    answered(times, "a", 50, 0.32, rows=32)
    assert times.expected_s("a", 64) == pytest.approx(0.64)
    assert times.expected_s("a", 1) == pytest.approx(0.32)


def test_the_stretch_is_a_quantile_of_the_whole_pool() -> None:
    times = Turnarounds()
    answered(times, "a", 200, 0.1)
    for _ in range(30):
        times.answered("b", 32, 0.05)
        times.answered("b", 32, 0.15)
    assert 1.3 < times.stretch < 2.5


def test_one_pause_is_not_a_new_speed_and_a_new_speed_is_soon_known() -> None:
    times = Turnarounds()
    answered(times, "a", 20, 0.1)
    answered(times, "a", 1, 60.0)
    expected_s = times.expected_s("a", 32)
    assert expected_s is not None
    assert expected_s < 0.15
    answered(times, "a", 20, 1.0)
    assert times.expected_s("a", 32) == pytest.approx(1.0, rel=0.25)


def test_answers_that_come_in_pairs_count_as_their_mean() -> None:
    times = Turnarounds()
    for _ in range(50):
        times.answered("merges", 32, 0.2)
        times.answered("merges", 32, 0.0)
    assert times.expected_s("merges", 32) == pytest.approx(0.1, rel=0.1)


def test_nonsense_is_no_measurement() -> None:
    times = Turnarounds()
    for rows, seconds in ((0, 1.0), (1, -1.0), (1, nan), (1, inf), (1, 0.0)):
        times.answered("a", rows, seconds)
    assert times.of("a") is None


def test_a_request_begins_when_those_before_it_are_done() -> None:
    assert began(10.0, -inf) == 10.0
    assert began(10.0, 12.0) == 12.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 999), st.floats(0, 1e6))))
def test_expectations_stay_within_what_was_seen(answers: list[tuple[str, int, float]]) -> None:
    times = Turnarounds()
    for teacher, rows, seconds in answers:
        times.answered(teacher, rows, seconds)
    assert 1 <= times.stretch <= MOST_STRETCH
    greatest = max((s / r for _, r, s in answers), default=0.0)
    for name in "abc":
        if (known := times.of(name)) is not None:
            assert LEAST_S <= known.seconds_per_row <= max(greatest * (1 + 1e-9), LEAST_S)
