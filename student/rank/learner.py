"""One step of the optimizer over the rows of all ranks: the paper's Algorithm 2, lines 5 to 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...scheduler.students.weights import BatchPiece, pieces
from ..frameworks import LearningRate, Precision
from ..frameworks.groups import Group
from ..job.batches import Parts
from ..losses.step import StepLoss


@dataclass(frozen=True, slots=True)
class Learner:
    """The model with its optimizer and loss, and the operations of one step.

    Attributes:
        model: the student.
        parameters: parameters of the model, in the same order on all ranks.
        optimizer: optimizer of these parameters.
        loss: computes the loss of a micro-batch.
        rate: the learning rate.
        precision: precision of the forward pass.
        group: all ranks.
        micro_batch: limit of the rows of one forward pass; None: no limit.
    """

    model: Any
    parameters: Sequence[Any]
    optimizer: Any
    loss: StepLoss
    rate: LearningRate
    precision: Precision
    group: Group
    micro_batch: int | None = None

    def backward(self, batch: Parts | None, total: int, step: int) -> dict[str, Any]:
        """Add the gradients of this rank's rows, weighted by the share of these rows in the step.

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
        micro_batches = pieces(batch.rows, total, self.micro_batch)
        for piece in micro_batches:
            losses = self._backward_piece(batch.part(piece.start, piece.stop), piece, step)
            for name, value in losses.items():
                share = (piece.stop - piece.start) / batch.rows
                part = value if len(micro_batches) == 1 else value * share
                means[name] = means[name] + part if name in means else part
        return means

    def _backward_piece(self, part: Parts, piece: BatchPiece, step: int) -> Mapping[str, Any]:
        """Add the gradients of a micro-batch; return the terms of its loss."""
        with self.precision.forward():
            terms = self.loss(part.forward(self.model), part.labels, part.soft, step)
        # With weight 1 the loss is unchanged: a single rank equals plain training bit for bit.
        loss = terms.total if piece.weight == 1 else terms.total * piece.weight
        self.precision.backward(loss)
        return terms.named

    def apply(self) -> None:
        """Sum the gradients of all ranks, take the step, and advance the learning rate."""
        self.group.sum_gradients(self.parameters)
        self.precision.step(self.optimizer)
        self.optimizer.clear_grad()
        self.rate.step()

    def float_buffers(self) -> list[Any]:
        """Return buffers that may differ between ranks: statistics, as of batch normalisation."""
        return [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]


@dataclass(slots=True)
class TrainingPosition:
    """Progress of the training.

    Attributes:
        step: optimizer steps taken.
        epoch: number of the current epoch, from 0.
        evaluated: step of the last evaluation; 0: there was none.
    """

    step: int = 0
    epoch: int = 0
    evaluated: int = 0


@dataclass(frozen=True, slots=True)
class CompletedStep:
    """A step that was taken.

    Attributes:
        step: its number, from 1.
        epoch: epoch of its rows.
        positions: positions of this rank's rows; empty: it has no rows, or the samples have no ids.
        rows: rows of this rank.
        total: rows of all ranks.
        losses: terms of the loss by name, scalar tensors: means over this rank's rows.
        step_s: seconds of the forward and backward passes, without waiting for the batch or other
            ranks, and without the optimizer.
        wait_s: seconds spent waiting for the batch.
    """

    step: int
    epoch: int
    positions: list[int]
    rows: int
    total: int
    losses: dict[str, Any]
    step_s: float
    wait_s: float
