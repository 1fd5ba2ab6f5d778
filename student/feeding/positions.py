"""Positions of an epoch: their order, their leases, and the trained ones of a checkpoint.

The order of an epoch is the list of ids that the feed's own sampler draws under (seed, epoch). A
*position* is an index in it. Every rank draws the same order, so a position names the same sample
on all ranks. The feed's loader then reads the ids of leased positions, with its own workers
and collation. Ranks lease shards of positions from the job board, or have parts that are fixed in
advance. The states of all ranks together contain the trained positions (`merge_states`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from ...distill_reader.sources.batched import Batched
from ...distill_reader.sources.map_style import (
    BatchLoader,
    EpochPlan,
    LoaderIterator,
    begin_reading,
    loader_of,
    own_ranks,
    sampled_batches,
    seeded_for_epoch,
    with_inner,
)
from ...distill_reader.sources.source import changed_fields
from ...runtime.errors import GenerationSuperseded, UsageError
from ...scheduler.students.shards import Range, Ranges, StaticDeal, cut, shard_rows
from ..link import RankLink

_Plan = TypeVar("_Plan", bound=EpochPlan)


class SampleOrder:
    """A feed whose samples have ids: the order of each epoch, and the loader that reads ids.

    Args:
        feed: a `DataLoader` of Paddle or PyTorch over a map-style data set, or a `Batched`.
        seed: seed of the order; equal on all ranks.
        total_batch: rows of one step, of all ranks together; None: those of the feed's own batches.
        rank: number of this rank; the random numbers of the loader's workers depend on it.

    Attributes:
        total_batch: rows of one step, of all ranks together.

    Raises:
        UsageError: the number of rows is unknown.
    """

    def __init__(self, feed: Any, seed: int, total_batch: int | None = None, rank: int = 0) -> None:
        loader = loader_of(feed)
        assert loader is not None, "call `reason_not_shardable` before"
        self._loader: BatchLoader = loader
        self._seed, self._rank = seed, rank
        self._drawn: tuple[int, list[Any]] = (-1, [])  # latest epoch, and its ids in order
        rows: int | None = total_batch or getattr(loader.batch_sampler, "batch_size", None)
        if rows is None:
            raise UsageError("the feed has no batch size: give --total-batch ROWS")
        self.total_batch = rows

    def identity(self) -> dict[str, Any]:
        """Return sampler, seed and number of samples.

        If one of them changes, a position may name another sample.
        """
        names = [type(sampler).__name__ for sampler in with_inner(self._loader.batch_sampler)]
        samples = _length(self._loader.dataset)
        return {"sampler": " of ".join(names), "seed": self._seed, "samples": samples}

    def total(self, epoch: int) -> int:
        """Return the number of positions of the epoch."""
        if self._drawn[0] != epoch:
            with seeded_for_epoch(self._loader, self._seed, epoch):
                self._draw(epoch)
        return len(self._drawn[1])

    def begin(
        self, epoch: int, plan_of: Callable[[Sequence[Any]], _Plan]
    ) -> tuple[_Plan, LoaderIterator]:
        """Start an epoch.

        Args:
            epoch: number of the epoch.
            plan_of: returns the batches of ids to read, from all ids of the epoch in order.

        Returns:
            The plan, and its batches.
        """
        with seeded_for_epoch(self._loader, self._seed, epoch):
            # Draw the order even if it is known: drawing advances the random generators, from
            # which the loader then draws its workers' seeds.
            plan = plan_of(self._draw(epoch))
            batches = begin_reading(self._loader, plan, self._seed, epoch, self._rank)
            return plan, LoaderIterator(self._loader, batches)

    def close(self) -> None:
        """Stop the workers that the loader keeps."""
        self._loader.close()

    def _draw(self, epoch: int) -> list[Any]:
        batches = sampled_batches(self._loader.batch_sampler)
        ids = [sample_id for batch in batches for sample_id in batch]
        self._drawn = (epoch, ids)
        return ids


def reason_not_shardable(feed: Any) -> str:
    """Return why the samples of a feed cannot be dealt to ranks, and what to do; "" if they can."""
    loader = loader_of(feed)
    if loader is None:
        return (
            f"the batches of a {type(feed).__name__} have no ids, so that its samples cannot be"
            f" dealt to ranks that come and go; {_ADVICE}"
        )
    if isinstance(feed, Sequence) and not isinstance(feed, Batched):
        return f"a {type(feed).__name__} of finished batches cannot be dealt by sample; {_ADVICE}"
    if (divided := own_ranks(with_inner(loader.batch_sampler))) is not None:
        return (
            f"the loader's sampler divides samples itself, for rank {divided[0]} of {divided[1]};"
            " give the loader a sampler that does not divide samples, such as Paddle's BatchSampler"
        )
    if getattr(feed, "in_order", True) is False:
        return "the loader gives batches in any order: omit in_order=False"
    return ""


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except (TypeError, NotImplementedError):  # only its sampler knows the ids
        return None


_ADVICE = (
    "give feed() a map-style DataLoader of Paddle or PyTorch, or Batched(dataset, batch_size), or"
    " keep the number of nodes fixed, as with --nodes 2:2"
)


class BoardLeases:
    """Leases shards of the untrained positions from a board, one after another.

    Only one thread at a time may call it. While the board does not answer, the call blocks;
    training steps with leased positions continue.

    Args:
        link: asks the job board.
        world: number of ranks of the generation.
        total_batch: rows of one step, of all ranks together.
        rows: positions of a shard; None: computed from the epoch's length and the number of ranks.
    """

    def __init__(self, link: RankLink, world: int, total_batch: int, rows: int | None) -> None:
        self._link = link
        self._world = world
        self._total_batch = total_batch
        self._shard_rows = rows

    def begin(self, epoch: int, total: int, remaining: Ranges) -> None:
        """Begin an epoch of `total` positions.

        `remaining` has the positions that no rank has trained yet. It is equal on all ranks of a
        generation, so any rank can create the shards.
        """
        rows = self._shard_rows or shard_rows(total, self._world, self._total_batch)
        self._link.fill(epoch, cut(remaining, rows))

    def next(self, epoch: int, most: int) -> Range | None:
        """Lease the next positions for this rank, at most `most`; None if none are left."""
        return self._link.lease(epoch, most)


class StaticLeases:
    """Gives a rank the positions of `StaticDeal`: fixed in advance, independent of timing.

    It has the methods of `BoardLeases`, and is also the `Sizes` of the source.

    Args:
        total_batch: rows of one step, of all ranks together.
        rank: number of this rank.
        world: number of ranks of the generation.
    """

    def __init__(self, total_batch: int, rank: int, world: int) -> None:
        self._deal = StaticDeal(Ranges(), total_batch, rank, world)  # of the current epoch
        self._next_ranges: Iterator[Range] = iter(())

    def begin(self, epoch: int, total: int, remaining: Ranges) -> None:
        deal = self._deal = replace(self._deal, remaining=remaining)
        self._next_ranges = (shard for step in range(deal.steps) for shard in deal.shards(step))

    def rows(self, ordinal: int, left: int) -> int:
        """Return the rows of this rank at step `ordinal` of the current epoch; 0 after its end.

        If a step has fewer rows than ranks, the last ranks have none. So a rank without rows in one
        step has none in all later steps of the epoch.
        """
        return self._deal.rows(ordinal)

    def next(self, epoch: int, most: int) -> Range | None:
        return next(self._next_ranges, None)


PositionLeases: TypeAlias = BoardLeases | StaticLeases


def remaining_positions(trained: Mapping[int, Ranges], epoch: int, total: int) -> Ranges:
    """Return the positions of an epoch that were not trained when the checkpoint was saved.

    Args:
        trained: trained positions of the checkpoint, by epoch.
        epoch: number of the epoch.
        total: number of positions of the epoch.

    Raises:
        UsageError: the checkpoint has trained positions that the epoch does not have.
    """
    done = trained.get(epoch, Ranges())
    if done.minus(Ranges.of([(0, total)])):
        raise UsageError(
            f"the checkpoint has trained positions up to {done.pairs[-1][1]} of epoch {epoch},"
            f" which has only {total} now: the data set or the sampler has changed; use"
            " the former one, or begin with an empty --checkpoint"
        )
    return done.complement(total)


#: JSON values.
State = Mapping[str, Any]


def merge_states(states: Sequence[State], base: State | None) -> dict[str, Any]:
    """Return the feed's part of a checkpoint.

    Args:
        states: `state()` of the sources of all ranks, in the order of ranks, all at one step.
        base: the feed's part of the checkpoint that the generation started from; None: none.

    Raises:
        GenerationSuperseded: two ranks have trained the same position, because the job board has
            returned with older data.
    """
    if states[0]["kind"] != "sharded":
        return {"kind": states[0]["kind"], "ranks": [dict(state) for state in states]}
    trained = dict(trained_positions(base))
    for state in states:
        for epoch, ranges in _trained(state).items():
            before = trained.get(epoch, Ranges())
            trained[epoch] = before.union(ranges)
            if trained[epoch].count < before.count + ranges.count:
                raise GenerationSuperseded(
                    f"a sample of epoch {epoch} was trained twice, as the job board has returned"
                    " with older data: the ranks continue in the next generation"
                )
    latest = max(trained, default=0)  # ranks step together: earlier epochs are complete
    return {
        "kind": "sharded",
        "order": states[0]["order"],
        "trained": {str(latest): trained[latest].to_json()} if trained else {},
    }


def trained_positions(saved: State | None) -> dict[int, Ranges]:
    """Return the trained positions by epoch, from `merge_states`; empty for feeds without ids."""
    return {} if saved is None or saved["kind"] != "sharded" else _trained(saved)


def check_fits(saved: State | None, kind: str, order: State | None, world: int) -> None:
    """Raise UsageError if the feed's part of a checkpoint does not fit this feed.

    Args:
        saved: result of `merge_states`; None: there is no checkpoint.
        kind: kind of this feed's source.
        order: `identity()` of its order; None: it has none.
        world: number of ranks; a feed without ids needs as many as before.
    """
    if saved is None:
        return
    if (saved["kind"] == "sharded") != (kind == "sharded"):
        raise UsageError(
            f"the checkpoint is of a feed of kind {saved['kind']!r}, but feed('train') is of kind"
            f" {kind!r} now; return the former feed, or give an empty --checkpoint"
        )
    if order is not None and (changed := changed_fields(saved["order"], order)):
        raise UsageError(
            f"the order of the samples has changed since the checkpoint: {changed}; use the"
            " same data, seed and sampler, or give an empty --checkpoint"
        )
    if kind != "sharded" and len(saved["ranks"]) != world:
        raise UsageError(
            f"the checkpoint is of {len(saved['ranks'])} ranks, but this world has {world}: a feed"
            " without ids cannot be divided again; start as many ranks as before"
        )


def _trained(state: State) -> dict[int, Ranges]:
    return {int(epoch): Ranges.from_json(pairs) for epoch, pairs in state["trained"].items()}
