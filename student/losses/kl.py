"""psi as KL divergence with a temperature (the paper, section 3.3; Hinton et al. 2015)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...proto.forms import SUM_TOLERANCE, SoftLabelIs
from .tensors import check_logits, check_soft_label

if TYPE_CHECKING:
    from paddle import Tensor


def kl_divergence(
    student_logits: Tensor,
    soft_label: Tensor | None,
    temperature: float = 1.0,
    soft_label_is: SoftLabelIs | None = None,
    soft_label_temperature: float = 1.0,
) -> Tensor:
    """`KL(softmax(teacher / T) || softmax(student / T))`, a mean over all but the last axis.

    Without the factor T^2, which belongs to its weight. No gradient flows into the soft label.

    Args:
        student_logits: float [N, ..., C].
        soft_label: float [N, ..., C], of any float dtype.
        temperature: T, above 0.
        soft_label_is: what the teacher's numbers are; probabilities are brought to temperature T:
            p^(T0/T), normalised. None: probabilities if all rows are, else logits.
        soft_label_temperature: T0, of the softmax that made probabilities.

    Returns:
        A scalar tensor of the dtype of the logits.

    Raises:
        UsageError: shapes or dtypes that do not fit.
    """
    import paddle
    import paddle.nn.functional as F

    check_logits(student_logits)
    check_soft_label(student_logits, soft_label)
    assert soft_label is not None
    with paddle.no_grad():
        teacher = soft_label.astype(student_logits.dtype)
        if soft_label_is is None:
            teacher = as_logits(teacher)
        elif soft_label_is == "probabilities":
            teacher = logarithm(teacher)
        log_p = F.log_softmax(teacher / (temperature / soft_label_temperature), axis=-1)
        p = log_p.exp()
    log_q = F.log_softmax(student_logits / temperature, axis=-1)
    return (p * (log_p - log_q)).sum(axis=-1).mean()


def as_logits(soft_label: Any) -> Any:
    """Soft labels as logits: of probabilities their logarithm, others as given.

    They are probabilities if no number is negative and each row sums to 1, as far as numbers of 16
    bits can. It is decided on the device, which nothing has to wait for.

    Args:
        soft_label: float [N, ..., C].
    """
    import paddle

    off = (soft_label.astype("float32").sum(axis=-1) - 1).abs().max()
    known = paddle.logical_and(soft_label.min() >= 0, off <= SUM_TOLERANCE)
    return paddle.where(known.broadcast_to(soft_label.shape), logarithm(soft_label), soft_label)


def logarithm(probabilities: Any) -> Any:
    """Their logarithm; 0 has none: the smallest normal number stands for it, and weighs nothing."""
    import paddle

    return probabilities.clip(min=float(paddle.finfo(probabilities.dtype).tiny)).log()
