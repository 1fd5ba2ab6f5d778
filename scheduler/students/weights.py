"""What a step weighs: its loss terms, its pieces, and its learning rate in another world.

The weight of a loss term is constant or follows a schedule over the steps of a training. A local
batch that does not fit a device is trained in pieces. So the total batch of a step is what the job
says, whatever the world and whatever fits: gradients of the mean over each piece, times its weight,
add up to that of the mean over the rows of all ranks. The learning rate changes once for each
change of the number of ranks.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

#: "keep": nothing, as befits a total batch that stays the same; "linear", "sqrt": as the ranks.
RateScaling = Literal["keep", "linear", "sqrt"]


def factor(policy: RateScaling, old: int, new: int) -> float:
    """By what the learning rate is multiplied when `old` ranks become `new`.

    Exactly 1 where nothing changes, or where there was no world before (`old` is 0).
    """
    if policy == "keep" or old in (0, new):
        return 1.0
    return new / old if policy == "linear" else math.sqrt(new / old)


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """Rows [start, stop) of a local batch.

    Attributes:
        start: first row.
        stop: behind the last one.
        total: rows of the step, of all ranks together.
    """

    start: int
    stop: int
    total: int

    @property
    def weight(self) -> float:
        """Of the mean over this piece within the mean over all rows; exactly 1 where it is all."""
        return (self.stop - self.start) / self.total


def pieces(rows: int, total: int, most: int | None) -> list[BatchPiece]:
    """A local batch of `rows` in as few pieces of at most `most` rows as can be, of like sizes.

    Args:
        rows: of this rank in this step; 0: there are no pieces.
        total: of all ranks in this step.
        most: rows that one forward pass takes; None: any number.
    """
    if rows == 0:
        return []
    count = 1 if most is None else -(-rows // most)
    return [
        BatchPiece(rows * part // count, rows * (part + 1) // count, total) for part in range(count)
    ]


@dataclass(frozen=True, slots=True)
class _Ramp:
    """From `first` to `last`.

    Attributes:
        first: weight up to step `after`, at least 0.
        last: weight from step `after + steps` on, at least 0.
        steps: over so many steps; None: until the end of the training.
        after: step, from 0, at which it begins.

    Raises:
        ValueError: a number that cannot be.
    """

    first: float
    last: float
    steps: int | None = None
    after: int = 0

    def __post_init__(self) -> None:
        _check_weight(self.first)
        _check_weight(self.last)
        if self.steps is not None and self.steps < 1:
            raise ValueError(f"a schedule runs over at least 1 step, not {self.steps}")
        if self.after < 0:
            raise ValueError(f"a schedule begins after 0 steps or more, not {self.after}")

    def at(self, step: int, steps_total: int | None) -> float:
        part = self._part(step, steps_total)
        return self.first + (self.last - self.first) * self._bent(part) if part < 1 else self.last

    @property
    def needs_total(self) -> bool:
        return self.steps is None

    def _part(self, step: int, steps_total: int | None) -> float:
        """How much of the way is done in `step`, from 0 to 1."""
        after, steps = self.after, self.steps
        if steps is None:
            if steps_total is None:
                raise ValueError(
                    "the schedule runs until the end of the training, and its number of steps is"
                    " not known: give the schedule steps=..., or end the training after a number"
                    " of steps"
                )
            steps = steps_total - 1 - after  # the last step has the last weight
        if step <= after:
            return 0.0 if steps > 0 or step < after else 1.0
        return min((step - after) / steps, 1.0) if steps > 0 else 1.0

    def _bent(self, part: float) -> float:
        """How far it is from `first` to `last` behind this part of the steps; both in [0, 1]."""
        return part


@dataclass(frozen=True, slots=True)
class Linear(_Ramp):
    """From `first` to `last` in equal parts."""


@dataclass(frozen=True, slots=True)
class Cosine(_Ramp):
    """From `first` to `last` along half a cosine: slow, fast, slow."""

    def _bent(self, part: float) -> float:
        return (1 - math.cos(math.pi * part)) / 2


@dataclass(frozen=True, slots=True)
class Steps:
    """One weight after another: `values[0]` before step `at_steps[0]`, then `values[1]`, ...

    Attributes:
        values: the weights, at least 0.
        at_steps: steps at which the next one begins, growing, one fewer than the values.

    Raises:
        ValueError: numbers that cannot be.
    """

    values: tuple[float, ...]
    at_steps: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(self.values))
        object.__setattr__(self, "at_steps", tuple(self.at_steps))
        for value in self.values:
            _check_weight(value)
        if len(self.values) != len(self.at_steps) + 1:
            raise ValueError(
                f"{len(self.values)} values need {len(self.values) - 1} steps between them, not"
                f" {len(self.at_steps)}"
            )
        pairs = zip((0, *self.at_steps), self.at_steps, strict=False)
        if any(later <= earlier for earlier, later in pairs):
            raise ValueError(f"steps grow, from 1: not {list(self.at_steps)}")

    def at(self, step: int, steps_total: int | None) -> float:
        return self.values[bisect_right(self.at_steps, step)]

    @property
    def needs_total(self) -> bool:
        return False


Schedule = Linear | Cosine | Steps
#: What a weight can be given as.
Weight = float | Schedule


def weight_at(weight: Weight, step: int, steps_total: int | None = None) -> float:
    """The weight of a term in step `step`.

    Args:
        weight: a number, or a schedule.
        step: number of the step in the whole training, from 0.
        steps_total: steps of the whole training; None: not known.

    Raises:
        ValueError: the schedule runs until the end of the training, which is not known.
    """
    if isinstance(weight, Schedule):
        return weight.at(step, steps_total)
    return float(weight)


def check(weight: Weight) -> Weight:
    """`weight`, if it is a finite number of at least 0 or a schedule; raises ValueError."""
    if not isinstance(weight, Schedule):
        _check_weight(weight)
    return weight


def always_zero(weight: Weight) -> bool:
    """Whether the term has no weight in any step."""
    match weight:
        case Linear() | Cosine():
            return weight.first == weight.last == 0
        case Steps():
            return not any(weight.values)
        case _:
            return weight == 0


def needs_total(weight: Weight) -> bool:
    """Whether the weight depends on how many steps the whole training has."""
    return isinstance(weight, Schedule) and weight.needs_total


def _check_weight(value: object) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"a weight is a finite number >= 0, not {value!r}")
