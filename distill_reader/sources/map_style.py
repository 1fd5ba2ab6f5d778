"""Map-style sources: samples with ids, read in the order of a sampler.

They resume exactly, and are divided among ranks by ids. The loader gets its batches of ids from the
reader instead of its sampler. A framework's loader still uses its workers, its collation and its
tensors.

Samplers draw from random number generators: Paddle's samplers from numpy's global generator,
PyTorch's samplers from torch's global generator or one of the user. The reader seeds these
generators while it draws ids, and restores them afterwards, so the order follows from a seed.
"""

from __future__ import annotations

import copy
import random
import sys
import threading
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Final, Protocol

import numpy as np

from ...proto.arena import Array
from ...runtime.errors import UsageError
from ...scheduler.students.shards import RankShard, batches_of_rank, steps_of_rank
from .batched import Batched
from .source import KEEPS_WORKERS, Mark, close_iterator, reading_mark, set_epoch_of


class MapSource:
    """The batches of a map-style loader, in an order that follows from a seed and the epoch.

    Before each epoch, all batches of ids are drawn from the sampler, with generators seeded by
    (seed, epoch), so that all ranks and resumed runs draw the same ids. The loader then reads the
    batches of this rank that are not delivered yet.

    A mark has three fields. "start" counts the batches of the epoch that all ranks together had
    delivered when the number of ranks last changed; 0: it has not changed in this epoch. "of" is
    the number of batches of the epoch, and "ids" is a digest of their ids.

    Args:
        loader: reads batches of ids.
        shard: this rank's share. It must agree with a sampler that divides ids itself, such as
            Paddle's `DistributedBatchSampler`.
        seed: seed of the order.
        rank: number of this rank if `shard` is the whole source; see `source_of`.

    Raises:
        UsageError: the sampler has another rank or number of ranks.
    """

    kind = "map"

    def __init__(self, loader: BatchLoader, shard: RankShard, seed: int, rank: int = 0) -> None:
        self._loader = loader
        self._samplers = with_inner(loader.batch_sampler)
        by_sampler = own_ranks(self._samplers)
        by_reader = (shard.rank, shard.world_size)
        if by_sampler is not None and shard.world_size > 1 and by_sampler != by_reader:
            raise UsageError(
                f"the loader's sampler is for rank {by_sampler[0]} of {by_sampler[1]}, the reader"
                f" for rank {shard.rank} of {shard.world_size}; use a sampler that does not divide"
                " ids among ranks, or omit world_size"
            )
        self.divides_ids = by_sampler is None
        self._shard = shard if by_sampler is None else RankShard()
        self._seed = seed
        self._rank = (rank or shard.rank) if by_sampler is None else by_sampler[0]

    def __len__(self) -> int:
        return steps_of_rank(len(self._loader.batch_sampler), 0, self._shard)

    def identity(self) -> dict[str, Any]:
        names = [type(sampler).__name__ for sampler in self._samplers]
        return {
            "sampler": " of ".join(names),
            "batch_size": _as_int(getattr(self._loader.batch_sampler, "batch_size", None)),
            "seed": self._seed,
            "uneven": self._shard.uneven,
        }

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _MapIterator:
        start, saved_plan = 0, None
        if mark is not None:
            with reading_mark():
                start, saved_plan = int(mark["start"]), (mark["of"], mark["ids"])
        with seeded_for_epoch(self._loader, self._seed, epoch):
            plan = list(sampled_batches(self._loader.batch_sampler))
            digest = _digest(plan)
            if saved_plan not in (None, (len(plan), digest)):
                raise UsageError(
                    f"the sampler orders epoch {epoch} differently than when the state was saved;"
                    " its order has to follow from the reader's seed or from set_epoch(), and the"
                    " data set must be the same"
                )
            remaining = batches_of_rank(len(plan), start, self._shard)[taken:]
            mark = {"start": start, "of": len(plan), "ids": digest}
            ids = [plan[index] for index in remaining]
            batches: Iterator[Any] = iter(())
            if ids:
                batches = begin_reading(self._loader, ids, self._seed, epoch, self._rank)
        return _MapIterator(self._loader, batches, mark)

    def close(self) -> None:
        self._loader.close()


class LoaderIterator:
    """The batches of one epoch of a loader.

    Args:
        loader: the loader.
        batches: its batches.
    """

    def __init__(self, loader: BatchLoader, batches: Iterator[Any]) -> None:
        self._loader = loader
        self._batches = batches
        self._ended = False

    def __next__(self) -> Any:
        try:
            return next(self._batches)
        except StopIteration:
            self._ended = True
            raise

    def close(self) -> None:
        """End the workers, unless the loader keeps them and the epoch was read to its end."""
        # Paddle's persistent workers cannot be used after an epoch that was left early.
        if not (self._ended and self._loader.keep(self._batches)):
            close_iterator(self._batches)


class _MapIterator(LoaderIterator):
    def __init__(self, loader: BatchLoader, batches: Iterator[Any], mark: Mark) -> None:
        super().__init__(loader, batches)
        self.start = mark

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return self.start

    def end(self) -> None:
        return None


def _digest(plan: Sequence[Ids]) -> str:
    from hashlib import blake2b  # loads OpenSSL

    digest = blake2b(digest_size=8)
    for ids in plan:
        try:
            numbers = np.asarray(ids)
        except ValueError:  # tuples of different lengths
            numbers = np.empty(0)
        if numbers.dtype.kind in "iu":
            digest.update(numbers.astype("<i8").tobytes())
        else:
            digest.update(repr(ids).encode())
        digest.update(b";")
    return digest.hexdigest()


def _as_int(value: Any) -> int | None:
    return int(value) if isinstance(value, int | np.integer) else None


def own_ranks(samplers: Sequence[Any]) -> tuple[int, int] | None:
    """Return (rank, number of ranks) of the sampler that divides its ids; None: no sampler does."""
    for sampler in samplers:
        for rank, ranks in (("local_rank", "nranks"), ("rank", "num_replicas")):  # Paddle, PyTorch
            world_size = getattr(sampler, ranks, 1)
            if isinstance(world_size, int) and world_size > 1:
                return int(getattr(sampler, rank, 0)), world_size
    return None


#: The sample ids of one batch.
Ids = Sequence[Any]


class EpochPlan(Protocol):
    """The batches of an epoch: a list, or an iterable that is evaluated lazily."""

    def __len__(self) -> int:
        """Return the number of batches, or an upper bound."""

    def __iter__(self) -> Iterator[Ids]: ...


class BatchLoader(Protocol):
    """Reads batches of ids.

    Attributes:
        dataset: data set of the samples; its `set_epoch` is called if it exists.
        batch_sampler: yields the ids of each batch of an epoch; has a length.
    """

    dataset: Any
    batch_sampler: Any

    def read(self, plan: EpochPlan) -> Iterator[Any]:
        """Yield the batches of these ids, in order."""

    def keep(self, batches: Iterator[Any]) -> bool:
        """Keep the workers of an iterator that has ended, for the next epoch, if they persist.

        Args:
            batches: the iterator that `read` returned.

        Returns:
            False if the caller has to close the iterator.
        """

    def close(self) -> None:
        """End the workers that are kept."""


def loader_of(source: Any) -> BatchLoader | None:
    """Return the map-style loader for a user's source; None if batches cannot be chosen by ids."""
    if isinstance(source, Batched):
        return _InProcessLoader(source.dataset, source.batch_sampler, source.batches_of)
    if isinstance(source, Sequence) and not isinstance(source, (str, bytes)):
        # The source is a list of batches: the id of a batch is its index.
        return _InProcessLoader(
            source, _OneIdSampler(source), lambda ids: (source[index] for (index,) in ids)
        )
    if not _is_framework_loader(source) or not _has_length(source.batch_sampler):
        return None
    return _FrameworkLoader(source) if _is_map(source.dataset) else None


class _InProcessLoader:
    """Reads batches in this process, without workers."""

    def __init__(
        self, dataset: Any, batch_sampler: Any, batches_of: Callable[[Any], Iterator[Any]]
    ) -> None:
        self.dataset = dataset
        self.batch_sampler = batch_sampler
        self.read = batches_of

    def keep(self, batches: Iterator[Any]) -> bool:
        return False

    def close(self) -> None:
        pass


class _OneIdSampler:
    def __init__(self, batches: Sized) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[list[int]]:
        return ([number] for number in range(len(self)))


class _FrameworkLoader:
    """A loader of Paddle or PyTorch; works on a copy, so that the user's loader is not changed."""

    def __init__(self, loader: Any) -> None:
        self.dataset = loader.dataset
        self.batch_sampler = loader.batch_sampler
        self.generator = getattr(loader, "generator", None)
        self._plan = _Plan()
        self._copy = copy.copy(loader)
        # Write to `vars`: PyTorch's `__setattr__` forbids changes of constructor arguments. A
        # position in the plan is a number of batches, so batches must come in the plan's order.
        vars(self._copy).update(batch_sampler=self._plan, _iterator=None, in_order=True)
        persists = any(getattr(loader, name, False) for name in KEEPS_WORKERS)
        self._keeps_workers = loader.num_workers > 0 and persists
        self._in_use: Iterator[Any] | None = None  # iterator of persistent workers, until `keep`

    def read(self, plan: EpochPlan) -> Iterator[Any]:
        self._plan.batches = plan
        iterator: Iterator[Any] = iter(self._copy)
        if self._keeps_workers:
            # If a slow `next` of this epoch has not returned when the next epoch begins, the next
            # epoch gets other workers.
            self._in_use, self._copy._iterator = iterator, None
        return iterator

    def keep(self, batches: Iterator[Any]) -> bool:
        if self._in_use is not batches:
            return False
        self._in_use, self._copy._iterator = None, batches
        return True

    def close(self) -> None:
        kept, self._copy._iterator = self._copy._iterator, None
        if kept is not None:
            close_iterator(kept)


class _Plan:
    """A batch sampler with settable batches: iterators of persistent workers keep the sampler."""

    batches: EpochPlan = ()

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Ids]:
        return iter(self.batches)


def _is_framework_loader(source: Any) -> bool:
    # Exactly these classes: a subclass may do more than pass ids to workers.
    return any(type(source) is module.DataLoader for module in _frameworks())


def _frameworks() -> list[Any]:
    # If a framework is not imported, the source cannot be one of its loaders.
    modules = (sys.modules.get(name) for name in ("paddle.io", "torch.utils.data"))
    return [module for module in modules if module is not None]


def _has_length(sampler: Any) -> bool:
    # A batch sampler of PyTorch has `__len__`, which fails if its inner sampler has no length.
    try:
        return len(sampler) >= 0
    except (TypeError, NotImplementedError):
        return False


def _is_map(dataset: Any) -> bool:
    return not any(isinstance(dataset, module.IterableDataset) for module in _frameworks())


@contextmanager
def seeded_for_epoch(loader: BatchLoader, seed: int, epoch: int) -> Iterator[None]:
    """Prepare a loader for an epoch; in the context, its order is drawn from (seed, epoch)."""
    samplers = with_inner(loader.batch_sampler)
    if callable(getattr(loader.dataset, "set_epoch", None)):
        loader.close()  # persistent workers have copies of the data set
    set_epoch_of(epoch, *samplers, loader.dataset)
    with seeded([seed, epoch], *samplers, loader):
        yield


def begin_reading(
    loader: BatchLoader, plan: EpochPlan, seed: int, epoch: int, rank: int
) -> Iterator[Any]:
    """Return the batches of a plan; call this in `seeded_for_epoch`, after drawing the order.

    Loaders draw the seeds of their workers now, so these follow from the epoch, too. Each rank has
    other seeds: otherwise, workers would augment the samples of all ranks in the same way.
    """
    with seeded([seed, epoch, rank], loader) if rank else nullcontext():
        return loader.read(plan)


def sampled_batches(sampler: Any) -> Iterator[Ids]:
    """Yield the batches of ids of a batch sampler.

    Raises:
        UsageError: the sampler yields far more batches than its length.
    """
    limit = 2 * len(sampler) + 1000  # some lengths are estimates
    for number, ids in enumerate(sampler):
        if number >= limit:
            raise UsageError(
                f"the batch sampler has the length {len(sampler)}, and yields more than {limit}"
                " batches; an epoch must end"
            )
        yield ids


#: Held while the generators of the process are seeded: several readers may begin epochs at once.
_SEEDING_LOCK: Final = threading.RLock()


@contextmanager
def seeded(seeds: Sequence[int], *owners: Any) -> Iterator[None]:
    """Seed the generators of Python, numpy and torch in a `with` block, and restore them after it.

    Args:
        seeds: seed of the run, number of the epoch, and further numbers (all >= 0).
        owners: objects that may have a `generator` of torch, which is seeded, too.
    """
    seed = int(np.random.SeedSequence(seeds).generate_state(1)[0])
    with _SEEDING_LOCK, ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(seed)
        for generator in _torch_generators(owners):
            stack.callback(generator.set_state, generator.get_state())
            generator.manual_seed(seed)
        yield


def _torch_generators(owners: tuple[Any, ...]) -> list[Any]:
    torch = sys.modules.get("torch")  # if torch is not imported, there are no generators
    if torch is None:
        return []
    owned = [getattr(owner, "generator", None) for owner in owners]
    unique = {id(g): g for g in (torch.default_generator, *owned) if isinstance(g, torch.Generator)}
    return list(unique.values())


def with_inner(sampler: Any) -> tuple[Any, ...]:
    """Return a batch sampler and the samplers nested in it."""
    chain: list[Any] = []
    while sampler is not None and not any(sampler is outer for outer in chain):
        chain.append(sampler)
        sampler = getattr(sampler, "sampler", None)
    return tuple(chain)
