"""How far the training loop has come in its source: what it has been handed, not what was read."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Self

from .sources.source import Mark

_NOTHING: Final[Mapping[int, Mark | None]] = MappingProxyType({})


class Place(NamedTuple):
    """Where in its epoch a batch stands.

    Attributes:
        ordinal: batches of this rank before it in the epoch.
        mark: where the source stands behind it.
    """

    ordinal: int
    mark: Mark


class Progress(NamedTuple):
    """What of an epoch was delivered.

    Attributes:
        epoch: its number, from 0.
        batches: how many were delivered from its beginning without a gap.
        samples: rows of all that were delivered.
        mark: where the source stands behind those `batches`; None: where it begins by itself.
        ahead: those delivered behind a gap, as with `ordered=False`: their marks by ordinal, None
            for one whose delivery is known from a saved state only.
    """

    epoch: int = 0
    batches: int = 0
    samples: int = 0
    mark: Mark | None = None
    ahead: Mapping[int, Mark | None] = _NOTHING

    def delivered(self, place: Place, samples: int) -> Self:
        """The progress once the batch at `place`, of so many rows, is delivered too.

        One that is read again, having been delivered before, is told with 0 samples.
        """
        samples += self.samples
        if place.ordinal != self.batches:
            return self._replace(samples=samples, ahead={**self.ahead, place.ordinal: place.mark})
        batches, mark, ahead = self.batches + 1, place.mark, self.ahead
        if ahead:
            ahead = {ordinal: mark for ordinal, mark in ahead.items() if ordinal != place.ordinal}
            while (following := ahead.get(batches)) is not None:
                del ahead[batches]
                batches, mark = batches + 1, following
        return type(self)(self.epoch, batches, samples, mark, ahead)
