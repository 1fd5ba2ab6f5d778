"""Laws of a service's number of teachers in a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.elastic import Pool
from edl.scheduler.teacher_count import Wish, count_of, room_for

numbers = st.integers(0, 60)
maybe = st.none() | numbers


@st.composite
def wishes(draw: st.DrawFn) -> Wish:
    least = draw(numbers)
    return Wish(draw(maybe), least, least + draw(numbers), draw(st.booleans()))


@given(wishes(), maybe, maybe, maybe)
def test_it_is_what_was_asked_for_within_what_bounds_it(
    wish: Wish, desired: int | None, last: int | None, room: int | None
) -> None:
    found = count_of(wish, desired, last, room)
    if wish.by_hand is not None:
        assert (found.count, found.cause) == (wish.by_hand, "by-hand")
        return
    assert 0 <= found.count <= max(wish.most, last or 0)
    if desired is None:
        assert found.cause == "unknown"
        lowest = 0 if last == 0 and wish.to_zero else wish.least
        assert found.count == min(max(last or 0, lowest), wish.most)
    elif found.cause == "desired":
        lowest = wish.least if desired > 0 or not wish.to_zero else 0
        assert lowest <= found.count <= wish.most
        assert found.count == desired or desired < lowest or desired > wish.most
    else:
        assert room is not None
        assert found.count == max(room, last or 0)


@given(wishes(), numbers, maybe, maybe)
def test_what_is_decided_stays_when_it_is_asked_again(
    wish: Wish, desired: int, last: int | None, room: int | None
) -> None:
    first = count_of(wish, desired, last, room)
    assert count_of(wish, desired, first.count, room).count == first.count
    if wish.by_hand is None:  # and nobody says anything any more
        lowest = wish.least if first.count or not wish.to_zero else 0
        assert count_of(wish, None, first.count).count in (first.count, wish.most, lowest)


@given(wishes(), numbers, numbers, numbers)
def test_room_keeps_from_growing_and_takes_nothing_away(
    wish: Wish, desired: int, last: int, room: int
) -> None:
    free, bound = count_of(wish, desired, last), count_of(wish, desired, last, room)
    assert bound.count <= free.count
    if free.count <= last:
        assert bound.count == free.count


@given(st.floats(0, 1000), st.floats(0, 1000), st.floats(0.01, 10), st.floats(0.1, 1.0))
def test_as_many_as_there_is_room_for_fit(
    capacity: float, reserved: float, need: float, max_load: float
) -> None:
    pool = Pool({"cpu": capacity}, {"cpu": reserved})
    room = room_for(pool, {"cpu": need, "gpu": 0.0}, max_load)
    assert room is not None
    if room:
        assert reserved + room * need <= capacity * max_load + 1e-6 * (1 + need)
    assert reserved + (room + 1) * need > capacity * max_load - 1e-6


def test_decimal_requests_fill_a_machine_and_unknown_kinds_have_no_room() -> None:
    assert room_for(Pool({"cpu": 1.0}), {"cpu": 0.1}, 1.0) == 10
    assert room_for(Pool({"cpu": 1.0}), {"gpu": 1.0}, 1.0) == 0
    assert room_for(Pool({"cpu": 1.0}), {}, 1.0) is None
    with pytest.raises(ValueError, match="least <= most"):
        Wish(None, 3, 2)
