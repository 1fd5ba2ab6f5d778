"""What all ranks decide from the votes of all: what they do at a step, and who takes how many rows.

Nobody leads. Before each step every rank says in a few numbers how it stands. All get all votes, in
the order of ranks, and `decide` is a function of them alone: so all do the same, or none of it
would end. Likewise every rank keeps the same `RowShares` and tells it the same votes, so all of
them know all shares: in proportion to how fast each rank is, and known ahead. Ranks read ahead; so
a change holds only from a step on that nobody has pulled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from statistics import median_high
from typing import Final, Literal, Self

from .shards import rows_of_rank

#: A rank may be so much later than others before those, waiting in a collective, are cut off.
#: Steps that take this long are waited for in a way that knows no such limit.
PATIENT_FROM_S: Final = 5.0

#: "step": train what is there; "again": some rank has no batch yet, ask once more; "over": nobody
#: has anything left of this epoch.
StepVerdict = Literal["step", "again", "over"]


@dataclass(frozen=True, slots=True)
class Vote:
    """How one rank stands before a step.

    Attributes:
        rows: of the batch that it holds; 0: it has none left of this epoch.
        waiting: it waits for a batch: `rows` says nothing yet.
        leaving: its supervisor wants it to leave at a safe point.
        save: it is time for a snapshot.
        pulled: the last step for which it may have pulled rows, or may until it is told more.
        row_s: seconds per row of its step before, of its source or of computing, whichever takes
            longer; 0: not known.
        busy_s: seconds between the vote before and this one.
    """

    rows: int = 0
    waiting: bool = False
    leaving: bool = False
    save: bool = False
    pulled: int = -1
    row_s: float = 0.0
    busy_s: float = 0.0

    def to_numbers(self) -> tuple[float, ...]:
        """For a vector of float64, which holds them exactly."""
        return tuple(float(value) for value in astuple(self))

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        rows, waiting, leaving, save, pulled, row_s, busy_s = numbers
        return cls(int(rows), bool(waiting), bool(leaving), bool(save), int(pulled), row_s, busy_s)


@dataclass(frozen=True, slots=True)
class StepDecision:
    """What all ranks do now.

    Attributes:
        verdict: of the step.
        rows: of each rank; empty unless it is "step".
        leave: behind this step (at once, where there is none) all leave.
        save: behind this step there is a snapshot.
        free_from: the first step whose shares can still be changed.
        patient: ranks may be far apart at what comes now.
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
    """What follows from the votes of all ranks, in their order."""
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
    return tuple(rows_of_rank(total, rank, world) for rank in range(world))


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
class RowsChange:
    """From step `step` on, rank r takes `rows[r]`."""

    step: int
    rows: Rows


@dataclass(frozen=True, slots=True)
class RowShares:
    """The shares of all steps that are known, and what is known of the ranks.

    Attributes:
        total: rows of a step of all ranks together.
        changes: in the order of their steps; the last holds for all steps behind it.
        times: of each rank, its latest seconds per row under the last change.
        floors: of each rank, seconds per row that it is not believed to be below.
    """

    total: int
    changes: tuple[RowsChange, ...]
    times: tuple[tuple[float, ...], ...]
    floors: tuple[float, ...]

    @classmethod
    def equal(cls, total: int, world: int, step: int = 0) -> Self:
        """Equal shares from `step` on, of ranks of which nothing is known."""
        first = RowsChange(step, equal_rows(total, world))
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
        changes = (RowsChange(step, self.rows(step)), *kept)
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
        believed = tuple(map(max, map(median_high, seen), now.floors))
        rows, better = changes[-1].rows, rows_by_speed(self.total, [1 / time for time in believed])
        if _duration(better, believed) > (1 - WORTH) * _duration(rows, believed):
            return now
        change = RowsChange(max(free_from, step + 1), better)
        unseen: tuple[tuple[float, ...], ...] = ((),) * len(times)
        return replace(now, changes=(*changes, change), times=unseen, floors=believed)


def _duration(rows: Rows, times: Sequence[float]) -> float:
    """Seconds of the slowest rank."""
    return max(count * time for count, time in zip(rows, times, strict=True))
