"""One step of the optimizer over the rows of all ranks: the paper's Algorithm 2, lines 4 to 7."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...scheduler.students.weights import BatchPiece, pieces
from ..job.batches import Parts
from .collective import Group
from .precision import Precision
from .scaling import LearningRate

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
