"""The three kinds of readers that Paddle knew before it had data sets: functions of generators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ...errors import BatchError, UsageError
from .batched import Collate, checked_size, stack
from .source import tell_epoch

#: Called once for each epoch.
MakesGenerator = Callable[[], Iterable[Any]]


class Generated:
    """The batches that a function of a generator gives; anew in each epoch.

    Args:
        generator: the function; called for each epoch.
        batches_of: makes batches of what it yields.

    Raises:
        UsageError: it is no function: a generator itself can be read only once.
    """

    def __init__(
        self, generator: MakesGenerator, batches_of: Callable[[Iterable[Any]], Iterator[Any]]
    ) -> None:
        if not callable(generator):
            raise UsageError(
                f"give the function that makes the generator, not what it returns: a"
                f" {type(generator).__name__} can be read only once"
            )
        self.generator = generator
        self._batches_of = batches_of

    def set_epoch(self, epoch: int) -> None:
        """Told to the function, where it is an object that has this, too."""
        tell_epoch(epoch, self.generator)

    def __iter__(self) -> Iterator[Any]:
        made = self.generator()
        if not isinstance(made, Iterable):
            raise UsageError(
                f"the function that makes the generator returned a {type(made).__name__}, which"
                " cannot be iterated; have it yield, or return an iterable"
            )
        return self._batches_of(made)


def of_samples(
    generator: MakesGenerator, batch_size: int, drop_last: bool, collate: Collate | None
) -> Generated:
    """Each yield is a sample; `batch_size` of them make a batch."""
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


def of_sample_lists(generator: MakesGenerator, collate: Collate | None) -> Generated:
    """Each yield is a list of the samples of one batch."""
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


def of_batches(generator: MakesGenerator) -> Generated:
    """Each yield is a batch."""

    def batches(yielded: Iterable[Any]) -> Iterator[Any]:
        yield from yielded

    return Generated(generator, batches)
