"""The student as a checkpoint has it, for who uses it without training on."""

from __future__ import annotations

from typing import Any

from ..losses.projectors import attach_projectors, detach_projectors
from .spec import JobSpec


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
