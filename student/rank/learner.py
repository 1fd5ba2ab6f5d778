"""One step of the optimizer over the rows of all ranks: the paper's Algorithm 2, lines 4 to 7.

Also mixed precision, and the change of the learning rate with the number of ranks. A checkpoint has
the number of ranks that wrote it. If that has changed, a rank scales the learning rate and calls
the job's `on_scale`, once: the next checkpoint has the new number, and the effects of both.
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
    """The model with its optimizer and loss, and the operations of one step.

    Attributes:
        model: the student.
        parameters: parameters of the model, in the same order on all ranks.
        optimizer: over these parameters.
        loss: computes the loss of a micro-batch.
        rate: the learning rate.
        precision: precision of the forward pass.
        group: all ranks.
        micro_batch: most rows of one forward pass; None: any number.
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
        """Add the gradients of this rank's rows, weighted by their part of all rows.

        Args:
            batch: the local batch; None: this rank has no rows.
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
        # With weight 1 it stays unchanged: a single rank trains bit-identically to plain training.
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
        """Return statistics that each rank gathers itself, such as those of batch normalisation."""
        return [one for one in self.model.buffers() if one.is_floating_point()]


def _share(piece: BatchPiece, rows: int) -> float:
    return (piece.stop - piece.start) / rows


class LearningRate:
    """The learning rate of an optimizer: its schedule, times a factor.

    The schedule computes the same rates as without changes of the number of ranks; the factor is
    applied to its result.

    Attributes:
        factor: product of all changes so far; 1 leaves every rate unchanged, bit for bit.
    """

    def __init__(self, optimizer: Any) -> None:
        from paddle.optimizer.lr import LRScheduler

        self._optimizer = optimizer
        given = optimizer._learning_rate  # `get_lr` would return a number for both kinds
        self._schedule = given if isinstance(given, LRScheduler) else None
        self.factor = 1.0

    def restored(self, factor: float) -> None:
        """Set the factor of a checkpoint, after its optimizer and schedule were restored."""
        self.factor = factor

    def scale(self, by: float) -> None:
        """Multiply the present rate, and all later ones."""
        if by == 1.0:
            return
        self.factor *= by
        if self._schedule is None:
            self._optimizer.set_lr(self._optimizer.get_lr() * by)
        else:
            self._schedule.last_lr *= by

    def step(self) -> None:
        """Advance the schedule, if there is one, after a step of the optimizer.

        A schedule that follows a metric (`ReduceOnPlateau`) is advanced by `evaluated` instead.
        """
        if self._schedule is None or self._by_metric():
            return
        self._bare(self._schedule.step)

    def evaluated(self, metric: float) -> None:
        """Advance a schedule that follows a metric, after an evaluation."""
        if self._by_metric():
            schedule: Any = self._schedule
            self._bare(lambda: schedule.step(metric))

    def _by_metric(self) -> bool:
        from paddle.optimizer.lr import ReduceOnPlateau

        return isinstance(self._schedule, ReduceOnPlateau)

    def _bare(self, step: Any) -> None:
        """Advance the schedule without the factor, as some compute a rate from the last one."""
        if self.factor == 1.0:
            step()
            return
        schedule: Any = self._schedule
        schedule.last_lr /= self.factor
        step()
        schedule.last_lr *= self.factor


def adapt_to_world(
    policy: RateScaling, old: int, new: int, rate: LearningRate, on_scale: Any
) -> bool:
    """Scale the rate and call `on_scale` if the number of ranks has changed; return whether."""
    if old in (0, new):
        return False
    rate.scale(factor(policy, old, new))
    on_scale(old, new)
    return True


class Precision:
    """Paddle's automatic mixed precision (level O1); "off" changes nothing, bit for bit.

    Gradients in float16 can underflow. So `GradScaler` multiplies the loss before the backward
    pass, divides the gradients afterwards, and adapts the factor to overflows. All ranks see the
    same summed gradients, so their factors stay equal.

    Args:
        amp: "off", "bfloat16" or "float16".
        device: device of this rank.

    Attributes:
        scaler: Paddle's `GradScaler`, which checkpoints capture; None: there is none.

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
        """Return the context of the forward pass and the loss."""
        if self._amp == "off":
            return contextlib.nullcontext()
        import paddle

        managed: AbstractContextManager[Any] = paddle.amp.auto_cast(dtype=self._amp, level="O1")
        return managed

    def backward(self, loss: Any) -> None:
        """Add the gradients of `loss` to the present ones."""
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def step(self, optimizer: Any) -> None:
        """Take a step of the optimizer; skipped, with a smaller factor, if gradients overflowed."""
        if self.scaler is None:
            optimizer.step()
            return
        self.scaler.step(optimizer)
        self.scaler.update()
