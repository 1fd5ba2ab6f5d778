"""One iteration of a reader."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ..errors import UsageError
from .pipeline import Pipeline


class Epoch(Iterator[Any]):
    """One iteration of a reader; leaving it early, by `break` or `del`, ends its epoch.

    Raises:
        UsageError: more is asked of it after another epoch has begun: it would seem to have ended.
    """

    def __init__(self, reader: object, pipeline: Pipeline, epoch: int) -> None:
        self._reader = reader  # which must not be collected while it is read
        self._pipeline = pipeline
        self._epoch = epoch
        self._returned_at: float | None = None
        self._ended = False

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        called_at = time.monotonic()
        step_s = None if self._returned_at is None else called_at - self._returned_at
        try:
            batch = self._pipeline.next(self._epoch, step_s)
        except StopIteration:
            if self._pipeline.stream.epoch == self._epoch:
                self._ended = True
                raise
            raise UsageError(
                "this epoch was left unfinished, as another one of the same reader was begun or a"
                " state was loaded; take the batches from the latest iterator, or make two readers"
            ) from None
        self._returned_at = time.monotonic()
        return batch

    def close(self) -> None:
        """Leave the epoch; the reader can be iterated again."""
        self._ended = True
        # Not at once: a generator that delegates to this one calls it when it is collected, which
        # may be inside any call of ours.
        self._pipeline.leave_soon(self._epoch)

    def __del__(self) -> None:
        self._pipeline.leave_soon(self._epoch)
