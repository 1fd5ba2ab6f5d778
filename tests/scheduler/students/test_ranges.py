"""Sets of whole numbers as ranges: held against sets of Python."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.scheduler.students.ranges import Ranges

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], sum(p))))


def numbers(pairs: list[tuple[int, int]]) -> set[int]:
    return {number for start, stop in pairs for number in range(start, stop)}


def check_form(ranges: Ranges) -> None:
    """No range is empty, none touches the next."""
    assert all(start < stop for start, stop in ranges.pairs)
    ends = [stop for _, stop in ranges.pairs[:-1]]
    assert all(end < start for end, (start, _) in zip(ends, ranges.pairs[1:], strict=True))


@given(PAIRS)
def test_any_ranges_are_brought_into_one_form(pairs: list[tuple[int, int]]) -> None:
    ranges = Ranges.of(pairs)
    check_form(ranges)
    assert set(ranges.numbers()) == numbers(pairs)
    assert list(ranges.numbers()) == sorted(numbers(pairs))
    assert ranges.count == len(numbers(pairs))
    assert bool(ranges) == bool(numbers(pairs))
    assert ranges == Ranges.of_numbers(numbers(pairs))
    assert all((number in ranges) == (number in numbers(pairs)) for number in range(-2, 80))


@given(PAIRS, PAIRS)
def test_union_and_difference_are_those_of_sets(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    a, b = Ranges.of(one), Ranges.of(other)
    for made, expected in (
        (a.union(b), numbers(one) | numbers(other)),
        (a.minus(b), numbers(one) - numbers(other)),
    ):
        check_form(made)
        assert set(made.numbers()) == expected


@given(PAIRS, st.integers(0, 80))
def test_the_complement_is_all_else(pairs: list[tuple[int, int]], total: int) -> None:
    rest = Ranges.of(pairs).complement(total)
    check_form(rest)
    assert set(rest.numbers()) == set(range(total)) - numbers(pairs)


@given(PAIRS, st.integers(0, 80), st.integers(0, 80))
def test_a_slice_is_one_of_the_numbers_in_order(
    pairs: list[tuple[int, int]], start: int, stop: int
) -> None:
    ranges = Ranges.of(pairs)
    assert list(ranges.slice(start, stop).numbers()) == sorted(numbers(pairs))[start:stop]


@given(PAIRS)
def test_they_come_back_from_json(pairs: list[tuple[int, int]]) -> None:
    ranges = Ranges.of(pairs)
    assert Ranges.from_json(json.loads(json.dumps(ranges.to_json()))) == ranges


@pytest.mark.parametrize("wrong", [5, "0-3", [3], [[1]], [[3, 2]], [[-1, 2]], [[0, 1.5]], None])
def test_what_is_no_range_is_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="range"):
        Ranges.from_json(wrong)
