"""Functions of generators, as readers of Paddle 1.x were: of samples, lists of them, batches."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from edl.distill_reader.sources import source_of
from edl.distill_reader.sources.batched import (
    Batched,
    of_batches,
    of_sample_lists,
    of_samples,
    stack,
)
from edl.runtime.errors import BatchError, UsageError
from edl.scheduler.students.shards import RankShard

Pair = namedtuple("Pair", "x y")


def samples(count: int = 7) -> Iterator[Any]:
    for number in range(count):
        yield np.full((2, 2), number, np.float32), number


def shapes(batches: Any) -> list[tuple[int, ...]]:
    return [x.shape for x, _ in batches]


def test_samples_are_stacked_anew_in_each_epoch() -> None:
    source = of_samples(samples, 3, False, None)
    for _ in range(2):
        batches = list(source)
        assert shapes(batches) == [(3, 2, 2), (3, 2, 2), (1, 2, 2)]
        x, ids = batches[1]
        np.testing.assert_array_equal(ids, [3, 4, 5])
        np.testing.assert_array_equal(x[:, 0, 0], ids)
        assert (x.dtype, ids.dtype) == (np.float32, np.int64)


def test_samples_of_any_structure_are_stacked() -> None:
    assert stack([{"x": 1, "s": "a"}, {"x": 2, "s": "b"}])["s"] == ["a", "b"]
    assert stack([{"x": "1", "s": "a"}, {"s": "b", "x": "2"}]) == {"x": ["1", "2"], "s": ["a", "b"]}
    assert stack(list(np.array(["a", "bc"]))) == ["a", "bc"]
    batch = stack([Pair(np.zeros(2), 1), Pair(np.ones(2), 2)])
    assert isinstance(batch, Pair)
    np.testing.assert_array_equal(batch.y, [1, 2])
    assert stack([np.zeros(2), np.ones(2)]).shape == (2, 2)
    assert isinstance(stack([[1, 2], [3, 4]]), list)
    assert stack([(np.uint8(1),), (np.uint8(2),)])[0].dtype == np.uint8


def test_collate_makes_of_ragged_samples_what_it_wants() -> None:
    def ragged() -> Iterator[Any]:
        yield from (np.arange(length) for length in (2, 3, 1))

    def padded(rows: list[Any]) -> Any:
        return np.stack([np.pad(row, (0, 3 - len(row))) for row in rows])

    (batch,) = of_samples(ragged, 3, False, padded)
    np.testing.assert_array_equal(batch, [[0, 1, 0], [0, 1, 2], [0, 0, 0]])
    (batch,) = of_sample_lists(lambda: [list(ragged())], list)
    assert [len(row) for row in batch] == [2, 3, 1]


@pytest.mark.parametrize(
    ("odd", "what"),
    [
        (
            [(np.zeros(2), 1), (np.zeros(3), 2)],
            r"shapes at sample\[0\]: \[\(2,\), \(3,\)\].*collate=",
        ),
        ([(1, 2), (1, 2, 3)], "a tuple of 2 fields, sample 1"),
        ([{"x": 1}, {"y": 1}], r"a dict of the fields \['x'\], sample 1"),
        ([{"x": (1, 2)}, {"x": [1, 2]}], r"at sample\['x'\]"),
    ],
)
def test_samples_that_differ_are_refused(odd: list[Any], what: str) -> None:
    with pytest.raises(BatchError, match=what):
        stack(odd)


def test_a_function_that_has_set_epoch_is_told_the_epoch() -> None:
    class Shuffled:
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __call__(self) -> Iterator[Any]:
            yield np.full((1, 1), self.epoch)

    source = source_of(of_batches(Shuffled()), RankShard(), 0)
    assert [int(next(source.begin(epoch, 0, None))[0, 0]) for epoch in (0, 4)] == [0, 4]


ITERATOR: Any = samples()
NOTHING: Any = lambda: None  # noqa: E731


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: of_batches(ITERATOR), "give the function that makes the generator"),
        (lambda: iter(of_samples(NOTHING, 2, False, None)), r"a NoneType.*have the function yield"),
        (lambda: Batched(samples(), 2), r"a data set has len\(\).*from_sample_generator"),
        (lambda: Batched(3, 2), r"a data set has len\(\).*from_sample_generator"),
        (lambda: Batched(samples, 2), r"a data set has len\(\).*from_sample_generator"),
        (lambda: of_samples(samples, 0, False, None), "at least 1, not 0"),
        (lambda: Batched([1], True), "batch_size is a whole number, not True"),
        (lambda: [*of_sample_lists(lambda: [[]], None)], "yields lists of at least one sample"),
    ],
)
def test_what_is_no_source_of_samples_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises((UsageError, BatchError), match=words):
        make()
