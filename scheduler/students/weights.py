"""Weights of loss terms, pieces of a batch, and the learning rate in another world.

The weight of a loss term is constant or follows a schedule over the steps of a training. A local
batch that does not fit on a device is trained in pieces. The gradients of the mean loss of each
piece, times the weights of the pieces, add up to the gradient of the mean loss over the rows of all
ranks. So the total batch of a step is what the job says, in any world and on any device. With a
`LearningRateScaling` other than "keep", the learning rate changes when the number of ranks changes.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

#: How the learning rate follows the number of ranks. "keep": it stays, because the total batch is
#: constant; "linear": in proportion to the number; "sqrt": to the square root of the number.
LearningRateScaling = Literal["keep", "linear", "sqrt"]


def factor(policy: LearningRateScaling, old: int, new: int) -> float:
    """Return the factor of the learning rate when `old` ranks become `new`.

    It is exactly 1 if the number stays the same, or if there was no world before (`old` is 0).
    """
    if policy == "keep" or old in (0, new):
        return 1.0
    return new / old if policy == "linear" else math.sqrt(new / old)


@dataclass(frozen=True, slots=True)
class BatchPiece:
    """Rows [start, stop) of a local batch.

    Attributes:
        start: its first row.
        stop: the row after its last one.
        total: rows of the step, of all ranks.
    """

    start: int
    stop: int
    total: int

    @property
    def weight(self) -> float:
        """Weight of this piece's mean in the mean over all rows; exactly 1 if it has all rows."""
        return (self.stop - self.start) / self.total


def pieces(rows: int, total: int, max_rows: int | None) -> list[BatchPiece]:
    """Split a local batch into the fewest pieces of at most `max_rows` rows, of similar size.

    Args:
        rows: rows of this rank in this step; 0: no pieces.
        total: rows of all ranks in this step.
        max_rows: limit of the rows in one forward pass; None: any number.
    """
    if rows == 0:
        return []
    count = 1 if max_rows is None else -(-rows // max_rows)
    return [
        BatchPiece(rows * part // count, rows * (part + 1) // count, total) for part in range(count)
    ]


@dataclass(frozen=True, slots=True)
class _Ramp:
    """A weight that moves from `first` to `last`.

    Attributes:
        first: weight up to step `after`, at least 0.
        last: weight from step `after + steps` on, at least 0.
        steps: duration in steps; None: until the end of the training.
        after: step, from 0, at which it begins.

    Raises:
        ValueError: a number out of range.
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
        return self.first + (self.last - self.first) * self._eased(part) if part < 1 else self.last

    @property
    def needs_total(self) -> bool:
        return self.steps is None

    def _part(self, step: int, steps_total: int | None) -> float:
        """Return the progress of the ramp in `step`, from 0 to 1."""
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

    def _eased(self, part: float) -> float:
        """Return the part of the way from `first` to `last` that is done at progress `part`.

        Both are from 0 to 1.
        """
        return part


@dataclass(frozen=True, slots=True)
class Linear(_Ramp):
    """A weight that moves from `first` to `last` by equal amounts per step."""


@dataclass(frozen=True, slots=True)
class Cosine(_Ramp):
    """A weight that moves from `first` to `last` along half a cosine: slow, fast, slow."""

    def _eased(self, part: float) -> float:
        return (1 - math.cos(math.pi * part)) / 2


@dataclass(frozen=True, slots=True)
class Steps:
    """Constant weights: `values[0]` before step `at_steps[0]`, then `values[1]`, ...

    Attributes:
        values: the weights, at least 0.
        at_steps: steps at which the next value begins, ascending; one fewer than the values.

    Raises:
        ValueError: a weight is out of range, or the steps do not fit the values or do not ascend.
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
            raise ValueError(f"at_steps must ascend from 1 or more, not {list(self.at_steps)}")

    def at(self, step: int, steps_total: int | None) -> float:
        return self.values[bisect_right(self.at_steps, step)]

    @property
    def needs_total(self) -> bool:
        return False


Schedule = Linear | Cosine | Steps
#: A constant weight or a schedule.
Weight = float | Schedule


def weight_at(weight: Weight, step: int, steps_total: int | None = None) -> float:
    """Return the weight of a term in step `step`.

    Args:
        weight: a number, or a schedule.
        step: number of the step in the whole training, from 0.
        steps_total: steps of the whole training; None: unknown.

    Raises:
        ValueError: the schedule runs until the end of the training, and `steps_total` is unknown.
    """
    if isinstance(weight, Schedule):
        return weight.at(step, steps_total)
    return float(weight)


def check(weight: Weight) -> Weight:
    """Return `weight` if it is a finite number >= 0 or a schedule; else raise ValueError."""
    if not isinstance(weight, Schedule):
        _check_weight(weight)
    return weight


def always_zero(weight: Weight) -> bool:
    """Whether the weight is 0 in every step."""
    match weight:
        case Linear() | Cosine():
            return weight.first == weight.last == 0
        case Steps():
            return not any(weight.values)
        case _:
            return weight == 0


def needs_total(weight: Weight) -> bool:
    """Whether the weight depends on the number of steps of the whole training."""
    return isinstance(weight, Schedule) and weight.needs_total


def _check_weight(value: object) -> None:
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else -1
    if not (math.isfinite(number) and number >= 0):
        raise ValueError(f"a weight is a finite number >= 0, not {value!r}")
