"""Who makes room in a full store."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.eviction import USE_STEP_S, Candidate, victims, worth_noting

CANDIDATES = st.lists(st.builds(Candidate, st.integers(0, 50), st.integers(1, 100)), max_size=30)


@given(CANDIDATES, st.integers(0, 2000))
def test_the_oldest_go_as_many_as_are_needed_and_no_more(
    candidates: list[Candidate], lacking: int
) -> None:
    gone = victims(candidates, lacking)
    assert len(set(gone)) == len(gone)
    stays = [one for place, one in enumerate(candidates) if place not in gone]
    freed = sum(candidates[place].nbytes for place in gone)
    assert freed >= lacking or not stays
    if gone:
        youngest = max(candidates[place].used_s for place in gone)
        assert all(one.used_s >= youngest for one in stays)
        assert freed - candidates[gone[-1]].nbytes < lacking


@given(st.integers(0, 10**9), st.integers(0, 10**6))
def test_a_use_is_noted_once_in_a_step(noted_s: int, later_s: int) -> None:
    assert worth_noting(noted_s, noted_s + later_s) == (later_s >= USE_STEP_S)
