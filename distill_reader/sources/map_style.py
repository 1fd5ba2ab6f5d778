"""Step one: samples with ids, read in the order of a sampler; resumed and divided exactly.

A map-style loader is made to read the batches of ids that it is told, in place of its own. A
framework's loader keeps its workers, its collating and its tensors; only the ids come from us.

Samplers draw them from the process's own generators: Paddle's from numpy's, PyTorch's from torch's
or one that the user gave. These are set for the moment of the drawing, and put back behind it, so
that the order follows from a seed.
"""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ...scheduler.students.shards import RankShard, batches_of_rank, steps_of_rank
from .batched import Batched
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

    def __init__(self, loader: BatchLoader, shard: RankShard, seed: int) -> None:
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
        self._shard = shard if own is None else RankShard()
        self._seed = seed

    def __len__(self) -> int:
        return steps_of_rank(len(self._loader.batch_sampler), 0, self._shard)

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
            ours = batches_of_rank(len(plan), start, self._shard)[taken:]
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
    def __init__(self, loader: BatchLoader, batches: Iterator[Any], mark: Mark) -> None:
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


#: What the samples of one batch are called in the data set.
Ids = Sequence[Any]


class EpochPlan(Protocol):
    """Which batches are read: a list of them, or what says one after another as it is asked."""

    def __len__(self) -> int:
        """How many; where that is not known, at most so many."""

    def __iter__(self) -> Iterator[Ids]:
        """The ids of each batch."""


class BatchLoader(Protocol):
    """Reads batches of ids.

    Attributes:
        dataset: what the ids name; with `set_epoch` it is told the number of each epoch.
        batch_sampler: gives the ids of each batch of an epoch, and has a length.
        keeps: whether its workers work for one epoch after another, if each is read to its end.
    """

    dataset: Any
    batch_sampler: Any
    keeps: bool

    def read(self, plan: EpochPlan) -> Iterator[Any]:
        """The batches of these ids, in order."""

    def close(self) -> None:
        """End the workers that it keeps."""


def loader_of(given: Any) -> BatchLoader | None:
    """The loader that `given` is; None where its batches have no ids that one could choose."""
    if isinstance(given, Batched):
        return _OwnLoader(given.dataset, given.batch_sampler, given.batches_of)
    if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
        # Each batch of the list is a sample, of a batch of its own.
        return _OwnLoader(given, _EachByItself(given), lambda ids: (given[one] for (one,) in ids))
    if _is_frameworks(given) and isinstance(given.batch_sampler, Sized) and _is_map(given.dataset):
        return _FrameworkLoader(given)
    return None


class _OwnLoader:
    """Reads in this process, by `batches_of`."""

    keeps = False

    def __init__(
        self, dataset: Any, batch_sampler: Any, batches_of: Callable[[Any], Iterator[Any]]
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.read = batches_of

    def close(self) -> None:
        pass


class _EachByItself:
    def __init__(self, batches: Sized) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in range(len(self)))


class _FrameworkLoader:
    """A loader of Paddle or PyTorch; a copy of it reads, so that the user's stays as it is."""

    def __init__(self, loader: Any) -> None:
        self.dataset = loader.dataset
        self.batch_sampler = loader.batch_sampler
        self._plan = _Plan()
        self._copy = copy.copy(loader)
        # Past __setattr__: PyTorch's forbids what its constructor was given.
        vars(self._copy).update(batch_sampler=self._plan, _iterator=None)
        persistent = ("persistent_workers", "_persistent_workers")
        self.keeps = loader.num_workers > 0 and any(getattr(loader, n, False) for n in persistent)

    def read(self, plan: EpochPlan) -> Iterator[Any]:
        self._plan.batches = plan
        iterator: Iterator[Any] = iter(self._copy)
        return iterator

    def close(self) -> None:
        kept, self._copy._iterator = self._copy._iterator, None
        if kept is not None:
            close_iterator(kept)


class _Plan:
    """A batch sampler that gives what it was told; one for all epochs, as workers may be kept."""

    batches: EpochPlan = ()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Ids]:
        return iter(self.batches)


def _is_frameworks(given: Any) -> bool:
    # Exactly these: a class of the user's own may do more than hand ids to workers.
    return any(type(given) is module.DataLoader for module in _frameworks())


def _frameworks() -> list[Any]:
    # Who has one of their loaders has imported them; nobody else shall pay for the import.
    modules = (sys.modules.get(name) for name in ("paddle.io", "torch.utils.data"))
    return [module for module in modules if module is not None]


def _is_map(dataset: Any) -> bool:
    return not any(isinstance(dataset, module.IterableDataset) for module in _frameworks())


@contextmanager
def seeded(seed: int, epoch: int, *owners: Any) -> Iterator[None]:
    """Within, the generators of Python, numpy and torch follow from `seed` and `epoch`.

    Args:
        seed: of the whole run, at least 0.
        epoch: number of the epoch, at least 0.
        owners: objects whose own `generator`, if it is one of torch, is set too.
    """
    drawn = int(np.random.SeedSequence([seed, epoch]).generate_state(1)[0])
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(drawn)
        np.random.seed(drawn)
        for generator in _torch_generators(owners):
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(drawn)
        yield


def _torch_generators(owners: tuple[Any, ...]) -> list[Any]:
    torch = sys.modules.get("torch")  # who holds one of its samplers has imported it
    if torch is None:
        return []
    own = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(g): g for g in (torch.default_generator, *own) if isinstance(g, torch.Generator)}
    return list(unique.values())


def with_inner(sampler: Any) -> tuple[Any, ...]:
    """A batch sampler and those that it draws from in turn."""
    chain: list[Any] = []
    while sampler is not None and not any(sampler is known for known in chain):
        chain.append(sampler)
        sampler = getattr(sampler, "sampler", None)
    return tuple(chain)
