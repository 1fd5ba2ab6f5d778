"""The stream between source and training loop, its progress, and the ring of its batches."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import closing
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.batch_stream import BatchLabels, BatchStream
from edl.distill_reader.ring import Ring, ViewTracker
from edl.distill_reader.saved_state import StreamPosition
from edl.distill_reader.structure import take_apart
from edl.proto.arena import Arena, Array, Record
from edl.runtime.errors import EdlError, EngineLost, NoTeacherAvailable, PoisonBatch

X = np.arange(4.0).reshape(2, 2)
PARTS = take_apart(X)
RECORD = Record(0, 64, ())
SOFT = np.ones((2, 1))
LABELS = BatchLabels({"y": SOFT}, RECORD)


def at(ordinal: int) -> StreamPosition:
    return StreamPosition(ordinal, {"behind": ordinal + 1})


class Played(BatchStream):
    """A stream in an epoch; batches are pulled, labelled and taken as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def pull(self, count: int = 1) -> list[int]:
        """The numbers of these batches."""
        pulled = [self.add(self.epoch, RECORD, [X], PARTS, at(n)) for n in range(count)]
        return [one.number for one in pulled if one]

    def label(self, *numbers: int, labels: BatchLabels | EdlError = LABELS) -> None:
        for number in numbers:
            self.set_outcome(number, labels)
        self.release(numbers)

    def taken(self) -> int | None:
        """Take the next batch; its number, or None where there is none yet."""
        if (labelled := self.next(self.epoch, 0)) is None:
            return None
        assert self.take(self.epoch, labelled)
        return labelled.ring_batch.number


@pytest.fixture
def stream() -> Played:
    return Played()


def test_batches_are_taken_as_they_are_released(stream: Played) -> None:
    first, second, third = stream.pull(3)
    for number in (first, second, third):
        stream.set_outcome(number, LABELS)
    assert stream.taken() is None
    stream.withdraw(first)
    stream.release([third, second])
    assert [stream.taken(), stream.taken(), stream.taken()] == [third, second, None]
    stream.label(first)
    assert stream.taken() == first
    stream.release([first, third + 1])
    assert stream.taken() is None, "it is taken already; the other was never pulled"


def test_a_batch_is_the_next_one_until_it_is_taken(stream: Played) -> None:
    stream.label(*stream.pull())
    labelled = stream.next(stream.epoch, 0)
    assert labelled is not None
    assert stream.next(stream.epoch, 0) is labelled
    assert stream.taken() == labelled.ring_batch.number
    assert not stream.take(stream.epoch, labelled), "it is taken"


def test_a_lost_engine_is_raised_behind_what_is_ready_and_in_every_epoch(stream: Played) -> None:
    stream.label(*stream.pull())
    stream.fail(EngineLost("gone"))
    assert stream.taken() is not None
    for _ in range(2):
        with pytest.raises(EngineLost):
            stream.taken()
        stream.begin()
    stream.allow(10)
    assert not stream.may_pull(stream.epoch)


def test_the_failure_of_an_epoch_is_none_of_another(stream: Played) -> None:
    old = stream.epoch
    stream.fail(NoTeacherAvailable("none"), old)
    with pytest.raises(NoTeacherAvailable):
        stream.taken()
    stream.begin()
    stream.fail(NoTeacherAvailable("told too late"), old)
    assert stream.taken() is None
    stream.fail(NoTeacherAvailable("none"), stream.epoch)
    with pytest.raises(StopIteration):
        stream.next(old, 0)


def test_errors_are_kept_without_their_tracebacks(stream: Played) -> None:
    """Else the frames of the training loop, and all they refer to, live as long as the stream."""
    poison, lost, own = PoisonBatch("batch 0"), EngineLost("gone"), KeyError("the source's own")
    stream.label(*stream.pull(), labels=poison)
    for _ in range(2):
        with pytest.raises(PoisonBatch, match="batch 0"):
            stream.taken()
    assert poison.__traceback__ is None
    stream.begin()
    stream.end(stream.epoch, own)
    with pytest.raises(KeyError) as raised:
        stream.taken()
    assert raised.value is own
    with pytest.raises(StopIteration):
        stream.taken()
    stream.fail(lost)
    with pytest.raises(EngineLost):
        stream.taken()
    assert lost.__traceback__ is None


def test_a_new_epoch_drops_what_the_old_one_held(stream: Played) -> None:
    def snapshot() -> tuple[list[int], list[int], list[int]]:
        with stream.snapshot() as snapshot:
            return (
                [one.number for one in snapshot.batches],
                [*snapshot.outcomes],
                [*snapshot.released],
            )

    old, (first, second, third) = stream.epoch, stream.pull(3)
    stream.label(first)
    stream.set_outcome(second, LABELS)
    assert snapshot() == ([first, second, third], [first, second], [first])
    stream.begin()
    assert snapshot() == ([], [], [])
    assert stream.add(old, RECORD, [X], PARTS, at(0)) is None
    assert not stream.end(old, None)
    assert stream.pull() > [third], "numbers never come twice"
    with pytest.raises(StopIteration):
        stream.next(old, 0)


# --- labels


def test_labels_of_a_batch_that_is_not_waiting_are_freed(stream: Played) -> None:
    arena = Arena.create(4096)
    tracker = ViewTracker(arena)

    def settled(number: int) -> int:
        record = arena.allocate([(SOFT.dtype, SOFT.shape)])
        stream.label(number, labels=BatchLabels({"y": tracker.views(record).pop()}, record))
        return record.offset

    (number,) = stream.pull()
    first = settled(number)
    assert [settled(number)] == [*tracker.released()], "it was labelled before"
    assert [settled(number + 1)] == [*tracker.released()], "it was never pulled"
    taken = stream.next(stream.epoch, 0)
    assert taken is not None
    assert stream.take(stream.epoch, taken)
    assert [settled(number)] == [*tracker.released()], "it is taken already"
    del taken
    assert [first] == [*tracker.released()], "the training loop is done with it"
    (number,) = stream.pull()
    void = settled(number)
    stream.withdraw(number)
    assert [void] == [*tracker.released()], "they are void"
    left = settled(number)
    stream.begin()
    assert [left] == [*tracker.released()], "its epoch was left"
    arena.close()


# --- the ring


@pytest.fixture
def ring() -> Iterator[Ring]:
    ring = Ring()
    yield ring
    ring.close()


def used_with_a_small_batch(ring: Ring) -> int:
    """The bytes in use once another batch was added, which frees what nothing refers to."""
    gc.collect()
    put(ring, np.zeros(1))
    return ring.arena.used_bytes


def put(ring: Ring, *arrays: Array) -> list[Array]:
    return ring.put(arrays)[1]


def test_memory_is_given_back_with_the_last_view(ring: Ring) -> None:
    small = used_with_a_small_batch(ring)
    views = put(ring, np.zeros(100), np.ones(100))
    kept = views[1][10:20].reshape(2, 5)  # a view of a view holds the record too
    del views
    assert used_with_a_small_batch(ring) > small
    np.testing.assert_array_equal(kept, 1.0)
    del kept
    assert used_with_a_small_batch(ring) == small


def test_a_batch_that_cannot_be_copied_leaves_no_record(ring: Ring) -> None:
    class Torn:
        dtype, shape = np.dtype(np.float32), (2,)

        def __array__(self, *_: object, **__: object) -> Array:
            raise ValueError("no numbers")

    small = used_with_a_small_batch(ring)
    with pytest.raises(ValueError, match="no numbers"):
        put(ring, Torn())  # type: ignore[arg-type]
    assert used_with_a_small_batch(ring) == small


def test_no_python_code_runs_where_a_batch_is_let_go() -> None:
    """A signal handler would run in it, and its exception, as of Ctrl-C, would be ignored."""
    called = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    with closing(Arena.create()) as arena:
        tracker = ViewTracker(arena)
        record = arena.allocate([(np.dtype(np.float32), (2, 3))])
        views = tracker.views(record)
        sys.setprofile(note)
        try:
            del views
        finally:
            sys.setprofile(None)
        assert called == []
        assert list(tracker.released()) == [record.offset]
