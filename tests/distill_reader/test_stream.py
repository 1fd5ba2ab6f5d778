"""Order, epochs and ends of the stream between source and training loop."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from edl.distill_reader.labelled import Labels, Pulled
from edl.distill_reader.progress import Place, Progress
from edl.distill_reader.stream import Stream
from edl.distill_reader.structure import take_apart
from edl.errors import EngineLost, NoTeacherAvailable, PoisonBatch
from edl.proto.arena import Record

X = np.arange(4.0).reshape(2, 2)
PARTS = take_apart(X)
RECORD = Record(0, 64, ())
PLACE = Place(0, {})
SOFT = np.ones((2, 1))


@pytest.fixture
def labels() -> Labels:
    return Labels({"y": SOFT}, RECORD)


def begin(stream: Stream) -> int:
    stream.begin()
    return stream.epoch


def add(stream: Stream, epoch: int) -> Pulled:
    pulled = stream.add(epoch, RECORD, [X], PARTS, PLACE)
    assert pulled is not None
    return pulled


def test_batches_are_taken_in_order_whatever_order_labels_come_in(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    numbers = [add(stream, epoch).number for _ in range(3)]
    for number in reversed(numbers):
        stream.settle(number, labels)
    taken = [stream.take(epoch, 0) for _ in numbers]
    assert [t.pulled.number for t in taken if t] == numbers


@pytest.mark.parametrize("ordered", [True, False])
def test_a_recalled_batch_waits_for_other_labels_and_in_order_so_do_later_ones(
    ordered: bool, labels: Labels
) -> None:
    stream = Stream(ordered=ordered)
    epoch = begin(stream)
    first, second = (add(stream, epoch).number for _ in range(2))
    assert not stream.recall(first), "it has none"
    for number in (first, second):
        stream.settle(number, labels)
    assert stream.recall(first)
    assert not stream.recall(first), "it has none any more"
    taken = stream.take(epoch, 0)
    assert (taken and taken.pulled.number) == (None if ordered else second)
    stream.settle(first, labels)
    taken = stream.take(epoch, 0)
    assert taken is not None
    assert taken.pulled.number == first
    assert not stream.recall(first), "it is taken"


def test_an_error_is_not_recalled() -> None:
    stream = Stream()
    epoch = begin(stream)
    number = add(stream, epoch).number
    stream.settle(number, PoisonBatch("ugly"))
    assert not stream.recall(number)


def test_nothing_to_take_yet_is_none_and_the_end_is_stop_iteration(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    pulled = add(stream, epoch)
    stream.end(epoch, None)
    assert stream.take(epoch, 0) is None
    stream.settle(pulled.number, labels)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(StopIteration):
        stream.take(epoch, 0)


def test_what_the_source_raised_comes_behind_its_batches(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
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
    epoch = begin(stream)
    first, second = add(stream, epoch), add(stream, epoch)
    stream.settle(second.number, PoisonBatch("batch 1"))
    assert stream.take(epoch, 0) is None
    stream.settle(first.number, labels)
    assert stream.take(epoch, 0) is not None
    with pytest.raises(PoisonBatch):
        stream.take(epoch, 0)


def test_failure_comes_behind_what_is_ready(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    pulled = add(stream, epoch)
    stream.settle(pulled.number, labels)
    stream.fail(EngineLost("gone"))
    assert stream.take(epoch, 0) is not None
    with pytest.raises(EngineLost):
        stream.take(epoch, 0)
    epoch = begin(stream)
    with pytest.raises(EngineLost):
        stream.take(epoch, 0)


def test_failure_of_one_epoch_is_forgotten_with_it() -> None:
    stream = Stream()
    epoch = begin(stream)
    stream.fail(NoTeacherAvailable("none"), epoch)
    with pytest.raises(NoTeacherAvailable):
        stream.take(epoch, 0)
    epoch = begin(stream)
    assert stream.take(epoch, 0) is None


def test_failure_of_an_epoch_that_was_left_fails_no_other() -> None:
    stream = Stream()
    old = begin(stream)
    new = begin(stream)
    stream.fail(NoTeacherAvailable("told too late"), old)
    assert stream.take(new, 0) is None
    stream.fail(NoTeacherAvailable("none"), new)
    with pytest.raises(StopIteration):
        stream.take(old, 0)


def test_errors_are_kept_without_what_they_went_through(labels: Labels) -> None:
    """Else the frames of the training loop, and all they refer to, live as long as the stream."""
    stream = Stream()
    epoch = begin(stream)
    poison, lost, own = PoisonBatch("batch 0"), EngineLost("gone"), KeyError("the source's own")
    stream.settle(add(stream, epoch).number, poison)
    for _ in range(2):
        with pytest.raises(PoisonBatch, match="batch 0"):
            stream.take(epoch, 0)
    assert poison.__traceback__ is None
    epoch = begin(stream)
    stream.end(epoch, own)
    with pytest.raises(KeyError) as raised:
        stream.take(epoch, 0)
    assert raised.value is own
    with pytest.raises(StopIteration):
        stream.take(epoch, 0)
    stream.fail(lost)
    with pytest.raises(EngineLost):
        stream.take(epoch, 0)
    assert lost.__traceback__ is None


def test_it_knows_whether_the_training_loop_waits(labels: Labels) -> None:
    def waits() -> bool:
        with stream.held() as held:
            return held.waiting

    stream = Stream()
    epoch = begin(stream)
    number = add(stream, epoch).number
    assert not waits()
    assert stream.take(epoch, 0) is None
    assert waits()
    stream.settle(number, labels)
    assert stream.take(epoch, 0) is not None
    assert not waits()
    assert stream.take(epoch, 0) is None
    epoch = begin(stream)
    assert not waits()


def test_nothing_is_pulled_for_a_stream_that_is_dead() -> None:
    stream = Stream()
    epoch = begin(stream)
    stream.allow(10)
    stream.fail(EngineLost("gone"))
    assert not stream.may_pull(epoch)


def test_a_new_epoch_lets_go_of_what_the_old_one_held(labels: Labels) -> None:
    stream = Stream()
    old = begin(stream)
    first, second = add(stream, old), add(stream, old)
    stream.settle(first.number, labels)
    with stream.held() as held:
        assert (held.labelled, held.unlabelled) == ([first], [second])
    stream.begin()
    with stream.held() as held:
        assert (held.labelled, held.unlabelled) == ([], [])
    assert stream.add(old, RECORD, [X], PARTS, PLACE) is None
    assert not stream.end(old, None)
    assert add(stream, stream.epoch).number > second.number, "numbers never come twice"
    with pytest.raises(StopIteration):
        stream.take(old, 0)


def test_pulling_waits_for_leave_and_ends_with_its_epoch() -> None:
    stream = Stream()
    epoch = begin(stream)
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


def at(ordinal: int) -> Place:
    return Place(ordinal, {"behind": ordinal + 1})


def test_only_what_was_taken_counts_as_delivered(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    numbers = []
    for ordinal in range(3):
        pulled = stream.add(epoch, RECORD, [X], PARTS, at(ordinal))
        assert pulled is not None
        numbers.append(pulled.number)
        stream.settle(pulled.number, labels)
    stream.take(epoch, 0)
    assert stream.progress == Progress(0, 1, 2, {"behind": 1})
    stream.begin(empty=True)
    assert stream.progress == Progress(0, 1, 2, {"behind": 1}), "left, not forgotten"


def test_the_epoch_is_over_when_its_end_is_taken() -> None:
    stream = Stream()
    epoch = begin(stream)
    stream.stand(Progress(4, 7, 70))
    stream.end(epoch, None, {"next": 5})
    assert stream.progress.epoch == 4
    for _ in range(2):
        with pytest.raises(StopIteration):
            stream.take(epoch, 0)
        assert stream.progress == Progress(5, mark={"next": 5})


def test_an_epoch_that_the_source_broke_is_not_over() -> None:
    stream = Stream()
    epoch = begin(stream)
    stream.stand(Progress(4, 7, 70))
    stream.end(epoch, KeyError("the source's own"))
    with pytest.raises(KeyError):
        stream.take(epoch, 0)
    with pytest.raises(StopIteration):
        stream.take(epoch, 0)
    assert stream.progress == Progress(4, 7, 70)


def test_without_an_order_the_first_that_is_labelled_is_taken(labels: Labels) -> None:
    stream = Stream(ordered=False)
    epoch = begin(stream)
    pulled = [stream.add(epoch, RECORD, [X], PARTS, at(ordinal)) for ordinal in range(3)]
    assert stream.take(epoch, 0) is None
    for one in (pulled[2], pulled[1]):
        assert one is not None
        stream.settle(one.number, labels)
        taken = stream.take(epoch, 0)
        assert taken is not None
        assert taken.pulled is one
    assert (stream.progress.batches, sorted(stream.progress.ahead)) == (0, [1, 2])


def test_what_was_delivered_before_is_known_when_it_comes_again() -> None:
    stream = Stream()
    stream.stand(Progress(0, 1, 6, {}, {2: None}))
    epoch = begin(stream)
    assert not stream.had_before(epoch, at(1))
    assert stream.had_before(epoch, at(2))
    assert stream.progress == Progress(0, 1, 6, {}, {2: {"behind": 3}})
    assert not stream.had_before(epoch + 1, at(2))
