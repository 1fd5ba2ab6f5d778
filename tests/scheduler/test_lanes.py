"""A job goes to the device that is done with it first; the refused come back one by one."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.lanes import Lane, promise_s, soonest

LANES = st.lists(
    st.builds(Lane, st.integers(0, 2), st.integers(0, 100), st.floats(1e-4, 10.0)), max_size=5
)


@given(LANES, st.integers(1, 64))
def test_nobody_with_room_would_be_done_sooner(lanes: list[Lane], samples: int) -> None:
    index = soonest(lanes, samples)
    if index is None:
        assert not any(lane.room for lane in lanes)
        return
    assert lanes[index].room > 0
    assert all(
        lanes[index].finish_s(samples) <= lane.finish_s(samples) for lane in lanes if lane.room
    )


def test_a_fast_device_takes_more_until_a_slow_one_would_be_done_first() -> None:
    lanes = [Lane(9, 0, 0.1), Lane(9, 0, 0.35)]
    taken = []
    for _ in range(6):
        index = soonest(lanes, 8)
        assert index is not None
        taken.append(index)
        lanes[index] = lanes[index].given(8)
    assert taken == [0, 0, 0, 1, 0, 0]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.floats(0.01, 1), st.integers(1, 9))
def test_who_is_refused_is_told_a_time_to_come_and_no_two_the_same_while_there_are_slots(
    gaps: list[float], interval_s: float, slots: int
) -> None:
    told, now = 0.0, 0.0
    for number, gap in enumerate(gaps):
        now += gap
        before, told = told, promise_s(now, told, interval_s, slots)
        assert now < told <= now + slots * interval_s
        if number and told < now + slots * interval_s:
            assert told >= before + interval_s * 0.999


def test_the_refused_of_one_moment_come_back_one_by_one() -> None:
    told = list(
        itertools.accumulate(range(5), lambda last, _: promise_s(10.0, last, 0.5, 3), initial=0.0)
    )
    assert told[1:] == [10.5, 11.0, 11.5, 11.5, 11.5]
