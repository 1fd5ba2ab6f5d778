"""Weights of loss terms over a training: they begin, end and lie where they should."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.students.weights import (
    Cosine,
    Linear,
    Steps,
    Weight,
    always_zero,
    check,
    needs_total,
    weight_at,
)

weights = st.floats(0, 10)
ramps: Any = st.builds(
    lambda kind, first, last, steps, after: kind(first, last, steps, after),
    st.sampled_from([Linear, Cosine]),
    weights,
    weights,
    st.integers(1, 50),
    st.integers(0, 50),
)


@given(ramps)
def test_a_ramp_stays_between_its_ends_and_goes_one_way(ramp: Linear | Cosine) -> None:
    end = ramp.after + (ramp.steps or 0)
    values = [ramp.at(step, None) for step in range(end + 3)]
    low, high = sorted((ramp.first, ramp.last))
    assert all(low - 1e-9 <= value <= high + 1e-9 for value in values)
    order = sorted(values, reverse=ramp.last < ramp.first)
    assert values == pytest.approx(order)
    assert set(values[: ramp.after + 1]) == {ramp.first}
    assert set(values[end:]) == {ramp.last}


@given(ramps)
def test_halfway_a_ramp_is_at_the_middle(ramp: Linear | Cosine) -> None:
    half = ramp.steps or 0
    twice = type(ramp)(ramp.first, ramp.last, 2 * half, ramp.after)
    middle = twice.at(ramp.after + half, None)
    assert middle == pytest.approx((ramp.first + ramp.last) / 2)


def test_a_cosine_begins_slower_than_a_line_and_is_as_far_in_the_middle() -> None:
    line, bent = Linear(1, 0, 100), Cosine(1, 0, 100)
    assert bent.at(10, None) > line.at(10, None)
    assert bent.at(90, None) < line.at(90, None)


@given(weights, weights, st.integers(2, 100))
def test_without_steps_the_last_step_of_the_training_has_the_last_weight(
    first: float, last: float, total: int
) -> None:
    for ramp in (Linear(first, last), Cosine(first, last)):
        assert (ramp.at(0, total), ramp.at(total - 1, total)) == (first, last)
        assert needs_total(ramp)


def test_without_steps_the_length_of_the_training_has_to_be_known() -> None:
    with pytest.raises(ValueError, match="give the schedule steps="):
        weight_at(Linear(1, 0), 3, None)
    assert not needs_total(Linear(1, 0, 9))


@given(st.lists(weights, min_size=1, max_size=6), st.data())
def test_steps_have_each_value_from_its_step_up_to_the_next(
    values: list[float], data: st.DataObject
) -> None:
    gaps = data.draw(
        st.lists(st.integers(1, 9), min_size=len(values) - 1, max_size=len(values) - 1)
    )
    at = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    schedule = Steps(tuple(values), tuple(at))
    expected = [values[sum(step >= one for one in at)] for step in range((at or [0])[-1] + 3)]
    assert [weight_at(schedule, step) for step in range(len(expected))] == expected


def test_a_number_is_the_weight_of_each_step() -> None:
    assert [weight_at(weight, 7, 9) for weight in (0, 1, 0.25)] == [0.0, 1.0, 0.25]


@pytest.mark.parametrize(
    ("weight", "zero"),
    [(0, True), (0.1, False), (Linear(0, 0), True), (Cosine(0, 1), False), (Steps((0,), ()), True)],
)
def test_what_never_has_a_weight_is_known(weight: Weight, zero: bool) -> None:
    assert always_zero(weight) is zero


@pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), True, "1", None])
def test_what_is_no_weight_is_refused(weight: Any) -> None:
    with pytest.raises(ValueError, match="a weight is a finite number"):
        check(weight)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Linear(-1, 0), "a weight is"),
        (lambda: Cosine(1, float("nan")), "a weight is"),
        (lambda: Linear(1, 0, 0), "at least 1 step"),
        (lambda: Cosine(1, 0, 5, -1), "0 steps or more"),
        (lambda: Steps((1, 0), (3, 5)), "2 values need 1 steps"),
        (lambda: Steps((1, 0.5, 0), (5, 5)), "steps grow"),
        (lambda: Steps((1, 0), (0,)), "steps grow"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
