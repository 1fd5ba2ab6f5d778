"""Batches without a framework's loader: of a map-style data set or a generator function.

`Batched` stacks the samples of a data set. Generator functions yield samples, lists of samples or
batches, like the three kinds of readers of early Paddle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ...runtime.errors import BatchError, UsageError
from ..setting_checks import integer
from ..structure import sequence_like
from .source import set_epoch_of

Collate = Callable[[list[Any]], Any]


class Batched:
    """The samples of a map-style data set in batches; can be iterated repeatedly.

    A reader resumes it exactly and divides it among ranks by sample ids, like a framework's loader.

    Args:
        dataset: has `len()`, and a sample for each index below its length. A sample is a tuple,
            list or dict of numpy arrays and numbers, or a single array.
        batch_size: samples per batch.
        shuffle: use a different order in each epoch, which follows from the reader's `seed`.
        drop_last: omit the last batch if it is not full.
        collate: makes a batch of a list of samples; by default, stacks field by field.

    Raises:
        UsageError: `batch_size` is no integer above 0, or `dataset` is not a map-style data set.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        collate: Collate | None = None,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise UsageError(
                "a data set has len() and returns a sample for each index, a"
                f" {type(dataset).__name__} does not; for samples that are iterated, use"
                " DistilReader.from_sample_generator(...)"
            )
        self.dataset = dataset
        self.batch_sampler = _Sampler(dataset, checked_size(batch_size), shuffle, drop_last)
        self.collate = collate or stack

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __iter__(self) -> Iterator[Any]:
        return self.batches_of(self.batch_sampler)

    def batches_of(self, ids: Any) -> Iterator[Any]:
        """Yield a batch for each list of sample ids."""
        for batch_ids in ids:
            yield self.collate([self.dataset[sample_id] for sample_id in batch_ids])


class _Sampler:
    """Yields the sample ids of each batch; shuffles by numpy's global generator, like Paddle."""

    def __init__(self, dataset: Any, batch_size: int, shuffle: bool, drop_last: bool) -> None:
        self._dataset = dataset
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last

    def __len__(self) -> int:
        return len(range(0, self._end(), self.batch_size))

    def __iter__(self) -> Iterator[list[int]]:
        samples = len(self._dataset)
        order = np.random.permutation(samples).tolist() if self.shuffle else list(range(samples))
        for start in range(0, self._end(), self.batch_size):
            yield order[start : start + self.batch_size]

    def _end(self) -> int:
        samples = len(self._dataset)
        return samples - samples % self.batch_size if self.drop_last else samples


def checked_size(batch_size: int) -> int:
    """Return `batch_size`; raises UsageError unless it is an integer above 0."""
    if (size := integer("batch_size", batch_size)) < 1:
        raise UsageError(f"batch_size is a number of samples, at least 1, not {size}")
    return size


def stack(samples: list[Any]) -> Any:
    """Stack samples of equal structure to a batch, each field along a new first axis.

    Arrays and numbers become arrays; other values (a name, None) become lists.

    Raises:
        BatchError: samples differ in their fields or in the shapes of arrays.
    """
    return _stacked(samples, "")


def _stacked(values: list[Any], where: str) -> Any:
    first = values[0]
    if isinstance(first, Mapping):
        keys = list(first)
        _agree(values, where, lambda value: value.keys() == first.keys(), f"the fields {keys}")
        return {
            key: _stacked([value[key] for value in values], f"{where}[{key!r}]") for key in keys
        }
    if isinstance(first, (tuple, list)):
        count = len(first)
        _agree(values, where, lambda value: len(value) == count, f"{count} fields")
        columns = [_stacked([v[i] for v in values], f"{where}[{i}]") for i in range(count)]
        return sequence_like(first, columns)
    if isinstance(first, (str, bytes)):  # also numpy's, which have __array__
        return values
    if isinstance(first, (bool, int, float)) or hasattr(first, "__array__"):  # tensors have it too
        return _array(values, where)
    return values


def _array(values: list[Any], where: str) -> Any:
    arrays = [np.asarray(value) for value in values]
    shapes = sorted({array.shape for array in arrays})
    if len(shapes) > 1:
        raise BatchError(
            f"samples of one batch have different shapes{_at(where)}: {shapes[:4]}; bring them to"
            " one shape, or give collate=, a function that makes a batch of a list of samples"
        )
    return np.stack(arrays)


def _agree(values: list[Any], where: str, holds: Callable[[Any], bool], what: str) -> None:
    kind = type(values[0])
    for place, value in enumerate(values):
        if not isinstance(value, kind) or not holds(value):
            raise BatchError(
                f"samples of one batch differ{_at(where)}: the first is a {kind.__name__} of"
                f" {what}, sample {place} is {str(value)[:80]!r}; if samples may differ, give"
                " collate="
            )


def _at(where: str) -> str:
    return f" at sample{where}" if where else ""


#: A generator function; called once per epoch.
GeneratorFunction = Callable[[], Iterable[Any]]


class Generated:
    """The batches of a generator function; can be iterated repeatedly.

    Args:
        generator: the function; called once per epoch.
        batches_of: makes batches of the values that the generator yields.

    Raises:
        UsageError: `generator` is not a function: a generator can be read only once.
    """

    def __init__(
        self, generator: GeneratorFunction, batches_of: Callable[[Iterable[Any]], Iterator[Any]]
    ) -> None:
        if not callable(generator):
            raise UsageError(
                f"give the function that makes the generator, not the generator itself: a"
                f" {type(generator).__name__} can be read only once"
            )
        self.generator = generator
        self._batches_of = batches_of

    def set_epoch(self, epoch: int) -> None:
        """Forward the call to `generator` if it has this method."""
        set_epoch_of(epoch, self.generator)

    def __iter__(self) -> Iterator[Any]:
        values = self.generator()
        if not isinstance(values, Iterable):
            raise UsageError(
                f"the function that makes the generator returned a {type(values).__name__}, which"
                " cannot be iterated; have the function yield, or return an iterable"
            )
        return self._batches_of(values)


def of_samples(
    generator: GeneratorFunction, batch_size: int, drop_last: bool, collate: Collate | None
) -> Generated:
    """Make batches of the samples that a generator function yields."""
    size, make = checked_size(batch_size), collate or stack

    def batches(samples: Iterable[Any]) -> Iterator[Any]:
        gathered: list[Any] = []
        for sample in samples:
            gathered.append(sample)
            if len(gathered) == size:
                yield make(gathered)
                gathered = []
        if gathered and not drop_last:
            yield make(gathered)

    return Generated(generator, batches)


def of_sample_lists(generator: GeneratorFunction, collate: Collate | None) -> Generated:
    """Make a batch of each list of samples that a generator function yields."""
    make = collate or stack

    def batches(lists: Iterable[Any]) -> Iterator[Any]:
        for samples in lists:
            if not isinstance(samples, (list, tuple)) or not samples:
                raise BatchError(
                    "a sample-list generator yields lists of at least one sample, not"
                    f" {str(samples)[:80]!r}"
                )
            yield make(list(samples))

    return Generated(generator, batches)


def of_batches(generator: GeneratorFunction) -> Generated:
    """Pass on the batches that a generator function yields."""
    return Generated(generator, iter)
