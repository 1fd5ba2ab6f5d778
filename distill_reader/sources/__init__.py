"""Sources of batches: three kinds, and how each resumes within an epoch.

| kind | resumes by | divided among ranks |
|---|---|---|
| map-style: samples with ids, read in the order of a sampler | loading only what remains | by ids |
| stateful: an iterable with `state_dict` and `load_state_dict` | its own state | by its `shard()` |
| plain: any iterable | reading the epoch again, and comparing | by its `shard()` |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ...runtime.errors import UsageError
from ...scheduler.students.shards import RankShard
from .batched import Batched
from .iterables import PlainSource, StatefulSource
from .map_style import MapSource, loader_of
from .source import ResumableSource, SourceIterator, freeze_garbage_in_forks

__all__ = ["Batched", "ResumableSource", "SourceIterator", "source_of"]


def source_of(source: Any, shard: RankShard, seed: int, rank: int = 0) -> ResumableSource:
    """Wrap the user's source as a resumable source, of the first kind above that applies.

    Args:
        source: a `DataLoader` of Paddle or PyTorch, a `Batched`, or a list of batches; an iterable
            with `state_dict` and `load_state_dict`; any other iterable of batches. A
            `ResumableSource` is returned as it is.
        shard: the rank's share. If there are several ranks and the batches have no ids,
            `source.shard(rank=..., world_size=...)` must return the iterable of that rank.
        seed: seed of the order of map-style sources.
        rank: number of the rank if the source is only its share; the random numbers of a loader's
            workers depend on it. 0: that of `shard`.

    Raises:
        UsageError: `source` can be iterated only once or not at all, or cannot be divided among
            ranks.
    """
    if isinstance(source, Iterator):
        raise UsageError(
            "an iterator can be read only once; give the reader the object that makes it, such as"
            " the DataLoader itself, or an object with __iter__"
        )
    freeze_garbage_in_forks()  # any source may fork workers
    if isinstance(source, ResumableSource):
        if shard.world_size > 1:
            raise UsageError(
                f"a {type(source).__name__} has the batches of one rank already; omit world_size"
            )
        return source
    if (loader := loader_of(source)) is not None:
        return MapSource(loader, shard, seed, rank)
    if shard.world_size > 1:
        if not callable(divide := getattr(source, "shard", None)):
            raise UsageError(
                f"a {type(source).__name__} cannot be divided among {shard.world_size} ranks: its"
                " batches have no ids. Use a map-style DataLoader, or an iterable with"
                " shard(rank, world_size); or use an iterable of only this rank's batches, and omit"
                " world_size"
            )
        own_share = divide(rank=shard.rank, world_size=shard.world_size)
        share = source_of(own_share, RankShard(), seed, rank or shard.rank)
        if isinstance(share, MapSource):
            share.divides_ids = False  # its marks do not fit another number of ranks
        return share
    if not isinstance(source, Iterable):
        raise UsageError(
            f"a source must be iterable, and {type(source).__name__!r} cannot be iterated"
            + _hint(source)
        )
    if all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict")):
        return StatefulSource(source)
    return PlainSource(source)


def _hint(source: Any) -> str:
    """Return what to use instead of an object that cannot be iterated; empty: unknown."""
    if hasattr(source, "__getitem__") and hasattr(source, "__len__"):
        return "; it looks like a data set: use a DataLoader of it, or Batched(dataset, batch_size)"
    if callable(source):
        return "; pass a function that makes a generator to DistilReader.from_batch_generator(...)"
    return ""
