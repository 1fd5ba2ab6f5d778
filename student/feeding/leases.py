"""Whom a rank has its positions from: shards leased of the job board, or parts fixed ahead."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from ...errors import UsageError
from ...scheduler.students.shards import Ranges, Shard, StaticDeal, cut, shard_rows


class Board(Protocol):
    """The shards of this rank's generation, as `RankLink` asks its supervisor for them."""

    def fill(self, epoch: int, shards: Iterable[tuple[int, int]]) -> None:
        """These are the shards of the epoch; who says so first is believed."""

    def lease(self, epoch: int, most: int) -> tuple[int, int] | None:
        """The next one for this rank, or its first `most` rows; None: there is none left."""

    def done(self, epoch: int, start: int, stop: int) -> None:
        """All of this one is trained."""


class Leases(Protocol):
    """Positions for one rank; called by one thread at a time, `done` by another."""

    def begin(self, epoch: int, total: int) -> int:
        """The rank begins with an epoch of `total` positions.

        Returns:
            How many of them are still to be trained, by all ranks together.
        """

    def next(self, epoch: int, most: int) -> Shard | None:
        """The next positions for this rank, which has use for `most`; None: none are left."""

    def done(self, epoch: int, shard: Shard) -> None:
        """All that `next` gave in `shard` is trained; returns at once."""


class BoardLeases:
    """Shards of what the checkpoint says is not trained, leased one after another.

    The board hears that one is done when the next is leased, or another epoch begun: so a board
    that does not answer holds up who reads, and no step.

    Args:
        board: where they are leased.
        trained: of each epoch, the positions that the checkpoint holds as trained. All ranks of a
            generation have the same ones, so that any of them can lay the shards out.
        world: ranks of the generation.
        total_batch: rows of one step of all ranks together.
        rows: of a shard; None: chosen from the epoch and the world.
    """

    def __init__(
        self,
        board: Board,
        trained: Mapping[int, Ranges],
        world: int,
        total_batch: int,
        rows: int | None = None,
    ) -> None:
        self._board = board
        self._trained = trained
        self._world = world
        self._batch = total_batch
        self._rows = rows
        self._done: deque[tuple[int, Shard]] = deque()

    def begin(self, epoch: int, total: int) -> int:
        self._tell()
        remaining = _remaining(self._trained, epoch, total)
        rows = self._rows or shard_rows(total, self._world, self._batch)
        self._board.fill(epoch, cut(remaining, rows))
        return remaining.count

    def next(self, epoch: int, most: int) -> Shard | None:
        self._tell()
        leased = self._board.lease(epoch, most)
        return None if leased is None else Shard(*leased)

    def done(self, epoch: int, shard: Shard) -> None:
        self._done.append((epoch, shard))

    def _tell(self) -> None:
        while self._done:
            epoch, shard = self._done.popleft()
            self._board.done(epoch, *shard)


class StaticLeases:
    """The positions of `StaticDeal`: known ahead, the same whatever the timing.

    They are the sizes of the rank's batches, too: a source over these leases needs those.

    Args:
        trained: of each epoch, the positions that the checkpoint holds as trained.
        total_batch: rows of one step of all ranks together.
        rank: whose part it is.
        world: ranks of the generation.
    """

    def __init__(
        self, trained: Mapping[int, Ranges], total_batch: int, rank: int, world: int
    ) -> None:
        self._trained = trained
        self._whose = (total_batch, rank, world)
        self._deals: dict[int, StaticDeal] = {}
        self._coming: deque[Shard] = deque()
        self._step = 0

    def begin(self, epoch: int, total: int) -> int:
        remaining = _remaining(self._trained, epoch, total)
        self._deals = {epoch: StaticDeal(remaining, *self._whose)}
        self._coming.clear()
        self._step = 0
        return remaining.count

    def rows(self, ordinal: int, left: int) -> int:
        """Rows of this rank at a step, from 0, of the epoch that was begun last; 0 behind its end.

        With fewer rows than ranks some ranks have none in any step: those behind the others in
        each. So a rank that has none in one step has none in those behind it.
        """
        (deal,) = self._deals.values()
        return deal.rows(ordinal)

    def next(self, epoch: int, most: int) -> Shard | None:
        deal = self._deals[epoch]
        while not self._coming and self._step < deal.steps:
            self._coming.extend(deal.shards(self._step))
            self._step += 1
        return self._coming.popleft() if self._coming else None

    def done(self, epoch: int, shard: Shard) -> None:
        pass  # nobody else could have it


def _remaining(trained: Mapping[int, Ranges], epoch: int, total: int) -> Ranges:
    before = trained.get(epoch, Ranges())
    if before.minus(Ranges.of([(0, total)])):
        raise UsageError(
            f"the checkpoint has trained positions up to {before.pairs[-1][1]} of epoch {epoch},"
            f" which has only {total} now: the data set, or the sampler, is another one; begin"
            " with an empty --checkpoint, or give the data that it was made with"
        )
    return before.complement(total)
