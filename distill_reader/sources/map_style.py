"""Step one: samples with ids, read in the order of a sampler; resumed and divided exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ...scheduler.shard_plan import Shard, share, steps
from .loaders import Ids, Loader
from .seeding import seeded, with_inner
from .source import Mark, close_iterator, tell_epoch


class MapSource:
    """The batches of a map-style loader whose order follows from a seed and the epoch.

    Before each epoch the sampler is asked for all of its batches of ids, under generators that are
    set by (seed, epoch): so every rank, and who resumes, has the same. The ids of this rank that
    are not delivered yet are what the loader is given to read.

    A mark is the number of batches that were gone when the present group of ranks began with the
    epoch, how many it has, and a digest of their ids.

    Args:
        loader: what reads batches of ids.
        shard: which of them are this rank's. A sampler that divides them itself, such as Paddle's
            `DistributedBatchSampler`, has to agree.
        seed: of the order.

    Raises:
        UsageError: the sampler's own rank or number of ranks is another.
    """

    kind = "map"

    def __init__(self, loader: Loader, shard: Shard, seed: int) -> None:
        self._loader = loader
        self._samplers = with_inner(loader.batch_sampler)
        own = own_ranks(self._samplers)
        if own is not None and shard.world_size > 1 and own != (shard.rank, shard.world_size):
            raise UsageError(
                f"the loader's sampler is for rank {own[0]} of {own[1]}, the reader for rank"
                f" {shard.rank} of {shard.world_size}; give the loader a sampler that knows nothing"
                " of ranks, or leave world_size away"
            )
        self.deals = own is None
        self._shard = shard if own is None else Shard()
        self._seed = seed

    def __len__(self) -> int:
        return steps(len(self._loader.batch_sampler), 0, self._shard)

    def identity(self) -> dict[str, Any]:
        names = [type(sampler).__name__ for sampler in self._samplers]
        return {
            "sampler": " of ".join(names),
            "batch_size": _whole(getattr(self._loader.batch_sampler, "batch_size", None)),
            "batches": len(self._loader.batch_sampler),
            "seed": self._seed,
            "uneven": self._shard.uneven,
        }

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _MapReading:
        if callable(getattr(self._loader.dataset, "set_epoch", None)):
            self._loader.close()  # workers that were kept have copies, which would not hear of it
        tell_epoch(epoch, *self._samplers, self._loader.dataset)
        with seeded(self._seed, epoch, *self._samplers):
            plan = self._drawn()
            digest = _digest(plan)
            start = 0 if mark is None else mark["start"]
            if mark is not None and (mark["of"], mark["ids"]) != (len(plan), digest):
                raise UsageError(
                    f"the sampler orders epoch {epoch} otherwise than when the state was saved; its"
                    " order has to follow from the reader's seed or from set_epoch(), and the data"
                    " set must be the same"
                )
            ours = share(len(plan), start, self._shard)[taken:]
            mark = {"start": start, "of": len(plan), "ids": digest}
            # Workers' seeds are drawn here too, so they follow from the epoch as well.
            batches = self._loader.read([plan[place] for place in ours]) if ours else iter(())
        return _MapReading(self._loader, batches, mark)

    def close(self) -> None:
        self._loader.close()

    def _drawn(self) -> list[Ids]:
        expected = len(self._loader.batch_sampler)
        plan: list[Ids] = []
        for ids in self._loader.batch_sampler:
            plan.append(ids)
            if len(plan) > 2 * expected + 1000:  # lengths are estimates at times
                raise UsageError(
                    f"the batch sampler says that it has {expected} batches and yields more than"
                    f" {len(plan)}; an epoch needs an end"
                )
        return plan


class _MapReading:
    def __init__(self, loader: Loader, batches: Iterator[Any], mark: Mark) -> None:
        self.start = mark
        self._loader = loader
        self._batches = batches
        self._ended = False

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._ended = True
            raise

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return self.start

    def end(self) -> None:
        return None

    def close(self) -> None:
        # Paddle's kept workers do not stand an epoch that was left: others are started then.
        if not (self._ended and self._loader.keeps):
            close_iterator(self._batches)
            self._loader.close()


def _digest(plan: Sequence[Ids]) -> str:
    from hashlib import blake2b  # loads OpenSSL

    digest = blake2b(digest_size=8)
    for ids in plan:
        numbers = np.asarray(ids) if not isinstance(ids, (str, bytes)) else None
        if numbers is not None and numbers.dtype.kind in "iu":
            digest.update(numbers.astype("<i8").tobytes())
        else:
            digest.update(repr(ids).encode())
        digest.update(b";")
    return digest.hexdigest()


def _whole(value: Any) -> int | None:
    return int(value) if isinstance(value, int | np.integer) else None


def own_ranks(samplers: Sequence[Any]) -> tuple[int, int] | None:
    """The rank and number of ranks that a sampler divides its ids for; None where it does not."""
    for sampler in samplers:
        for rank, ranks in (("local_rank", "nranks"), ("rank", "num_replicas")):  # Paddle, PyTorch
            world_size = getattr(sampler, ranks, 1)
            if isinstance(world_size, int) and world_size > 1:
                return int(getattr(sampler, rank, 0)), world_size
    return None
