"""Order, epochs and ends of the stream between source and training loop."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edl.distill_reader.stream import Labels, Pulled, Stream
from edl.distill_reader.structure import take_apart
from edl.errors import EngineLost, NoTeacherAvailable, PoisonBatch
from edl.proto.arena import Arena, Record

PARTS = take_apart(np.zeros((2, 2)))
RECORD = Record(0, 64, ())


@pytest.fixture
def labels() -> Labels:
    arena = Arena.create(4096)
    made = Labels(("y",), RECORD, arena)
    arena.close()
    return made


def add(stream: Stream, epoch: int) -> Pulled:
    pulled = stream.add(epoch, RECORD, PARTS)
    assert pulled is not None
    return pulled


def test_batches_are_taken_in_order_whatever_order_labels_come_in(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    numbers = [add(stream, epoch).number for _ in range(3)]
    for number in reversed(numbers):
        assert stream.settle(number, labels)
    taken = [stream.take(epoch, 0) for _ in numbers]
    assert [t.pulled.number for t in taken if t] == numbers


def test_labels_of_a_batch_that_is_not_waiting_are_not_wanted(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    number = add(stream, epoch).number
    assert stream.settle(number, labels)
    assert not stream.settle(number, labels), "settled twice"
    assert not stream.settle(number + 1, labels), "never pulled"
    stream.take(epoch, 0)
    assert not stream.settle(number, labels), "taken already"


def test_nothing_to_take_yet_is_none_and_the_end_is_stop_iteration(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    pulled = add(stream, epoch)
    stream.end(epoch, None)
    assert stream.take(epoch, 0) is None
    stream.settle(pulled.number, labels)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(StopIteration):
        stream.take(epoch, 0)


def test_what_the_source_raised_comes_behind_its_batches(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    pulled = add(stream, epoch)
    error = KeyError("the source's own")
    stream.end(epoch, error)
    stream.settle(pulled.number, labels)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(KeyError) as raised:
        stream.take(epoch, 0)
    assert raised.value is error


def test_poison_is_raised_in_its_place(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    first, second = add(stream, epoch), add(stream, epoch)
    stream.settle(second.number, PoisonBatch("batch 1"))
    assert stream.take(epoch, 0) is None
    stream.settle(first.number, labels)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(PoisonBatch):
        stream.take(epoch, 0)


def test_failure_comes_behind_what_is_ready(labels: Labels) -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    pulled = add(stream, epoch)
    stream.settle(pulled.number, labels)
    stream.fail(EngineLost("gone"), for_good=True)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(EngineLost):
        stream.take(epoch, 0)
    epoch, _, _ = stream.begin()
    with pytest.raises(EngineLost):
        stream.take(epoch, 0)


def test_failure_of_one_epoch_is_forgotten_with_it() -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    stream.fail(NoTeacherAvailable("none"), for_good=False)
    with pytest.raises(NoTeacherAvailable):
        stream.take(epoch, 0)
    epoch, _, _ = stream.begin()
    assert stream.take(epoch, 0) is None


def test_a_new_epoch_gives_back_what_the_old_one_held(labels: Labels) -> None:
    stream = Stream()
    old, _, _ = stream.begin()
    first, second = add(stream, old), add(stream, old)
    stream.settle(first.number, labels)
    new, batches, left = stream.begin()
    assert batches == [first, second]
    assert left == [labels]
    assert stream.add(old, RECORD, PARTS) is None
    assert not stream.end(old, None)
    assert add(stream, new).number > second.number, "numbers never come twice"
    with pytest.raises(StopIteration):
        stream.take(old, 0)


def test_pulling_waits_for_leave_and_ends_with_its_epoch() -> None:
    stream = Stream()
    epoch, _, _ = stream.begin()
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(stream.may_pull(epoch)))
    thread.start()
    stream.allow(1)
    thread.join(5)
    assert answers == [True]
    add(stream, epoch)
    thread = threading.Thread(target=lambda: answers.append(stream.may_pull(epoch)))
    thread.start()
    stream.begin()
    thread.join(5)
    assert answers == [True, False]
