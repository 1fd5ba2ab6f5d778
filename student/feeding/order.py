"""The order of an epoch: the ids that the feed's own sampler draws under (seed, epoch).

A *position* is a place in this order. Every rank draws the same one, so positions name samples
among all of them; the feed's loader then reads whichever ids it is told, with its own workers and
its own collating.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ...distill_reader.sources.batched import Batched
from ...distill_reader.sources.map_style import (
    BatchLoader,
    EpochPlan,
    loader_of,
    own_ranks,
    seeded,
    with_inner,
)
from ...distill_reader.sources.source import tell_epoch
from ...errors import UsageError


class Ordered:
    """A feed whose samples have ids: its epochs' orders, and its loader.

    Args:
        feed: a `DataLoader` of Paddle or PyTorch over a map-style data set, or a `Batched`.
        seed: of the order; the same for all ranks.

    Attributes:
        batch_size: of the feed's own batches; None where it does not say.
        keeps: whether the loader's workers work for one epoch after another.

    Raises:
        UsageError: it has no ids, or its sampler divides them among ranks by itself.
    """

    def __init__(self, feed: Any, seed: int) -> None:
        if why := why_not(feed):
            raise UsageError(why)
        loader = loader_of(feed)
        assert loader is not None  # else there were a reason
        self._loader: BatchLoader = loader
        self._samplers = with_inner(loader.batch_sampler)
        self._seed = seed
        self._drawn: tuple[int, list[Any]] = (-1, [])
        self.batch_size: int | None = getattr(loader.batch_sampler, "batch_size", None)
        self.keeps = loader.keeps

    def identity(self) -> dict[str, Any]:
        """What has to be equal for positions to name the same samples, as JSON values."""
        names = [type(sampler).__name__ for sampler in self._samplers]
        samples = _length(self._loader.dataset)
        return {"sampler": " of ".join(names), "seed": self._seed, "samples": samples}

    def total(self, epoch: int) -> int:
        """How many positions the epoch has."""
        if self._drawn[0] != epoch:
            self._tell(epoch)
            with seeded(self._seed, epoch, *self._samplers):
                self._draw(epoch)
        return len(self._drawn[1])

    def begin(self, epoch: int, plan_of: Callable[[Sequence[Any]], EpochPlan]) -> Iterator[Any]:
        """Have the loader read what `plan_of(ids of the epoch in order)` lists, batch by batch."""
        self._tell(epoch)
        with seeded(self._seed, epoch, *self._samplers):
            # Drawn anew even where it is known: workers get their seeds behind it, as when the
            # loader reads its own epoch.
            return self._loader.read(plan_of(self._draw(epoch)))

    def close(self) -> None:
        """End the workers that the loader keeps."""
        self._loader.close()

    def _tell(self, epoch: int) -> None:
        if callable(getattr(self._loader.dataset, "set_epoch", None)):
            self._loader.close()  # workers that were kept have copies, which would not hear of it
        tell_epoch(epoch, *self._samplers, self._loader.dataset)

    def _draw(self, epoch: int) -> list[Any]:
        sampler = self._loader.batch_sampler
        most = 2 * len(sampler) + 1000  # lengths are estimates at times
        ids: list[Any] = []
        for number, batch in enumerate(sampler):
            if number > most:
                raise UsageError(
                    f"the batch sampler says that it has {len(sampler)} batches and yields more"
                    f" than {most}; an epoch needs an end"
                )
            ids.extend(batch)
        self._drawn = (epoch, ids)
        return ids


def why_not(feed: Any) -> str:
    """Why the samples of a feed cannot be dealt out one by one, and what to give; "": they can."""
    loader = loader_of(feed)
    if loader is None:
        return (
            f"the batches of a {type(feed).__name__} have no ids, so that its samples cannot be"
            f" dealt out among ranks that come and go; {_GIVE}"
        )
    if isinstance(feed, Sequence) and not isinstance(feed, Batched):
        return (
            f"a {type(feed).__name__} of finished batches cannot be dealt out sample by sample;"
            f" {_GIVE}"
        )
    if (own := own_ranks(with_inner(loader.batch_sampler))) is not None:
        return (
            f"the loader's sampler divides the samples itself, for rank {own[0]} of {own[1]};"
            " give the loader a sampler that knows nothing of ranks, such as Paddle's BatchSampler"
        )
    if getattr(feed, "in_order", True) is False:
        return "the loader gives batches in any order: leave in_order=False away"
    return ""


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # its sampler knows what there is
        return None


_GIVE = (
    "give feed() a map-style DataLoader of Paddle or PyTorch, or Batched(dataset, batch_size), or"
    " keep the number of nodes fixed, as with --nodes 2:2"
)
