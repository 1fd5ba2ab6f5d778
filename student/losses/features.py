"""Feature maps of the student that shall resemble those of teachers (Romero et al. 2015)."""

from __future__ import annotations

from typing import Any

from ...errors import UsageError
from .tensors import Tensor, cast


def feature_l2(student: Tensor, teacher: Tensor, projector: Any = None, name: str = "") -> Tensor:
    """The mean of the squared differences of two feature maps.

    Args:
        student: float [N, ...].
        teacher: float [N, ...], of the shape of the student's once that is projected. No gradient
            flows into it.
        projector: a layer from the student's feature map to the teacher's shape; None: none.
        name: of the teacher's output, for messages.

    Returns:
        A scalar tensor of the dtype of the student's.

    Raises:
        UsageError: the shapes differ.
    """
    own = student if projector is None else projector(student)
    if list(own.shape) != list(teacher.shape):
        made = "is" if projector is None else "is projected to"
        raise UsageError(
            f"the feature map {name!r} of the teachers is {list(teacher.shape)}, the student's"
            f" {made} {list(own.shape)}: give the hint a projector= that makes it the same"
        )
    return (own - cast(teacher.detach(), own.dtype)).square().mean()
