"""Memory that others read in place: each array has a number that says whose it is."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.proto.arena import ALIGNMENT, GROWTH_BYTES, Arena, ArrayRef
from edl.proto.datatypes import to_bytes
from edl.proto.lent_arena import Lent, LentArena
from edl.proto.places import descriptor_of, key_of


@pytest.fixture
def arena() -> Iterator[LentArena]:
    made = LentArena.create(mmap.PAGESIZE)
    yield made
    made.close()


def stamp(arena: LentArena, offset: int) -> int:
    """What stands before an array."""
    (number,) = struct.unpack("<Q", os.pread(arena.fd, 8, offset - 8))
    return int(number)


def whole_of(arena: LentArena, ref: ArrayRef) -> Lent:
    return Lent(ref.offset, stamp(arena, ref.offset), ref.offset - 8)


def test_each_array_has_a_place_and_a_number_of_its_own(arena: LentArena) -> None:
    record = arena.put([np.arange(16), np.ones((2, 3), np.float32), np.zeros(64, np.uint8)])
    found = [arena.lent(to_bytes(arena.get(ref))) for ref in record.arrays]
    assert [place and place[0] for place in found] == [ref.offset for ref in record.arrays]
    numbers = [stamp(arena, ref.offset) for ref in record.arrays]
    assert [place and place[1] for place in found] == numbers
    assert len(set(numbers)) == 3
    assert 0 not in numbers


def test_the_side_that_is_handed_the_memory_names_the_same_places(arena: LentArena) -> None:
    theirs = LentArena.attach(os.dup(arena.fd))
    (ref,) = arena.put([np.arange(16)]).arrays
    assert theirs.lent(to_bytes(theirs.get(ref))) == whole_of(arena, ref)
    theirs.close()


def test_a_run_of_rows_lies_behind_the_number_of_its_array(arena: LentArena) -> None:
    first, ref = arena.put([np.zeros(100), np.arange(30, dtype=np.int64).reshape(10, 3)]).arrays
    assert arena.lent(to_bytes(arena.get(ref)[4:7])) == Lent(
        ref.offset + 4 * 24, stamp(arena, ref.offset), ref.offset - 8
    )
    assert arena.lent(to_bytes(arena.get(ref)[:2])) == whole_of(arena, ref)
    assert arena.lent(to_bytes(arena.get(first)[50:])) != arena.lent(to_bytes(arena.get(ref)))
    assert arena.lent(to_bytes(arena.get(ref)[:, :2])) is None  # sent as a copy


def test_a_number_is_void_once_its_record_is_freed_and_never_comes_back(arena: LentArena) -> None:
    seen = set()
    for _ in range(50):
        record = arena.put([np.arange(16)])
        offset = record.arrays[0].offset
        seen.add(stamp(arena, offset))
        lying = to_bytes(arena.get(record.arrays[0]))
        arena.free(record.offset)
        assert stamp(arena, offset) == 0
        assert arena.lent(lying) is None
    assert len(seen) == 50


def test_memory_that_is_elsewhere_is_not_lent(arena: LentArena) -> None:
    (ref,) = arena.put([np.arange(16, dtype=np.int64)]).arrays
    other, plain = LentArena.create(), Arena.create()
    for array in (
        np.arange(16),
        other.get(other.put([np.arange(16)]).arrays[0]),
        plain.get(plain.put([np.arange(16)]).arrays[0]),
        arena.get(ref)[::2],  # sent as a copy
        arena.get(ref)[:0],
    ):
        assert arena.lent(to_bytes(array)) is None
    other.close()
    plain.close()


def test_what_was_mapped_before_it_grew_is_not_lent_and_mapped_again_it_is(
    arena: LentArena,
) -> None:
    (ref,) = arena.put([np.arange(16)]).arrays
    before = arena.get(ref)
    arena.put([np.zeros(GROWTH_BYTES, np.uint8)])
    assert arena.lent(to_bytes(before)) is None
    assert arena.lent(to_bytes(arena.get(ref))) == whole_of(arena, ref)


def test_it_never_becomes_smaller(arena: LentArena) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(arena.fd, 0)


@given(st.lists(st.integers(0, 300), max_size=20))
def test_records_lie_apart_with_their_numbers(sizes: list[int]) -> None:
    arena = LentArena.create(mmap.PAGESIZE)
    try:
        held = [(arena.put([np.full(n, i % 251, np.uint8)]), n) for i, n in enumerate(sizes)]
        numbers = [stamp(arena, record.arrays[0].offset) for record, _ in held]
        assert len(set(numbers)) == len(held)
        for i, (record, n) in enumerate(held):
            (ref,) = record.arrays
            assert record.offset + ALIGNMENT <= ref.offset
            np.testing.assert_array_equal(arena.get(ref), np.full(n, i % 251, np.uint8))
    finally:
        arena.close()


def test_a_key_names_a_descriptor_or_a_file() -> None:
    assert descriptor_of(key_of(77, 5)) == (77, 5)
    for name in ("edl-x", "edl-fd-1", "edl-fd--1-2", "edl-fd-1-2x", "edl-fd-٣-2", "edl-fd-0-1"):
        assert descriptor_of(name) is None
