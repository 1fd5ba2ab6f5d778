"""Which batches of an epoch fall to which rank, and how far all ranks together have come.

An epoch is a list of batches in one order that all ranks know. Behind the first `start` of them,
which nobody takes any more, the ranks take turns: at each step every rank has one batch, the next
in line. So ranks that stand at the same step have taken a prefix of the epoch together, and another
number of ranks can go on from there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import UsageError

#: What becomes of the last step, where there are too few batches for all ranks.
Uneven = Literal["keep", "drop", "pad"]


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of one rank in a fixed group.

    Attributes:
        rank: its number, from 0.
        world_size: ranks in all.
        uneven: "keep": each batch goes to one rank, some ranks have one batch less; "drop": the
            last step is left out where it is not full; "pad": it is filled with the first batches
            of the epoch, which are then read twice.
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


def steps(total: int, start: int, shard: Shard) -> int:
    """How many batches of an epoch of `total` fall to the rank, the first `start` being gone."""
    left, world = total - start, shard.world_size
    match shard.uneven:
        case "drop":
            return left // world
        case "pad":
            return -(-left // world)
        case "keep":
            return max(0, -(-(left - shard.rank) // world))


def share(total: int, start: int, shard: Shard) -> list[int]:
    """The places in the epoch of the batches that fall to the rank, in its order."""
    return [
        (start + shard.rank + step * shard.world_size) % total
        for step in range(steps(total, start, shard))
    ]


def taken_together(total: int, start: int, uneven: Uneven, taken: Sequence[int]) -> int | None:
    """How many batches of the epoch are gone when rank r has taken `taken[r]`.

    Returns:
        The length of the prefix that all ranks have taken; None where they do not stand at the same
        step, so that what they have taken is no prefix.
    """
    world, step = len(taken), max(taken)
    for rank, count in enumerate(taken):
        if count != min(step, steps(total, start, Shard(rank, world, uneven))):
            return None
    return min(total, start + step * world)
