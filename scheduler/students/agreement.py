"""Decisions that all ranks derive from all votes: what to do at a step, and the rows of each rank.

There is no leader. Before each step every rank votes. All ranks get all votes in the order of
ranks, and `decide` is a function of the votes alone, so all ranks do the same. In the same way
every rank keeps an equal `RowShares`, so all ranks know the rows of each rank in advance. The rows
are in proportion to the ranks' speeds. Ranks pull rows before their step, so a change applies from
the first step for which no rank has pulled rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median_high
from typing import Final, Literal, Self

from .shards import rows_of_rank

#: If the previous vote of a rank is more than this many seconds ago, the ranks wait for each other
#: without the time limit of a collective.
PATIENT_FROM_S: Final = 5.0

#: "step": train; "again": a rank has no batch yet, vote again; "over": no rank has anything left of
#: this epoch.
StepVerdict = Literal["step", "again", "over"]


@dataclass(frozen=True, slots=True)
class Vote:
    """The state of one rank before a step.

    Attributes:
        rows: rows of its batch; 0: it has no rows left in this epoch.
        waiting: it waits for a batch, and `rows` is not valid yet.
        leaving: its supervisor wants it to leave at a safe point.
        save: a snapshot is due.
        pulled: the last step for which it has pulled rows, or may pull rows before the next vote.
        row_s: seconds per row in its previous step: the longer of the times of its source and of
            computing; 0: unknown.
        busy_s: seconds between the previous vote and this one.
    """

    rows: int = 0
    waiting: bool = False
    leaving: bool = False
    save: bool = False
    pulled: int = -1
    row_s: float = 0.0
    busy_s: float = 0.0

    def to_numbers(self) -> tuple[float, ...]:
        """Return the vote as numbers that float64 represents exactly."""
        return tuple(float(value) for value in astuple(self))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        rows, waiting, leaving, save, pulled, row_s, busy_s = numbers
        return cls(int(rows), bool(waiting), bool(leaving), bool(save), int(pulled), row_s, busy_s)


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What all ranks do now.

    Attributes:
        verdict: whether to train.
        rows: of each rank; empty unless the verdict is "step".
        leave: all ranks leave, after this step or, if the verdict is not "step", at once.
        save: take a snapshot after this step.
        free_from: the first step with shares that can still change.
        patient: ranks may reach the next collective at very different times, so it has no time
            limit.
    """

    verdict: StepVerdict
    rows: tuple[int, ...] = ()
    leave: bool = False
    save: bool = False
    free_from: int = 0
    patient: bool = False

    @property
    def total(self) -> int:
        """Rows of all ranks."""
        return sum(self.rows)


def decide(votes: Sequence[Vote]) -> StepDecision:
    """Return the decision that follows from the votes of all ranks, in their order."""
    verdict: StepVerdict
    if any(vote.waiting for vote in votes):
        verdict = "again"
    else:
        verdict = "step" if any(vote.rows for vote in votes) else "over"
    return StepDecision(
        verdict,
        tuple(vote.rows for vote in votes) if verdict == "step" else (),
        leave=any(vote.leaving for vote in votes),
        save=verdict == "step" and any(vote.save for vote in votes),
        free_from=max(vote.pulled for vote in votes) + 1,
        patient=any(vote.busy_s > PATIENT_FROM_S for vote in votes),
    )


#: Rows change only if the slowest rank's step gets shorter by at least this fraction.
WORTH: Final = 0.1
#: Number of latest times per rank that are kept; their median is used.
WINDOW: Final = 5
#: Rows change only once each rank has this many times.
ENOUGH: Final = 3
#: Times from before the last change stay lower bounds, which shrink by this factor per step. With
#: fewer rows, a rank with a slow source waits for others while its source works ahead, so its new
#: times look short. Without the bounds it would get its old rows back at once.
FLOOR_DECAY: Final = 0.98
#: Speeds are rounded to multiples of the greatest speed divided by this.
_SPEED_PARTS: Final = 1_000_000

Rows = tuple[int, ...]


def equal_rows(total: int, world: int) -> Rows:
    """Return equal parts of `total` rows; the first ranks get the remainder, as in `StaticDeal`."""
    return tuple(rows_of_rank(total, rank, world) for rank in range(world))


def rows_by_speed(total: int, speeds: Sequence[float]) -> Rows:
    """Return parts of `total` in proportion to `speeds`, rounded so that they sum to it exactly.

    The largest remainders are rounded up; among equal ones, those of the first ranks. Each rank
    gets at least one row if there are enough: otherwise it could not show that it has become fast.

    Args:
        total: rows of the step, at least 0.
        speeds: rows per second of each rank, above 0.
    """
    world = len(speeds)
    minimum = 1 if total >= world else 0
    # Only integers from here on, so that every rank computes exactly the same.
    parts = [max(1, round(_SPEED_PARTS * speed / max(speeds))) for speed in speeds]
    beyond = [max(0, total * part - minimum * sum(parts)) for part in parts]  # above `minimum` rows
    spare, scale = total - minimum * world, max(1, sum(beyond))
    rows = [spare * part // scale for part in beyond]
    by_remainder = sorted(range(world), key=lambda rank: (-(spare * beyond[rank] % scale), rank))
    for rank in by_remainder[: spare - sum(rows)]:
        rows[rank] += 1
    return tuple(minimum + part for part in rows)


def limit_rows(rows: Rows, left: int) -> Rows:
    """Return the rows of each rank in a step if the epoch has only `left` rows left."""
    if left >= sum(rows):
        return rows
    return rows_by_speed(max(0, left), [max(1, part) for part in rows])


def rows_left_for_rank(part: int, left: int, total: int) -> int:
    """Return how many of an epoch's last `left` rows a rank will train if its share stays the same.

    Args:
        part: its rows in the next step.
        left: rows of the epoch from that step on, of all ranks.
        total: rows of a whole step, of all ranks.
    """
    return part if left <= total else left * part // total


@dataclass(frozen=True, slots=True)
class RowsChange:
    """From step `step` on, rank r takes `rows[r]`."""

    step: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class RowShares:
    """The shares of all known steps, and the measured times of the ranks.

    Attributes:
        total: rows of a step, of all ranks.
        changes: in the order of their steps; the last one applies to all later steps too.
        times: latest seconds per row of each rank, measured since the last change.
        floors: lower bound of the seconds per row of each rank, from before the last change.
    """

    total: int
    changes: tuple[RowsChange, ...]
    times: tuple[tuple[float, ...], ...]
    floors: tuple[float, ...]

    @classmethod
    def equal(cls, total: int, world: int, step: int = 0) -> Self:
        """Return equal shares from `step` on, for ranks without measurements."""
        first = RowsChange(step, equal_rows(total, world))
        return cls(total, (first,), ((),) * world, (0.0,) * world)

    def rows(self, step: int) -> Rows:
        """Return the rows of each rank at `step`: the latest measured step or a later one."""
        latest = self.changes[0]
        for change in self.changes:
            if change.step <= step:
                latest = change
        return latest.rows

    def after_step(self, step: int, times: Sequence[float], free_from: int) -> Self:
        """Return the shares that follow from the times of `step`.

        Args:
            step: the finished step.
            times: seconds per row of each rank: the longer of the times of its source and of
                computing, without waiting for others; 0: unknown, as it had too few rows.
            free_from: the first step for which no rank has pulled rows, or will pull rows before it
                knows the new shares.
        """
        pending = [change for change in self.changes if change.step > step]
        changes = (RowsChange(step, self.rows(step)), *pending)
        floors = tuple(FLOOR_DECAY * floor for floor in self.floors)
        shares = replace(self, changes=changes, floors=floors)
        if pending:
            return shares  # these times belong to the old shares
        measured = tuple(
            (*of_rank, time)[-WINDOW:] if time > 0 else of_rank
            for of_rank, time in zip(self.times, times, strict=True)
        )
        shares = replace(shares, times=measured)
        if any(len(of_rank) < ENOUGH for of_rank in measured):
            return shares
        estimates = tuple(map(max, map(median_high, measured), shares.floors))
        rows, better = changes[-1].rows, rows_by_speed(self.total, [1 / time for time in estimates])
        if _duration(better, estimates) > (1 - WORTH) * _duration(rows, estimates):
            return shares
        change = RowsChange(max(free_from, step + 1), better)
        none_yet: tuple[tuple[float, ...], ...] = ((),) * len(times)
        return replace(shares, changes=(*changes, change), times=none_yet, floors=estimates)


def _duration(rows: Rows, times: Sequence[float]) -> float:
    """Return the seconds that the slowest rank needs for a step."""
    return max(count * time for count, time in zip(rows, times, strict=True))
