"""psi as KL divergence with a temperature (the paper, section 3.3; Hinton et al. 2015)."""

from __future__ import annotations

from ...proto.forms import SUM_TOLERANCE, SoftLabelIs
from .tensors import Tensor, cast, check_logits, check_soft_label, framework_of


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
    check_logits(student_logits)
    check_soft_label(student_logits, soft_label)
    assert soft_label is not None
    framework = framework_of(student_logits)
    log_softmax = framework.nn.functional.log_softmax
    with framework.no_grad():
        teacher = cast(soft_label, student_logits.dtype)
        if soft_label_is is None:
            teacher = as_logits(teacher)
        elif soft_label_is == "probabilities":
            teacher = logarithm(teacher)
        log_p = log_softmax(teacher / (temperature / soft_label_temperature), -1)
        p = log_p.exp()
    log_q = log_softmax(student_logits / temperature, -1)
    return (p * (log_p - log_q)).sum(-1).mean()


def as_logits(soft_label: Tensor) -> Tensor:
    """Soft labels as logits: of probabilities their logarithm, others as given.

    They are probabilities if no number is negative and each row sums to 1, as far as numbers of 16
    bits can. It is decided on the device, which nothing has to wait for.

    Args:
        soft_label: float [N, ..., C].
    """
    framework = framework_of(soft_label)
    off = (cast(soft_label, "float32").sum(-1) - 1).abs().max()
    known = framework.logical_and(soft_label.min() >= 0, off <= SUM_TOLERANCE)
    return framework.where(known.broadcast_to(soft_label.shape), logarithm(soft_label), soft_label)


def logarithm(probabilities: Tensor) -> Tensor:
    """Their logarithm; 0 has none: the smallest normal number stands for it, and weighs nothing."""
    tiny = float(framework_of(probabilities).finfo(probabilities.dtype).tiny)
    return probabilities.clip(min=tiny).log()
