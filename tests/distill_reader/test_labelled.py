"""What the training loop gets is made when labels come; what nobody gets is let go of."""

from __future__ import annotations

import pytest

from edl.distill_reader.labelled import Labels
from edl.distill_reader.ring import Leases
from edl.distill_reader.stream import Stream
from edl.distill_reader.structure import take_apart
from edl.errors import UsageError
from edl.proto.arena import Arena
from edl.tests.distill_reader.test_stream import PLACE, RECORD, SOFT, X, add, begin


@pytest.fixture
def labels() -> Labels:
    return Labels({"y": SOFT}, RECORD)


def is_labelled(stream: Stream, number: int) -> bool:
    with stream.held() as held:
        return number in [pulled.number for pulled in held.labelled]


def test_labels_of_a_batch_that_is_not_waiting_are_let_go_of() -> None:
    stream, arena = Stream(), Arena.create(4096)
    leases = Leases(arena)

    def settled(number: int) -> int:
        record = arena.allocate([(SOFT.dtype, SOFT.shape)])
        views = leases.views(record)
        stream.settle(number, Labels({"y": views.pop()}, record, leases))
        return record.offset

    epoch = begin(stream)
    number = add(stream, epoch).number
    first = settled(number)
    assert [settled(number)] == [*leases.over()], "settled before"
    assert [settled(number + 1)] == [*leases.over()], "never pulled"
    taken = stream.take(epoch, 0)
    assert [settled(number)] == [*leases.over()], "taken already"
    assert is_labelled(stream, number) is False
    del taken
    assert [first] == [*leases.over()], "the training loop is done with it"
    number = add(stream, epoch).number
    left = settled(number)
    stream.begin()
    assert [left] == [*leases.over()], "its epoch was left"
    arena.close()


def test_labels_that_are_recalled_are_the_engines_own_again() -> None:
    stream, arena = Stream(), Arena.create(4096)
    leases = Leases(arena)
    epoch = begin(stream)
    number = add(stream, epoch).number
    record = arena.allocate([(SOFT.dtype, SOFT.shape)])
    stream.settle(number, Labels({"y": leases.views(record).pop()}, record, leases))
    assert stream.recall(number)
    assert [*leases.over()] == []
    stream.settle(number, Labels({"y": leases.views(record).pop()}, record, leases))
    assert stream.take(epoch, 0) is not None
    assert [*leases.over()] == [record.offset]
    arena.close()


def test_what_the_training_loop_gets_is_made_before_it_asks(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    stream.settle(add(stream, epoch).number, labels)
    taken = stream.take(epoch, 0)
    assert taken is not None
    assert taken.batch() is taken.made
    x, soft = taken.batch()
    assert (x is X, soft is SOFT) == (True, True)


def test_what_cannot_be_made_is_an_error_of_the_training_loop(labels: Labels) -> None:
    stream = Stream()
    epoch = begin(stream)
    pulled = stream.add(epoch, RECORD, [X], take_apart({"y": X}), PLACE)
    assert pulled is not None
    stream.settle(pulled.number, labels)
    taken = stream.take(epoch, 0)
    assert taken is not None
    with pytest.raises(UsageError, match="the name of a field"):
        taken.batch()


def test_tensors_are_made_when_the_training_loop_takes_them(labels: Labels) -> None:
    torch = pytest.importorskip("torch")
    stream = Stream()
    epoch = begin(stream)
    pulled = stream.add(epoch, RECORD, [X], take_apart(torch.from_numpy(X)), PLACE)
    assert pulled is not None
    stream.settle(pulled.number, labels)
    taken = stream.take(epoch, 0)
    assert taken is not None
    assert taken.made is None
    assert all(isinstance(one, torch.Tensor) for one in taken.batch())
