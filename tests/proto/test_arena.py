"""Shared memory: records never overlap, the other side follows, generations mark what was freed."""

from __future__ import annotations

import json
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.proto.arena import ALIGNMENT, GROWTH_BYTES, Arena, Array, ArrayRef, Record
from edl.proto.shared_buffer import SharedBuffer, descriptor_of, key_of
from edl.runtime.errors import WireError

from .strategies import arrays, same

PAGE = 4096


def over_the_wire(ref: ArrayRef) -> ArrayRef:
    return ArrayRef.from_json(json.loads(json.dumps(ref)))


@given(st.lists(arrays().filter(lambda array: array.dtype != np.object_), max_size=4))
def test_what_one_side_puts_the_other_gets(values: list[Array]) -> None:
    with closing(Arena.create(PAGE)) as ours, closing(Arena.attach(os.dup(ours.fd))) as theirs:
        record = ours.put(values)
        for ref, value in zip(record.arrays, values, strict=True):
            got = theirs.get(over_the_wire(ref))
            assert same(got, value)
            assert got.dtype == value.dtype
            assert ref.offset % ALIGNMENT == 0
            assert record.offset <= ref.offset
            assert ref.offset + value.nbytes <= record.offset + record.nbytes


@pytest.fixture
def arena() -> Iterator[Arena]:
    with closing(Arena.create(PAGE)) as made:
        yield made


@pytest.fixture
def theirs(arena: Arena) -> Iterator[Arena]:
    """The same memory, on the other side."""
    with closing(Arena.attach(os.dup(arena.fd))) as attached:
        yield attached


def test_any_plain_dtype_can_lie_there_and_no_other(arena: Arena) -> None:
    plain: list[Any] = ["M8[ns]", "S3", "U2", "c8", ml_dtypes.float8_e4m3fn]
    for dtype in plain:
        record = arena.put([np.zeros(3, dtype=dtype)])
        assert arena.get(over_the_wire(record.arrays[0])).dtype == dtype
        arena.free(record.offset)
    others: list[Any] = [np.object_, [("a", "f4"), ("b", "i4")]]
    for dtype in others:
        with pytest.raises(WireError, match="cannot lie in shared memory"):
            arena.put([np.zeros(3), np.zeros(3, dtype=dtype)])
        assert arena.used_bytes == 0, "nothing is taken"


def test_it_grows_and_the_other_side_follows(arena: Arena, theirs: Arena) -> None:
    (small,) = arena.put([np.arange(8)]).arrays
    before = arena.get(small)
    (big,) = arena.put([np.arange(GROWTH_BYTES, dtype=np.uint8)]).arrays
    assert arena.size_bytes >= PAGE + GROWTH_BYTES
    assert same(theirs.get(big), np.arange(GROWTH_BYTES, dtype=np.uint8))
    before[0] = 77  # a view of the mapping before it grew is of the same memory
    assert theirs.get(small)[0] == 77


def test_what_was_freed_last_is_used_first_and_as_it_was(arena: Arena) -> None:
    """It is likelier than any other memory to be in the processor's cache."""
    value = np.arange(20)
    first, second, third = (arena.put([value, value]) for _ in range(3))
    for record in (third, first):
        arena.free(record.offset)
    assert [arena.put([value, value]) for _ in range(2)] == [first, third]
    assert arena.put([value, value]).offset > third.offset
    assert second.nbytes * 4 == arena.used_bytes


def test_growth_that_is_refused_leaves_it_usable(arena: Arena) -> None:
    refused = mock.patch("edl.proto.arena.os.ftruncate", side_effect=OSError("no memory"))
    with refused, pytest.raises(OSError, match="no memory"):
        arena.put([np.zeros(PAGE * 2, dtype=np.uint8)])
    assert arena.used_bytes == 0
    assert arena.size_bytes == PAGE
    arena.put([np.zeros(PAGE * 2, dtype=np.uint8)])
    assert arena.used_bytes == PAGE * 2


def test_growth_that_cannot_be_mapped_leaves_it_usable(arena: Arena, theirs: Arena) -> None:
    map_file, limit = mmap.mmap, 3 * GROWTH_BYTES

    def map_little(fd: int, size: int, **options: int) -> mmap.mmap:
        if size > limit:
            raise OSError("cannot map so much")
        return map_file(fd, size, **options)

    with mock.patch("edl.proto.arena.mmap.mmap", map_little):
        with pytest.raises(OSError, match="cannot map so much"):
            arena.put([np.zeros(limit, dtype=np.uint8)])
        assert os.fstat(arena.fd).st_size <= limit, "others can attach it"
        (ref,) = arena.put([np.arange(PAGE * 2)]).arrays
        assert same(theirs.get(ref), np.arange(PAGE * 2))
        arena.close()
        theirs.close()
    assert (arena.fd, theirs.fd) == (-1, -1)
    assert same(arena.get(ref), np.arange(PAGE * 2))


def test_two_threads_of_the_attached_side_follow_together(arena: Arena, theirs: Arena) -> None:
    together = threading.Barrier(2, timeout=10)

    def last(ref: ArrayRef) -> int:
        together.wait()
        return int(theirs.get(ref)[-1])

    with ThreadPoolExecutor(2) as pool:
        for step in range(20):
            (ref,) = arena.put([np.full(GROWTH_BYTES // 8, step)]).arrays
            assert list(pool.map(last, [ref, ref])) == [step, step]


@pytest.mark.parametrize("at", [((PAGE,), 1), ((1,), -64), ((-1,), 0), ((1 << 40, 1 << 40), 0)])
def test_a_reference_to_other_memory_is_refused(arena: Arena, at: tuple[Any, int]) -> None:
    with pytest.raises(WireError, match="of a shared memory of 4096 bytes"):
        arena.get(ArrayRef("<u1", *at))


def test_a_reference_to_objects_is_refused(arena: Arena) -> None:
    with pytest.raises(WireError, match="of a shared memory of 4096 bytes"):
        arena.get(ArrayRef("|O", (1,), 0))


def test_closing_leaves_arrays_readable_and_no_descriptor() -> None:
    arena, large = Arena.create(PAGE), np.arange(GROWTH_BYTES, dtype=np.uint8)
    theirs, fd = Arena.attach(os.dup(arena.fd)), arena.fd
    (ref,) = arena.put([np.arange(4)]).arrays
    array = arena.get(ref)
    (unread,) = arena.put([large]).arrays
    arena.close()
    arena.close()
    assert array.tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    with pytest.raises(OSError, match="closed"):
        arena.put([large])
    theirs.close()
    assert same(theirs.get(unread), large)
    with pytest.raises(WireError):
        theirs.memory(2 * arena.size_bytes, 1)


def stamp(shared: SharedBuffer, offset: int) -> int:
    (number,) = struct.unpack("<Q", os.pread(shared.fd, 8, offset - 8))
    return int(number)


class Allocating(RuleBasedStateMachine):
    """Any order of allocating and freeing: what was written stays, byte for byte.

    Each array has a generation of its own, which is void once its record is freed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.growing_slowly = mock.patch("edl.proto.arena.GROWTH_BYTES", PAGE)
        self.growing_slowly.start()
        self.arena = SharedBuffer.create(PAGE)
        self.held: dict[int, tuple[Record, list[Array]]] = {}
        self.fill = 0
        self.generations: set[int] = set()

    @rule(sizes=st.lists(st.sampled_from([0, 1, 64, 65, 1000, PAGE, 3 * PAGE + 1]), max_size=3))
    def put(self, sizes: list[int]) -> None:
        self.fill = (self.fill + 1) % 251
        values = [np.full(size, self.fill, dtype=np.uint8) for size in sizes]
        record = self.arena.put(values)
        assert record.offset not in self.held
        self.held[record.offset] = (record, values)
        for ref in record.arrays:
            generation = stamp(self.arena, ref.offset)
            assert generation not in {0, *self.generations}
            self.generations.add(generation)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        record, _ = self.held.pop(offset)
        self.arena.free(offset)
        assert all(stamp(self.arena, ref.offset) == 0 for ref in record.arrays)
        with pytest.raises(KeyError):
            self.arena.free(offset)

    @invariant()
    def nothing_overlaps(self) -> None:
        assert self.arena.used_bytes == sum(record.nbytes for record, _ in self.held.values())
        end = 0
        for offset, (record, values) in sorted(self.held.items()):
            assert offset >= end
            end = offset + record.nbytes
            for ref, value in zip(record.arrays, values, strict=True):
                assert ref.offset >= offset + ALIGNMENT
                found = self.arena.get(ref)
                assert found.tobytes() == value.tobytes()
        assert end <= self.arena.size_bytes

    def teardown(self) -> None:
        for offset in list(self.held):
            self.arena.free(offset)
        assert self.arena.used_bytes == 0
        size = self.arena.size_bytes
        self.arena.put([np.zeros(size - ALIGNMENT, dtype=np.uint8)])  # in one piece again
        assert self.arena.used_bytes == self.arena.size_bytes == size
        self.arena.close()
        self.growing_slowly.stop()


Allocating.TestCase.settings = settings(stateful_step_count=25)
TestAllocating = Allocating.TestCase


@pytest.fixture
def shared() -> Iterator[SharedBuffer]:
    with closing(SharedBuffer.create(mmap.PAGESIZE)) as made:
        yield made


def test_it_never_becomes_smaller(shared: SharedBuffer) -> None:
    with pytest.raises(PermissionError):
        os.ftruncate(shared.fd, 0)


@pytest.mark.parametrize("offset", [-64, 0, 7, 1 << 40])
def test_a_generation_is_that_of_an_array(shared: SharedBuffer, offset: int) -> None:
    with pytest.raises(WireError, match=f"no array lies at byte {offset} "):
        shared.generation(offset)


def test_a_key_names_a_descriptor_or_a_file() -> None:
    assert descriptor_of(key_of(77, 5)) == (77, 5)
    for name in ("edl-x", "edl-fd-1", "edl-fd--1-2", "edl-fd-1-2x", "edl-fd-٣-2", "edl-fd-0-1"):
        assert descriptor_of(name) is None
