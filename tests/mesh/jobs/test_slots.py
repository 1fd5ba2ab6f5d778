"""Slots: their cores, who is in one, which are kept for a service."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.coordinator.queue import Reservation
from edl.mesh.jobs.slots import Slots, divide


def asked(**slots: int) -> list[Reservation]:
    return [Reservation(name, count, n, 5.0) for n, (name, count) in enumerate(slots.items())]


@given(st.sets(st.integers(0, 63), min_size=1), st.integers(1, 80))
def test_slots_have_equal_parts_of_the_cores_and_share_none(cores: set[int], slots: int) -> None:
    divided = divide(cores, slots)
    assert len(divided) == slots
    assert {len(part) for part in divided} == {len(cores) // slots}
    all_of_them = [core for part in divided for core in part]
    assert len(set(all_of_them)) == len(all_of_them)
    assert set(all_of_them) <= cores


def test_what_is_free_is_kept_for_who_asked_first() -> None:
    slots = Slots(((),) * 4, taken={0, 2})
    assert slots.keep(asked(web=1, api=2)) == ["web"]
    assert slots.kept == {"web": [1], "api": [3]}
    assert slots.free == []
    assert slots.short(asked(web=1, api=2))
    slots.taken.discard(2)
    assert slots.keep(asked(web=1, api=2)) == ["api"]
    assert slots.kept == {"web": [1], "api": [3, 2]}
    assert slots.keep(asked(web=1, api=2)) == [], "said once"
    assert not slots.short(asked(web=1, api=2))
    slots.keep(asked(api=1))
    assert (slots.kept, slots.free) == ({"api": [3]}, [1, 2])
    slots.keep([])
    assert slots.free == [1, 2, 3]


def test_more_than_there_is_does_not_hurry_anybody_for_ever() -> None:
    slots = Slots(((),) * 2)
    slots.keep(asked(web=5))
    assert slots.kept == {"web": [0, 1]}
    assert not slots.short(asked(web=5))
