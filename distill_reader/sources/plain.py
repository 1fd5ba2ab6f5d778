"""Step three: any iterable. It is resumed by reading the epoch again, and checked on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from ...errors import UsageError
from ...proto.arena import Array
from ..structure import take_apart
from .source import Mark, close_iterator, tell_epoch
from .trail import Trail


class PlainSource:
    """An iterable of batches that gives the same ones each time it begins the same epoch.

    A mark is the trail of the epoch: who resumes reads as many batches again, and compares.
    """

    kind = "plain"
    deals = False

    def __init__(self, iterable: Iterable[Any]) -> None:
        self._iterable = iterable

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]  # one without len() says so itself

    def identity(self) -> dict[str, Any]:
        return {"type": type(self._iterable).__qualname__}

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _PlainReading:
        tell_epoch(epoch, self._iterable)
        known = Trail() if mark is None else Trail.from_json(mark)
        return _PlainReading(iter(self._iterable), epoch, known)

    def close(self) -> None:
        pass


class _PlainReading:
    def __init__(self, batches: Iterator[Any], epoch: int, known: Trail) -> None:
        self.start = known.to_json() if known.length else None
        self._batches = batches
        self._epoch = epoch
        self._known = known
        self._trail = Trail()

    def __next__(self) -> Any:
        while self._trail.length < self._known.length:
            self._replay()
        return next(self._batches)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        self._trail = self._trail.followed(arrays)
        return self._trail.to_json()

    def end(self) -> None:
        return None

    def close(self) -> None:
        close_iterator(self._batches)

    def _replay(self) -> None:
        known, length = self._known, self._trail.length
        try:
            batch = next(self._batches)
        except StopIteration:
            raise UsageError(
                f"epoch {self._epoch} of the source has only {length} batches now, and"
                f" {known.length} of it were delivered before; {_WHAT_HELPS}"
            ) from None
        self._trail = self._trail.followed(take_apart(batch).arrays)
        if self._trail.length == known.length and (parted := known.leaves(self._trail)):
            raise UsageError(
                f"epoch {self._epoch} of the source is not the one that was read before: it goes"
                f" another way between batches {parted[0]} and {parted[1]}; {_WHAT_HELPS}"
            )


_WHAT_HELPS = (
    "a source can only be resumed if it gives an epoch's batches again: seed its order by"
    " set_epoch(epoch), which the reader calls, or give a map-style loader"
)
