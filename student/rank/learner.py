"""One step of the optimizer over the rows of all ranks: the paper's Algorithm 2, lines 4 to 7.

With its mixed precision, and what follows when the number of ranks has changed: the learning rate,
and the job's `on_scale`. A checkpoint says of how many ranks it is. A rank that begins with one of
another number calls both once; what they did is in the next checkpoint, of the new number.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...runtime.errors import UsageError
from ...scheduler.students.weights import BatchPiece, RateScaling, factor, pieces
from ..job.batches import Parts
from ..settings import Amp
from .collective import Group

#: From (outputs, labels, soft labels, step) to `Terms`: `losses.step.StepLoss`.
LossOfStep = Callable[[Any, Any, Mapping[str, Any], int], Any]


@dataclass(frozen=True, slots=True)
class Learner:
    """What is trained, and how one step of it goes.

    Attributes:
        model: the student.
        parameters: of it, in the order that all ranks have.
        optimizer: over these.
        loss: of a piece of a batch.
        rate: the learning rate.
        precision: of the forward pass.
        group: all ranks.
        micro_batch: rows of one forward pass at most; None: any number.
    """

    model: Any
    parameters: Sequence[Any]
    optimizer: Any
    loss: LossOfStep
    rate: LearningRate
    precision: Precision
    group: Group
    micro_batch: int | None = None

    def backward(self, batch: Parts | None, total: int, step: int) -> dict[str, Any]:
        """Gradients of this rank's rows; None: it has none.

        Args:
            batch: the local batch.
            total: rows of all ranks in this step.
            step: number of the step in the whole training, from 0.

        Returns:
            The terms of the loss by name: scalar tensors, means over the local rows.
        """
        if batch is None:
            return {}
        means: dict[str, Any] = {}
        cut = pieces(batch.rows, total, self.micro_batch)
        for piece in cut:
            named = self._piece(batch.part(piece.start, piece.stop), piece, step)
            for name, value in named.items():
                part = value if len(cut) == 1 else value * _share(piece, batch.rows)
                means[name] = means[name] + part if name in means else part
        return means

    def _piece(self, part: Parts, piece: BatchPiece, step: int) -> Mapping[str, Any]:
        with self.precision.forward():
            terms = self.loss(part.forward(self.model), part.labels, part.soft, step)
        # Of weight 1 it is left as it is: training alone is the plain one, bit for bit.
        loss = terms.total if piece.weight == 1 else terms.total * piece.weight
        self.precision.backward(loss)
        named: Mapping[str, Any] = terms.named
        return named

    def apply(self) -> None:
        """Sum the gradients of all ranks, and take the step."""
        self.group.sum_gradients(self.parameters)
        self.precision.step(self.optimizer)
        self.optimizer.clear_grad()
        self.rate.step()

    def float_buffers(self) -> list[Any]:
        """Statistics that each rank gathers by itself, such as those of batch normalisation."""
        return [one for one in self.model.buffers() if one.is_floating_point()]


def _share(piece: BatchPiece, rows: int) -> float:
    return (piece.stop - piece.start) / rows


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


class Precision:
    """Paddle's automatic mixed precision (level O1); "off" leaves everything as it is, to the bit.

    In float16 gradients can vanish, so the loss is scaled up before the backward pass and gradients
    down again, by a factor that follows from what overflows (`GradScaler`). All ranks see the same
    summed gradients, so their factors stay equal.

    Args:
        amp: "off", "bfloat16" or "float16".
        device: of this rank.

    Attributes:
        scaler: Paddle's, of which a checkpoint holds the state; None: there is none.

    Raises:
        UsageError: float16 on a CPU.
    """

    def __init__(self, amp: Amp, device: str) -> None:
        if amp == "float16" and device == "cpu":
            raise UsageError("--amp float16 needs a GPU; on a CPU take bfloat16, or off")
        self._amp = amp
        self.scaler: Any = None
        if amp == "float16":
            import paddle

            self.scaler = paddle.amp.GradScaler()

    def forward(self) -> AbstractContextManager[Any]:
        """What the forward pass and the loss run under."""
        if self._amp == "off":
            return contextlib.nullcontext()
        import paddle

        managed: AbstractContextManager[Any] = paddle.amp.auto_cast(dtype=self._amp, level="O1")
        return managed

    def backward(self, loss: Any) -> None:
        """Add the gradients of `loss` to those that are there."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """The step of the optimizer; left out where gradients overflowed, with a smaller factor."""
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()
