"""When a training is saved, when it is tried again, and what pruning leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.students.saving import Found, Rhythm, newest_first, retry_s, to_prune

STEPS = st.integers(0, 50)
FOUND = st.lists(
    st.builds(Found, st.uuids().map(str), STEPS, st.floats(0, 100), st.booleans()),
    max_size=12,
    unique_by=lambda one: one.name,
)


@pytest.mark.parametrize(
    ("rhythm", "step", "now_s", "due"),
    [
        (Rhythm(10, None), 19, 1000.0, False),
        (Rhythm(10, None), 20, 0.0, True),
        (Rhythm(None, 30.0), 11, 29.9, False),
        (Rhythm(None, 30.0), 11, 30.0, True),
        (Rhythm(10, 30.0), 11, 30.0, True),
        (Rhythm(10, 30.0), 20, 1.0, True),
        (Rhythm(), 10**9, 1e9, False),
        (Rhythm(1, 1.0), 10, 1000.0, False),  # the step that was saved last
    ],
)
def test_when_it_is_due(rhythm: Rhythm, step: int, now_s: float, due: bool) -> None:
    assert rhythm.due(step, now_s, last_step=10, last_s=0.0) is due


@pytest.mark.parametrize("wrong", [{"every_steps": 0}, {"every_s": 0.0}, {"every_s": -1.0}])
def test_a_rhythm_is_positive(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Rhythm(**wrong)  # type: ignore[arg-type]


@given(FOUND, st.integers(1, 5))
def test_pruning_leaves_the_newest_whole_ones(found: list[Found], keep: int) -> None:
    gone = set(to_prune(found, keep))
    whole = [one.name for one in newest_first(found) if one.whole]
    left = [one for one in found if one.name not in gone]
    assert [one.name for one in newest_first(left) if one.whole] == whole[:keep]
    assert to_prune(left, keep) == [], "once is enough"


@given(FOUND, st.integers(1, 5))
def test_what_is_damaged_goes_with_older_whole_ones_only(found: list[Found], keep: int) -> None:
    gone = set(to_prune(found, keep))
    whole = [one for one in newest_first(found) if one.whole]
    for one in found:
        if not one.whole:
            newer = sum(other.order > one.order for other in whole)
            assert (one.name in gone) == (newer >= keep)


def test_the_oldest_go_first() -> None:
    found = [Found(str(step), step, 0.0) for step in (30, 10, 20, 40)]
    assert to_prune(found, 2) == ["10", "20"]


def test_of_one_step_the_later_one_is_the_newer() -> None:
    found = [Found("b", 10, 2.0), Found("a", 10, 1.0), Found("c", 10, 3.0, whole=False)]
    assert to_prune(found, 1) == ["a"]


def test_at_least_one_stays() -> None:
    with pytest.raises(ValueError, match="at least one"):
        to_prune([], 0)


def test_retries_come_later_and_later() -> None:
    assert [retry_s(n) for n in (1, 2, 3, 4)] == [1.0, 2.0, 4.0, 8.0]
    assert retry_s(10**6) == 60.0
    with pytest.raises(ValueError, match="has not failed"):
        retry_s(0)
