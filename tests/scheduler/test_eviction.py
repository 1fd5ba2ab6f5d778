"""Who makes room in a full store, and who stays."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.eviction import (
    MOST_MERCY,
    USE_STEP_S,
    Candidate,
    sweep,
    typical,
    worth_noting,
)

CANDIDATES = st.lists(st.builds(Candidate, st.integers(0, 50), st.integers(1, 100)), max_size=30)


@given(CANDIDATES, st.integers(0, 50), st.integers(0, 2000), st.integers(0, 40))
def test_the_first_go_as_many_as_are_needed_and_no_more(
    head: list[Candidate], typical_s: int, lacking: int, mercy: int
) -> None:
    swept = sweep(head, typical_s, lacking, mercy)
    assert sorted(swept.gone + swept.moved) == list(range(len(swept.gone + swept.moved)))
    freed = sum(head[place].nbytes for place in swept.gone)
    assert freed >= lacking or len(swept.gone + swept.moved) == len(head)
    if swept.gone:
        assert freed - head[swept.gone[-1]].nbytes < lacking


@given(CANDIDATES, st.integers(0, 50), st.integers(0, 2000), st.integers(0, 40))
def test_what_was_used_lately_stays_and_for_each_that_stays_another_goes(
    head: list[Candidate], typical_s: int, lacking: int, mercy: int
) -> None:
    swept = sweep(head, typical_s, lacking, mercy)
    assert all(head[place].used_s > typical_s for place in swept.moved)
    assert swept.mercy == mercy + len(swept.gone) - len(swept.moved) >= 0
    if mercy >= len(head):
        assert all(head[place].used_s <= typical_s for place in swept.gone)


def test_mercy_is_not_saved_up_without_end() -> None:
    old = [Candidate(0, 1)] * 10
    assert sweep(old, 0, 10, MOST_MERCY - 3).mercy == MOST_MERCY


@given(st.lists(st.integers(0, 20), max_size=30))
def test_half_of_the_rows_at_most_were_used_later_than_the_typical_one(used_s: list[int]) -> None:
    later = sum(one > typical(used_s) for one in used_s)
    assert 2 * later <= len(used_s)


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_use_is_noted_once_in_a_step(noted_s: int, later_s: int) -> None:
    assert worth_noting(noted_s, noted_s + later_s) == (later_s >= USE_STEP_S)
