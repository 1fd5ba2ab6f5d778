"""Label smoothing: a part of the hard label is spread over all classes (Szegedy et al. 2016)."""

from __future__ import annotations

from ...errors import UsageError
from .tensors import Tensor, check_hard_label, check_logits, cross_entropy, framework_of


def smoothed_cross_entropy(logits: Tensor, hard_label: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross entropy with `(1 - smoothing) * one_hot(label) + smoothing / C`.

    Args:
        logits: float [N, ..., C].
        hard_label: int [N, ...] or [N, ..., 1].
        smoothing: from 0 to below 1; 0 is plain cross entropy, bit for bit.

    Returns:
        A scalar tensor of the dtype of the logits: the mean over all but the last axis.

    Raises:
        UsageError: shapes, dtypes or a smoothing that cannot be.
    """
    check_logits(logits)
    check_hard_label(logits, hard_label)
    return smoothed(cross_entropy(logits, hard_label), logits, smoothing)


def smoothed(hard: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """A hard term of which a part is the cross entropy with the uniform distribution instead."""
    if not 0 <= smoothing < 1:
        raise UsageError(f"label smoothing is from 0 to below 1, not {smoothing}")
    if smoothing == 0:
        return hard
    return (1 - smoothing) * hard + smoothing * uniform_cross_entropy(logits)


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Cross entropy of logits [N, ..., C] with 1/C for each class, a scalar tensor."""
    return -framework_of(logits).nn.functional.log_softmax(logits, -1).mean()
