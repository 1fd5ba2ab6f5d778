"""What follows when the number of ranks has changed: the learning rate, and the job's `on_scale`.

A checkpoint says of how many ranks it is. A rank that begins with one of another number calls both
once; what they did is in the next checkpoint, which is of the new number.
"""

from __future__ import annotations

from typing import Any

from ...scheduler.students.weights import RateScaling, factor


class LearningRate:
    """The learning rate of an optimizer, by which it is multiplied, and its schedule.

    A schedule computes what it would without any change of the world; the factor comes behind it.

    Attributes:
        factor: of all changes so far; 1 leaves every rate as it is, to the bit.
    """

    def __init__(self, optimizer: Any) -> None:
        from paddle.optimizer.lr import LRScheduler

        self._optimizer = optimizer
        given = optimizer._learning_rate  # `get_lr` gives a number for both kinds
        self._schedule = given if isinstance(given, LRScheduler) else None
        self.factor = 1.0

    def restored(self, factor: float) -> None:
        """The optimizer, and its schedule, are those of a checkpoint that was written with it."""
        self.factor = factor

    def scale(self, by: float) -> None:
        """Multiply it from now on, beside what was before."""
        if by == 1.0:
            return
        self.factor *= by
        if self._schedule is None:
            self._optimizer.set_lr(self._optimizer.get_lr() * by)
        else:
            self._schedule.last_lr *= by

    def step(self) -> None:
        """Behind a step of the optimizer: the schedule goes on, if there is one.

        One that is driven by a metric (`ReduceOnPlateau`) is stepped with evaluations.
        """
        if self._schedule is None or self._by_metric():
            return
        self._bare(self._schedule.step)

    def evaluated(self, metric: float) -> None:
        """The job was evaluated: a schedule that follows a metric hears of it."""
        if self._by_metric():
            schedule: Any = self._schedule
            self._bare(lambda: schedule.step(metric))

    def _by_metric(self) -> bool:
        from paddle.optimizer.lr import ReduceOnPlateau

        return isinstance(self._schedule, ReduceOnPlateau)

    def _bare(self, step: Any) -> None:
        """Let the schedule see its own rate, as some compute the next from the last."""
        if self.factor == 1.0:
            step()
            return
        schedule: Any = self._schedule
        schedule.last_lr /= self.factor
        step()
        schedule.last_lr *= self.factor


def scaled(policy: RateScaling, old: int, new: int, rate: LearningRate, on_scale: Any) -> bool:
    """Do what a change from `old` ranks to `new` asks for; whether there was one."""
    if old in (0, new):
        return False
    rate.scale(factor(policy, old, new))
    on_scale(old, new)
    return True
