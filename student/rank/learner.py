"""One step of the optimizer over the rows of all ranks: the paper's Algorithm 2, lines 4 to 7.

Also the change of the learning rate with the number of ranks. A checkpoint has the number of ranks
that wrote it. If that has changed, a rank scales the learning rate and calls
the job's `on_scale`, once: the next checkpoint has the new number, and the effects of both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...scheduler.students.weights import BatchPiece, RateScaling, factor, pieces
from ..frameworks import LearningRate, Precision
from ..frameworks.groups import Group
from ..job.batches import Parts

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


def adapt_to_world(
    policy: RateScaling, old: int, new: int, rate: LearningRate, on_scale: Any
) -> bool:
    """Scale the rate and call `on_scale` if the number of ranks has changed; return whether."""
    if old in (0, new):
        return False
    rate.scale(factor(policy, old, new))
    on_scale(old, new)
    return True
