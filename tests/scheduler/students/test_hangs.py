"""Who hangs, who only waits, who straggles."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from edl.scheduler.students.hangs import START_S, Sign, hung, straggler

HANG_S = 10.0


def sign(rank: int, **more: object) -> Sign:
    return Sign(rank, **({"step": 5, "at_s": 0.0, "heard_s": 0.0} | more))  # type: ignore[arg-type]


def test_a_rank_without_a_step_hangs_after_the_stated_time() -> None:
    assert hung([sign(0)], HANG_S, 9.9) == ()
    assert hung([sign(0)], HANG_S, 10.0) == (0,)


def test_a_start_may_take_longer() -> None:
    starting = sign(0, step=0, started=False)
    assert hung([starting], HANG_S, START_S - 0.1) == ()
    assert hung([starting], HANG_S, START_S) == (0,)
    assert hung([starting], 100.0, 299.0) == ()


def test_who_waits_and_says_so_does_not_hang() -> None:
    waits = sign(1, waiting_for="teachers", heard_s=95.0)
    assert hung([sign(0), waits], HANG_S, 100.0) == (0,)
    assert hung([waits], HANG_S, 105.0) == (1,)  # it died saying it


def test_the_suspended_one_is_to_blame_and_not_those_that_it_holds_up() -> None:
    signs = [sign(0), sign(1, suspended=True), sign(2)]
    assert hung(signs, HANG_S, 10.0) == (1,)
    assert hung([sign(1, suspended=True, waiting_for="the other ranks")], HANG_S, 10.0) == (1,)


def test_else_those_that_are_behind() -> None:
    assert hung([sign(0), sign(1, step=4), sign(2)], HANG_S, 10.0) == (1,)


@given(
    st.lists(
        st.builds(
            Sign,
            st.integers(0, 9),
            st.integers(0, 3),
            st.floats(0, 100),
            st.floats(0, 100),
            st.booleans(),
            st.sampled_from(["", "teachers"]),
            st.booleans(),
        ),
        max_size=6,
        unique_by=lambda one: one.rank,
    )
)
def test_somebody_is_blamed_whenever_somebody_is_silent(signs: list[Sign]) -> None:
    assert bool(hung(signs, HANG_S, 100.0 + START_S)) == bool(signs)
    assert hung(signs, 1000.0, 100.0) == ()


def test_a_straggler_is_slower_than_the_others() -> None:
    assert straggler({0: [1.0] * 3, 1: [3.0] * 3, 2: [1.1] * 3}) == 1
    assert straggler({0: [1.0] * 3, 1: [1.4] * 3}) is None
    assert straggler({0: [1.0] * 3, 1: [9.0] * 2}) is None  # too few to tell
    assert straggler({0: [1.0] * 3}) is None
    assert straggler({0: [1.0] * 5, 1: [1.0, 1.0, 1.0, 9.0, 9.0]}) is None  # now and then
