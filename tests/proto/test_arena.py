"""Shared memory: what one side writes the other reads, records never overlap, nothing leaks."""

from __future__ import annotations

import json
import os
import threading
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edl.errors import WireError
from edl.proto.arena import ALIGNMENT, GROWTH_BYTES, Arena, ArrayRef, Record
from edl.proto.datatypes import Array

from .strategies import arrays, same

PAGE = 4096


def over_the_wire(ref: ArrayRef) -> ArrayRef:
    """As the other process gets it: through JSON."""
    return ArrayRef.from_json(json.loads(json.dumps(ref.to_json())))


@given(st.lists(arrays().filter(lambda array: array.dtype != np.object_), max_size=4))
def test_what_one_side_puts_the_other_gets(values: list[Array]) -> None:
    ours = Arena.create(PAGE)
    theirs = Arena.attach(os.dup(ours.fd))
    try:
        record = ours.put(values)
        for ref, value in zip(record.arrays, values, strict=True):
            got = theirs.get(over_the_wire(ref))
            assert same(got, value)
            assert got.dtype == value.dtype
            assert ref.offset % ALIGNMENT == 0
            assert record.offset <= ref.offset
            assert ref.offset + value.nbytes <= record.offset + record.nbytes
    finally:
        ours.close()
        theirs.close()


@pytest.fixture
def arena() -> Any:
    made = Arena.create(PAGE)
    yield made
    made.close()


@pytest.mark.parametrize("dtype", ["M8[ns]", "S3", "U2", "c8", ml_dtypes.float8_e4m3fn])
def test_any_plain_dtype_can_lie_there(arena: Arena, dtype: Any) -> None:
    value = np.zeros(3, dtype=dtype)
    (ref,) = arena.put([value]).arrays
    assert arena.get(over_the_wire(ref)).dtype == value.dtype


@pytest.mark.parametrize("dtype", [np.object_, [("a", "f4"), ("b", "i4")]])
def test_a_dtype_that_cannot_is_refused_and_takes_nothing(arena: Arena, dtype: Any) -> None:
    with pytest.raises(WireError, match="cannot lie in shared memory"):
        arena.put([np.zeros(3), np.zeros(3, dtype=dtype)])
    assert arena.used_bytes == 0


def test_writing_is_seen_at_once(arena: Arena) -> None:
    theirs = Arena.attach(os.dup(arena.fd))
    (ref,) = arena.allocate([(np.dtype("<i4"), (4,))]).arrays
    theirs.get(ref)[:] = [1, 2, 3, 4]
    assert arena.get(ref).tolist() == [1, 2, 3, 4]
    theirs.close()


def test_it_grows_and_the_other_side_follows(arena: Arena) -> None:
    theirs = Arena.attach(os.dup(arena.fd))
    (small,) = arena.put([np.arange(8)]).arrays
    before = arena.get(small)
    (big,) = arena.put([np.arange(GROWTH_BYTES, dtype=np.uint8)]).arrays
    assert arena.size_bytes >= PAGE + GROWTH_BYTES
    assert same(theirs.get(big), np.arange(GROWTH_BYTES, dtype=np.uint8))
    before[0] = 77  # a view of the mapping before it grew is of the same memory
    assert theirs.get(small)[0] == 77
    theirs.close()


def test_what_was_freed_last_is_used_first_and_as_it_was(arena: Arena) -> None:
    """It is likelier than any other memory to be in the processor's cache."""
    value = np.arange(20)
    first, second, third = (arena.put([value, value]) for _ in range(3))
    for record in (third, first):
        arena.free(record.offset)
    assert [arena.put([value, value]) for _ in range(2)] == [first, third]
    assert arena.put([value, value]).offset > third.offset
    assert second.nbytes * 4 == arena.used_bytes


def test_memory_of_records_that_were_freed_serves_others(arena: Arena) -> None:
    for _ in range(3):
        small = [arena.put([np.zeros(PAGE // 8, np.uint8)]) for _ in range(8)]
        for record in small:
            arena.free(record.offset)
        whole = arena.put([np.zeros(PAGE, np.uint8)])
        arena.free(whole.offset)
    assert arena.size_bytes == PAGE
    assert arena.used_bytes == 0


def test_growth_that_is_refused_leaves_it_usable(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, size: int) -> None:
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("edl.proto.arena.os.ftruncate", refuse)
        with pytest.raises(OSError, match="no memory"):
            arena.put([np.zeros(PAGE * 2, dtype=np.uint8)])
    assert arena.used_bytes == 0
    assert arena.size_bytes == PAGE
    arena.put([np.zeros(PAGE * 2, dtype=np.uint8)])
    assert arena.used_bytes == PAGE * 2


def test_two_threads_of_the_attached_side_follow_together(arena: Arena) -> None:
    theirs = Arena.attach(os.dup(arena.fd))
    wrong: list[BaseException] = []
    refs: list[ArrayRef] = []
    ready = threading.Barrier(3)

    def read() -> None:
        try:
            for _ in range(20):
                ready.wait(10)
                assert theirs.get(refs[-1])[-1] == len(refs)
                ready.wait(10)
        except BaseException as error:
            wrong.append(error)
            ready.abort()

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for step in range(1, 21):
            refs += arena.put([np.full(GROWTH_BYTES // 8, step)]).arrays
            ready.wait(10)
            ready.wait(10)
    except threading.BrokenBarrierError:
        pass
    for thread in threads:
        thread.join(10)
    assert not wrong
    theirs.close()


@pytest.mark.parametrize(
    ("shape", "offset"),
    [((PAGE,), 64), ((1,), -64), ((1,), PAGE), ((-1,), 0), ((1 << 40, 1 << 40), 0)],
)
def test_a_reference_outside_is_refused(arena: Arena, shape: tuple[int, ...], offset: int) -> None:
    with pytest.raises(WireError, match=r"of a shared memory of 4096 bytes|negative dimension"):
        arena.get(ArrayRef("<u1", shape, offset))


def test_freed_memory_is_used_again(arena: Arena) -> None:
    for _ in range(100):
        record = arena.put([np.zeros(PAGE, dtype=np.uint8)])
        arena.free(record.offset)
    assert arena.size_bytes == PAGE
    with pytest.raises(KeyError):
        arena.free(record.offset)


def test_closing_leaves_arrays_readable_and_no_descriptor() -> None:
    arena = Arena.create(PAGE)
    fd = arena.fd
    (ref,) = arena.put([np.arange(4)]).arrays
    array = arena.get(ref)
    arena.close()
    arena.close()
    assert array.tolist() == [0, 1, 2, 3]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_closing_leaves_records_readable_that_were_not_looked_at(arena: Arena) -> None:
    theirs = Arena.attach(os.dup(arena.fd))
    (grown,) = arena.put([np.arange(GROWTH_BYTES, dtype=np.uint8)]).arrays
    theirs.close()
    assert same(theirs.get(grown), np.arange(GROWTH_BYTES, dtype=np.uint8))
    with pytest.raises(WireError):
        theirs.memory(2 * arena.size_bytes, 1)


def test_closed_it_does_not_grow() -> None:
    arena = Arena.create(PAGE)
    arena.close()
    with pytest.raises(OSError, match="closed"):
        arena.put([np.zeros(2 * PAGE)])


class Allocating(RuleBasedStateMachine):
    """Any order of allocating and freeing: what was written stays, byte for byte."""

    def __init__(self) -> None:
        super().__init__()
        self.growing_slowly = mock.patch("edl.proto.arena.GROWTH_BYTES", PAGE)
        self.growing_slowly.start()
        self.arena = Arena.create(PAGE)
        self.held: dict[int, tuple[Record, list[Array]]] = {}
        self.fill = 0

    @rule(sizes=st.lists(st.sampled_from([0, 1, 64, 65, 1000, PAGE, 3 * PAGE + 1]), max_size=3))
    def put(self, sizes: list[int]) -> None:
        self.fill = (self.fill + 1) % 251
        values = [np.full(size, self.fill, dtype=np.uint8) for size in sizes]
        record = self.arena.put(values)
        assert record.offset not in self.held
        self.held[record.offset] = (record, values)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.held)))
        del self.held[offset]
        self.arena.free(offset)

    @invariant()
    def nothing_overlaps(self) -> None:
        assert self.arena.used_bytes == sum(record.nbytes for record, _ in self.held.values())
        end = 0
        for offset, (record, values) in sorted(self.held.items()):
            assert offset >= end
            end = offset + record.nbytes
            for ref, value in zip(record.arrays, values, strict=True):
                assert self.arena.get(ref).tobytes() == value.tobytes()
        assert end <= self.arena.size_bytes

    def teardown(self) -> None:
        for offset in list(self.held):
            self.arena.free(offset)
        assert self.arena.used_bytes == 0
        self.arena.put([np.zeros(self.arena.size_bytes, dtype=np.uint8)])  # in one piece again
        size = self.arena.size_bytes
        assert self.arena.used_bytes == size
        self.arena.close()
        self.growing_slowly.stop()


TestAllocating = Allocating.TestCase
