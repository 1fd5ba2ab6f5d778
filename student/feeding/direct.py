"""The batches of a source without teachers: what a reader gives, less the soft labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...distill_reader.sources.source import ResumableSource
from ...distill_reader.structure import take_apart


class DirectReader:
    """Iterates a source in the training loop's own thread: for jobs that ask no teacher.

    Batches are the source's own, equal to the last bit to those that a `DistilReader` over it
    gives; one that is iterated again goes on with the next epoch.

    Args:
        source: of this rank.
        epoch: number of the first epoch.
    """

    def __init__(self, source: ResumableSource, epoch: int = 0) -> None:
        self._source = source
        self._epoch = epoch
        self._mark: Any = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; it is begun now."""
        reading = self._source.begin(self._epoch, 0, self._mark)
        self._epoch += 1
        self._mark = None
        return self._batches(reading)

    def _batches(self, reading: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    batch = next(reading)
                except StopIteration:
                    self._mark = reading.end()
                    return
                reading.mark(take_apart(batch).arrays)
                yield batch
        finally:
            reading.close()

    def close(self) -> None:
        """End what the source keeps."""
        self._source.close()
