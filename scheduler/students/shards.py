"""Positions of an epoch, and the ranks that train them.

An epoch is dealt in shards that ranks lease one after another, or in parts that are fixed ahead
(`StaticDeal`). Readers without leases share whole batches (`RankShard`): after the first `start`
batches of the epoch's order, each rank takes the next one in turn. Ranks at the same step have
taken a prefix of the epoch together, so a different number of ranks can continue from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

from ...runtime.errors import UsageError

#: [start, stop)
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """A set of integers from 0 on.

    Attributes:
        pairs: [start, stop) of each range, in order, none empty, none adjacent. `of` normalises any
            ranges, so that equal sets are equal values.
    """

    pairs: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> Self:
        """Return the union of any [start, stop), in any order; UsageError for an invalid one."""
        joined: list[Range] = []
        for start, stop in sorted(_checked(pair) for pair in ranges):
            if start == stop:
                continue
            if joined and start <= joined[-1][1]:
                joined[-1] = (joined[-1][0], max(joined[-1][1], stop))
            else:
                joined.append((start, stop))
        return cls(tuple(joined))

    @classmethod
    def of_numbers(cls, numbers: Iterable[int]) -> Self:
        """Return the set of these numbers; consecutive ones share a range."""
        return cls.of((number, number + 1) for number in numbers)

    @property
    def count(self) -> int:
        """How many numbers the set has."""
        return sum(stop - start for start, stop in self.pairs)

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def union(self, other: Ranges) -> Self:
        return self.of((*self.pairs, *other.pairs))

    def minus(self, other: Ranges) -> Self:
        """Return the numbers that `other` does not have."""
        left: list[Range] = []
        cuts = iter((*other.pairs, (_END, _END)))
        cut = next(cuts)
        for start, stop in self.pairs:
            while cut[1] <= start:
                cut = next(cuts)
            while cut[0] < stop:
                left.append((start, cut[0]))
                start = cut[1]
                if start >= stop:
                    break
                cut = next(cuts)
            left.append((start, stop))
        return type(self)(tuple(pair for pair in left if pair[0] < pair[1]))

    def complement(self, total: int) -> Self:
        """Return the numbers below `total` that are not in the set."""
        return self.of([(0, total)]).minus(self)

    def slice(self, start: int, stop: int) -> Self:
        """Return the numbers from the `start`-th smallest (from 0) to before the `stop`-th."""
        found: list[Range] = []
        before = 0
        for first, last in self.pairs:
            low, high = max(start - before, 0), min(stop - before, last - first)
            if low < high:
                found.append((first + low, first + high))
            before += last - first
            if before >= stop:
                break
        return type(self)(tuple(found))

    def to_json(self) -> list[list[int]]:
        """Return lists of [start, stop]."""
        return [[start, stop] for start, stop in self.pairs]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse `to_json`; UsageError for anything else."""
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"ranges are a list of [start, stop], not {str(value)[:80]!r}")
        return cls.of(value)


_END = 1 << 62


def _checked(pair: Any) -> Range:
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        start, stop = pair
        if isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop:
            return start, stop
    raise UsageError(
        f"a range is [start, stop], whole numbers with 0 <= start <= stop, not {str(pair)[:80]!r}"
    )


#: Shards per rank and epoch: many, so that a slow rank has little left at the end.
SHARDS_PER_RANK: Final = 16


def shard_rows(total: int, world: int, batch: int) -> int:
    """Return the default number of positions of a shard.

    A multiple of one rank's equal part of a batch, near a sixteenth of what a rank trains in an
    epoch: small enough that ranks of different speed end together, large enough for few leases.

    Args:
        total: positions of the epoch.
        world: number of ranks.
        batch: rows of a step, of all ranks.
    """
    part = max(1, -(-batch // world))
    wanted = total // (world * SHARDS_PER_RANK)
    return max(1, wanted // part) * part


def cut(remaining: Ranges, size: int) -> list[Range]:
    """Cut the remaining positions into shards of at most `size`, in order, each in one range."""
    if size < 1:
        raise UsageError(f"a shard has at least one row, not {size}")
    return [
        (begin, min(begin + size, stop))
        for start, stop in remaining.pairs
        for begin in range(start, stop, size)
    ]


def rows_of_rank(rows: int, rank: int, world: int) -> int:
    """Return a rank's equal part of a batch; the first ranks get the remainder."""
    return rows // world + (rank < rows % world)


@dataclass(frozen=True, slots=True)
class StaticDeal:
    """Fixed positions of each rank at each step, whatever the timing.

    Step s of an epoch has positions [s * batch, (s + 1) * batch) of those that remained when the
    epoch began or continued; rank r has the r-th part of these. The last step has the rest, and
    some ranks may have none of it.

    Attributes:
        remaining: positions of the epoch that are not trained.
        batch: rows of a step, of all ranks.
        rank: number of this rank.
        world: number of ranks.
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
        """Steps until the epoch's end; the last one may have fewer rows."""
        return -(-self.remaining.count // self.batch)

    def rows(self, step: int) -> int:
        """Return the rows of this rank at `step`, from 0; 0 after the end."""
        here = min(self.batch, max(0, self.remaining.count - step * self.batch))
        return rows_of_rank(here, self.rank, self.world)

    def shards(self, step: int) -> Sequence[Range]:
        """Return the positions of this rank at `step`, as shards of `rows(step)` rows together."""
        start = step * self.batch
        here = min(self.batch, max(0, self.remaining.count - start))
        start += sum(rows_of_rank(here, before, self.world) for before in range(self.rank))
        return self.remaining.slice(start, start + self.rows(step)).pairs


#: What to do with the last step if there are too few batches for all ranks.
Uneven = Literal["keep", "drop", "pad"]


@dataclass(frozen=True, slots=True)
class RankShard:
    """The part of one rank in a fixed group.

    Attributes:
        rank: its number, from 0.
        world_size: number of ranks.
        uneven: "keep": each batch goes to one rank, and some ranks have one batch less; "drop": an
            incomplete last step is left out; "pad": it is filled with the first batches of the
            epoch, which are then read twice.
    """

    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "keep"

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise UsageError(
                f"rank {self.rank} of world_size {self.world_size}: ranks count from 0 to"
                " world_size - 1"
            )
        if self.uneven not in get_args(Uneven):
            raise UsageError(f"uneven is one of {get_args(Uneven)}, not {self.uneven!r}")


def steps_of_rank(total: int, start: int, shard: RankShard) -> int:
    """Return the number of the rank's batches, after the first `start` of `total` are gone."""
    left, world = total - start, shard.world_size
    match shard.uneven:
        case "drop":
            return left // world
        case "pad":
            return -(-left // world)
        case "keep":
            return max(0, -(-(left - shard.rank) // world))


def batches_of_rank(total: int, start: int, shard: RankShard) -> list[int]:
    """Return the indices in the epoch of the rank's batches, in its order."""
    return [
        (start + shard.rank + step * shard.world_size) % total
        for step in range(steps_of_rank(total, start, shard))
    ]


def taken_together(total: int, start: int, uneven: Uneven, taken: Sequence[int]) -> int | None:
    """Return how many batches of the epoch are gone when rank r has taken `taken[r]`.

    None if the ranks are not at the same step, so that what they have taken is no prefix.
    """
    world, step = len(taken), max(taken)
    for rank, count in enumerate(taken):
        if count != min(step, steps_of_rank(total, start, RankShard(rank, world, uneven))):
            return None
    return min(total, start + step * world)
