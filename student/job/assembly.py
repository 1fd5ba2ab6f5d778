"""What a job file makes, put together as a rank, an evaluation and an export need it alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..losses.step import StepLoss, attach_projectors, detach_projectors
from .distill import Distill
from .spec import JobSpec


@dataclass(frozen=True, slots=True)
class Assembly:
    """A job's parts; made in this order: the model, hints' projectors in it, the optimizer.

    Attributes:
        spec: the job file.
        model: the student, a `paddle.nn.Layer`.
        loss: from (outputs, labels, soft labels, step) to the terms of the loss.
        distill: how it distils; None: it does not.
        optimizer: over all parameters of the model.
    """

    spec: JobSpec
    model: Any
    loss: StepLoss
    distill: Distill | None
    optimizer: Any

    @property
    def label_names(self) -> tuple[str, ...]:
        """Soft labels of a batch that comes from a reader, for `job.batches.split`."""
        return () if self.distill is None else self.distill.label_names

    @property
    def needs_teachers(self) -> bool:
        """Whether the batches have to be labelled at all."""
        return self.distill is not None and self.distill.needs_labels


def assemble(spec: JobSpec, steps_total: int | None = None) -> Assembly:
    """Make the parts of a job; Paddle's random state decides the initial parameters.

    Args:
        spec: the job file.
        steps_total: steps of the whole training, for schedules of weights; None: not known.

    Raises:
        JobError: a function of the job file fails.
        UsageError: what it says does not go together.
    """
    model = spec.model()
    distill = spec.distill()
    loss = StepLoss(spec.loss, distill, model, steps_total)
    optimizer = spec.optimizer(model.parameters())
    return Assembly(spec, model, loss, distill, optimizer)


def restored(spec: JobSpec, checkpoint: str) -> tuple[Any, int]:
    """The job's model with the parameters of a checkpoint, in inference mode.

    Args:
        spec: the job file.
        checkpoint: path or URL of a checkpoint, or of a folder of them: then the newest valid one.

    Returns:
        The model, without hints' projectors, and the step that the checkpoint is of.

    Raises:
        JobError: the job file fails.
        UsageError: there is no checkpoint, or (CheckpointMismatch) it is of another model.
        CheckpointUnavailable: it cannot be read now.
        CheckpointDamaged: it is broken.
    """
    from ..checkpoint import open_checkpoint
    from ..checkpoint.capture import Trained, restore

    contents = open_checkpoint(checkpoint)
    model = spec.model()
    attach_projectors(spec.distill(), model)
    restore(Trained(model), contents, random=False)
    detach_projectors(model)
    model.eval()
    return model, contents.step
