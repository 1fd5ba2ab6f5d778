"""psi as the mean of squared differences of logits (Ba and Caruana 2014)."""

from __future__ import annotations

from .tensors import Tensor, cast, check_logits, check_soft_label


def logits_mse(student_logits: Tensor, soft_label: Tensor | None) -> Tensor:
    """The mean over rows and classes of `(student - teacher)^2`.

    Args:
        student_logits: float [N, ..., C].
        soft_label: the teacher's logits, float [N, ..., C], of any float dtype. No gradient flows
            into them.

    Returns:
        A scalar tensor of the dtype of the logits.

    Raises:
        UsageError: shapes or dtypes that do not fit.
    """
    check_logits(student_logits)
    check_soft_label(student_logits, soft_label)
    assert soft_label is not None
    return (student_logits - cast(soft_label.detach(), student_logits.dtype)).square().mean()
