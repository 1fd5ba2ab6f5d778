"""How many rows of a step each rank takes: in proportion to how fast it is, and known ahead.

Every rank keeps the same `Proportion` and tells it the same votes, so all of them know all shares
without a leader. Ranks read ahead; so a change holds only from a step on that nobody has pulled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

#: A change has to make the slowest rank's step shorter by this part, or it is not worth making.
WORTH: Final = 0.1
#: Times of a rank that are looked at: their median stands for it.
WINDOW: Final = 5
#: With fewer of a rank nothing is changed.
ENOUGH: Final = 3
#: What was seen of a rank before the last change is believed by so much less with each step. One
#: that waits for others hides how slow its source is, as that goes on meanwhile; and shows it
#: again when it is given more. So what it showed is not forgotten at once.
FADES: Final = 0.98
#: So finely are speeds told apart: in parts of the greatest.
_FINE: Final = 1_000_000

Rows = tuple[int, ...]


def equal_rows(total: int, world: int) -> Rows:
    """Equal parts of `total`; the first ranks have the odd ones, as in `StaticDeal`."""
    return tuple(total // world + (rank < total % world) for rank in range(world))


def rows_by_speed(total: int, speeds: Sequence[float]) -> Rows:
    """Parts of `total` in proportion to `speeds`, rounded so that they sum to it exactly.

    Largest remainders are rounded up, of equal ones the first. Each rank gets at least one row
    where there are enough: one that gets none would never be seen to have become fast.

    Args:
        total: rows of the step, at least 0.
        speeds: rows per second of each rank, above 0.
    """
    world = len(speeds)
    least = 1 if total >= world else 0
    # Whole numbers from here on: every rank computes the same, to the last row.
    parts = [max(1, round(_FINE * speed / max(speeds))) for speed in speeds]
    beyond = [max(0, total * part - least * sum(parts)) for part in parts]  # of the least
    spare, scale = total - least * world, max(1, sum(beyond))
    rows = [spare * part // scale for part in beyond]
    by_remainder = sorted(range(world), key=lambda rank: (-(spare * beyond[rank] % scale), rank))
    for rank in by_remainder[: spare - sum(rows)]:
        rows[rank] += 1
    return tuple(least + part for part in rows)


def within(rows: Rows, left: int) -> Rows:
    """The parts of a step where the epoch has only `left` rows, or none, left for it."""
    if left >= sum(rows):
        return rows
    return rows_by_speed(max(0, left), [max(1, part) for part in rows])


def useful(part: int, left: int, total: int) -> int:
    """Rows that a rank will train of the `left` ones of an epoch, if its part stays as it is.

    Args:
        part: its rows of the next step.
        left: rows of the epoch from that step on, of all ranks together.
        total: rows of a whole step of all ranks together.
    """
    return part if left <= total else left * part // total


@dataclass(frozen=True, slots=True)
class Change:
    """From step `step` on, rank r takes `rows[r]`."""

    step: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class Proportion:
    """The shares of all steps that are known, and what is known of the ranks.

    Attributes:
        total: rows of a step of all ranks together.
        changes: in the order of their steps; the last holds for all steps behind it.
        times: of each rank, its latest seconds per row under the last change.
        floors: of each rank, seconds per row that it is not believed to be below.
    """

    total: int
    changes: tuple[Change, ...]
    times: tuple[tuple[float, ...], ...]
    floors: tuple[float, ...]

    @classmethod
    def equal(cls, total: int, world: int, step: int = 0) -> Self:
        """Equal shares from `step` on, of ranks of which nothing is known."""
        first = Change(step, equal_rows(total, world))
        return cls(total, (first,), ((),) * world, (0.0,) * world)

    def rows(self, step: int) -> Rows:
        """Rows of each rank at `step`, which is not before the last one that was told."""
        of_step = self.changes[0]
        for change in self.changes:
            if change.step <= step:
                of_step = change
        return of_step.rows

    def told(self, step: int, times: Sequence[float], free_from: int) -> Self:
        """What follows from how long `step` took.

        Args:
            step: that was taken.
            times: of each rank, seconds per row: of its source or of computing, whichever takes
                longer, without waiting for others; 0 where it had too few rows to say.
            free_from: the first step that no rank has pulled rows for, nor will before it is told
                the shares that follow from this.
        """
        kept = [change for change in self.changes if change.step > step]
        changes = (Change(step, self.rows(step)), *kept)
        now = replace(self, changes=changes, floors=tuple(FADES * one for one in self.floors))
        if kept:
            return now  # a change is on its way: what is seen is of the shares before it
        seen = tuple(
            (*of_rank, time)[-WINDOW:] if time > 0 else of_rank
            for of_rank, time in zip(self.times, times, strict=True)
        )
        now = replace(now, times=seen)
        if any(len(of_rank) < ENOUGH for of_rank in seen):
            return now
        believed = tuple(map(max, map(_median, seen), now.floors))
        rows, better = changes[-1].rows, rows_by_speed(self.total, [1 / time for time in believed])
        if _duration(better, believed) > (1 - WORTH) * _duration(rows, believed):
            return now
        change = Change(max(free_from, step + 1), better)
        unseen: tuple[tuple[float, ...], ...] = ((),) * len(times)
        return replace(now, changes=(*changes, change), times=unseen, floors=believed)


def _duration(rows: Rows, times: Sequence[float]) -> float:
    """Seconds of the slowest rank."""
    return max(count * time for count, time in zip(rows, times, strict=True))


def _median(values: Sequence[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
