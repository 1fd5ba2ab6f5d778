"""An epoch dealt out: in shards that ranks take one after another, or batch by batch as planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ...errors import UsageError
from .ranges import Ranges

#: So many shards fall to each rank of an epoch, so that a slow one is left with little at its end.
SHARDS_PER_RANK: Final = 16


class Shard(NamedTuple):
    """Positions [start, stop) of an epoch's order, which one rank trains at a time."""

    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def shard_rows(total: int, world: int, batch: int) -> int:
    """How many positions a shard has, where the user does not say it.

    A multiple of one rank's equal part of a batch, near a sixteenth of what a rank trains in an
    epoch: small enough that ranks of different speed end together, large enough that few are asked
    for.

    Args:
        total: positions of the epoch.
        world: ranks.
        batch: rows of one step of all ranks together.
    """
    part = max(1, -(-batch // world))
    wanted = total // (world * SHARDS_PER_RANK)
    return max(1, wanted // part) * part


def cut(remaining: Ranges, size: int) -> list[Shard]:
    """The remaining positions in shards of at most `size`, in order; each lies in one range."""
    if size < 1:
        raise UsageError(f"a shard has at least one row, not {size}")
    return [
        Shard(begin, min(begin + size, stop))
        for start, stop in remaining.pairs
        for begin in range(start, stop, size)
    ]


def rows_of_rank(rows: int, rank: int, world: int) -> int:
    """The equal part of a rank of a batch of `rows`; the first ranks have the odd ones."""
    return rows // world + (rank < rows % world)


@dataclass(frozen=True, slots=True)
class StaticDeal:
    """Which positions a rank has at each step, known ahead: the same whatever the timing.

    Step s of an epoch has positions [s * batch, (s + 1) * batch) of what remained when it was
    begun or gone on with; rank r has the r-th part of these. The last step has what is left, and
    ranks may have nothing of it.

    Attributes:
        remaining: positions of the epoch that are not trained.
        batch: rows of a step of all ranks together.
        rank: whose part it is.
        world: ranks.
    """

    remaining: Ranges
    batch: int
    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.batch < 1 or not 0 <= self.rank < self.world:
            raise UsageError(
                f"a batch of {self.batch} rows for rank {self.rank} of {self.world} cannot be dealt"
            )

    @property
    def steps(self) -> int:
        """Steps until the epoch's end, the last one perhaps of fewer rows."""
        return -(-self.remaining.count // self.batch)

    def rows(self, step: int) -> int:
        """Rows of this rank at `step`, from 0; 0 behind the end."""
        here = min(self.batch, max(0, self.remaining.count - step * self.batch))
        return rows_of_rank(here, self.rank, self.world)

    def shards(self, step: int) -> Sequence[Shard]:
        """The positions of this rank at `step`, as shards of together `rows(step)` rows."""
        start = step * self.batch
        here = min(self.batch, max(0, self.remaining.count - start))
        start += sum(rows_of_rank(here, before, self.world) for before in range(self.rank))
        return [Shard(*pair) for pair in self.remaining.slice(start, start + self.rows(step)).pairs]
