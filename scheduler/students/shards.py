"""Positions of an epoch, and the ranks that train them.

An epoch is dealt in shards that ranks lease one after another, or in parts that are fixed in
advance (`StaticDeal`). Readers without leases deal whole batches (`RankShard`): after the first
`start` batches of the epoch, the ranks take one batch each in turn. Ranks at the same step have
together taken a prefix of the epoch, so a different number of ranks can continue from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

from ...runtime.errors import UsageError

#: The integers in [start, stop).
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Ranges:
    """A set of integers from 0 on.

    Attributes:
        pairs: the ranges [start, stop) in ascending order; none is empty or adjacent to the next.
            `of` normalises any ranges, so equal sets are equal values.
    """

    pairs: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Sequence[int]]) -> Self:
        """Return the union of ranges [start, stop), in any order; UsageError for an invalid one."""
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
        """Return the set of these numbers."""
        return cls.of((number, number + 1) for number in numbers)

    @property
    def count(self) -> int:
        """Number of integers in the set."""
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
        """Return those numbers whose index in ascending order, from 0, is in [start, stop)."""
        sliced: list[Range] = []
        before = 0
        for first, last in self.pairs:
            low, high = max(start - before, 0), min(stop - before, last - first)
            if low < high:
                sliced.append((first + low, first + high))
            before += last - first
            if before >= stop:
                break
        return type(self)(tuple(sliced))

    def to_json(self) -> list[list[int]]:
        """Return lists of [start, stop]."""
        return [[start, stop] for start, stop in self.pairs]

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Parse the result of `to_json`; UsageError for anything else."""
        if not isinstance(value, (list, tuple)):
            raise UsageError(f"ranges must be a list of [start, stop], not {str(value)[:80]!r}")
        return cls.of(value)


_END = 1 << 62


def _checked(pair: Any) -> Range:
    if isinstance(pair, (list, tuple)) and len(pair) == 2:
        start, stop = pair
        if isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop:
            return start, stop
    raise UsageError(
        f"a range must be [start, stop], integers with 0 <= start <= stop, not {str(pair)[:80]!r}"
    )


#: Shards per rank and epoch: many, so that a slow rank has little left at the end.
SHARDS_PER_RANK: Final = 16


def shard_rows(total: int, world: int, batch: int) -> int:
    """Return the default number of positions of a shard.

    It is a multiple of one rank's equal part of a batch, near a sixteenth of what a rank trains in
    an epoch: so small that ranks of different speeds end the epoch together, so large that there
    are few leases.

    Args:
        total: positions of the epoch.
        world: number of ranks.
        batch: rows of a step, of all ranks.
    """
    part = max(1, -(-batch // world))
    target = total // (world * SHARDS_PER_RANK)
    return max(1, target // part) * part


def cut(remaining: Ranges, size: int) -> list[Range]:
    """Cut the remaining positions into shards of at most `size`, in order; no shard has a gap."""
    if size < 1:
        raise UsageError(f"a shard must have at least one row, not {size}")
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
    """Fixed positions of each rank at each step, independent of timing.

    Step s takes [s * batch, (s + 1) * batch) of the positions that remained when the epoch began or
    continued; rank r takes the r-th part of these. The last step takes the rest, and some ranks may
    get none of it.

    Attributes:
        remaining: positions of the epoch that are not trained yet.
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

    def _rows_of_all(self, step: int) -> int:
        return min(self.batch, max(0, self.remaining.count - step * self.batch))

    def rows(self, step: int) -> int:
        """Return the rows of this rank at `step`, from 0; 0 after the end."""
        return rows_of_rank(self._rows_of_all(step), self.rank, self.world)

    def shards(self, step: int) -> Sequence[Range]:
        """Return the positions of this rank at `step`, as shards with `rows(step)` rows in all."""
        rows = self._rows_of_all(step)
        before = sum(rows_of_rank(rows, rank, self.world) for rank in range(self.rank))
        start = step * self.batch + before
        return self.remaining.slice(start, start + self.rows(step)).pairs


#: What to do with the last step if it has too few batches for all ranks.
Uneven = Literal["keep", "drop", "pad"]


@dataclass(frozen=True, slots=True)
class RankShard:
    """The share of one rank in a group of fixed size.

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
    """Return how many batches the rank takes after the first `start` of an epoch's `total`."""
    left, world = total - start, shard.world_size
    match shard.uneven:
        case "drop":
            return left // world
        case "pad":
            return -(-left // world)
        case "keep":
            return max(0, -(-(left - shard.rank) // world))


def batches_of_rank(total: int, start: int, shard: RankShard) -> list[int]:
    """Return the epoch indices of the rank's batches after the first `start`, in its order."""
    return [
        (start + shard.rank + step * shard.world_size) % total
        for step in range(steps_of_rank(total, start, shard))
    ]


def taken_together(total: int, start: int, uneven: Uneven, taken: Sequence[int]) -> int | None:
    """Return how many batches of the epoch are taken when rank r has taken `taken[r]`.

    The result includes the first `start`. It is None if the ranks are not at the same step, because
    their batches are then not a prefix of the epoch.
    """
    world, step = len(taken), max(taken)
    for rank, count in enumerate(taken):
        if count != min(step, steps_of_rank(total, start, RankShard(rank, world, uneven))):
            return None
    return min(total, start + step * world)
