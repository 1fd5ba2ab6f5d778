"""The parts of a job, assembled the same way for training, evaluation and export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..losses.step import StepLoss, attach_projectors, detach_projectors
from .distill import Distill
from .spec import JobSpec


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a job. The model contains the projectors of hints, so they are trained too.

    Attributes:
        spec: the job file.
        model: the student.
        loss: from (outputs, labels, soft labels, step) to the terms of the loss.
        distill: how the job distils; None: it does not.
        optimizer: trains all parameters of the model.
    """

    spec: JobSpec
    model: Any
    loss: StepLoss
    distill: Distill | None
    optimizer: Any

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the soft labels in batches of a reader; empty: the job uses no teachers."""
        if self.distill is None or not self.distill.needs_labels:
            return ()
        return self.distill.label_names


def assemble(spec: JobSpec, steps_total: int | None = None) -> Assembly:
    """Create the parts of a job; the framework's random state decides the initial parameters.

    Args:
        spec: the job file.
        steps_total: steps of the whole training, for schedules of weights; None: unknown.

    Raises:
        JobError: a function of the job file fails.
        UsageError: the parts do not fit together.
    """
    model = spec.model()
    distill = spec.distill()
    loss = StepLoss(spec.loss, distill, model, steps_total)
    model = spec.framework.to_device(model)
    optimizer = spec.optimizer(model.parameters())
    return Assembly(spec, model, loss, distill, optimizer)


def restore_model(spec: JobSpec, checkpoint: str) -> tuple[Any, int]:
    """Return the job's model with the parameters of a checkpoint, in inference mode.

    Args:
        spec: the job file.
        checkpoint: path or URL of a checkpoint, or of a folder of checkpoints, of which the newest
            valid one is taken.

    Returns:
        The model, without projectors of hints, and the step of the checkpoint.

    Raises:
        JobError: a function of the job file fails.
        UsageError: there is no checkpoint, or a projector is not a layer.
        CheckpointMismatch: the checkpoint does not fit the model.
        CheckpointUnavailable: the checkpoint cannot be read now.
        CheckpointDamaged: the checkpoint is damaged.
    """
    from ..checkpoint import open_checkpoint
    from ..checkpoint.capture import TrainingObjects, restore

    contents = open_checkpoint(checkpoint)
    model = spec.model()
    attach_projectors(spec.distill(), model)
    model = spec.framework.to_device(model)
    restore(TrainingObjects(model), contents, random=False)
    detach_projectors(model)
    model.eval()
    return model, contents.step
