"""psi of soft labels of which only the K greatest classes and the mass of the others came."""

from __future__ import annotations

from ...errors import UsageError
from ...proto.forms import SoftLabelIs
from .kl import logarithm
from .tensors import Tensor, cast, check_logits, framework_of, is_integer, take_along_last

#: In the place of the logarithm of 0, for float32.
_NEVER = -1e30


def top_k_divergence(
    student_logits: Tensor,
    values: Tensor,
    indices: Tensor,
    tail: Tensor,
    temperature: float = 1.0,
    soft_label_is: SoftLabelIs = "logits",
) -> Tensor:
    """KL divergence of K + 1 events: each class that came, and "one of the others".

    What the teacher says of the others among themselves did not travel; the student is left free
    there, where a dense label that is filled up evenly would press it to be even. It never exceeds
    the divergence over all classes, and with K = C it is that.

    The tail holds for one temperature alone: 1 for logits, and for probabilities that of the
    teacher's softmax. `temperature` has to be that.

    Args:
        student_logits: float [N, ..., C].
        values: the K greatest logits or probabilities, float [N, ..., K].
        indices: their classes, int [N, ..., K].
        tail: of logits the logarithm of the sum of the exponentials of the others, of probabilities
            their sum; float [N, ...].
        temperature: T, by which the student's logits are divided.
        soft_label_is: what the values are.

    Returns:
        A scalar tensor, float32 (float64 of such logits), the mean over all but the last axis.

    Raises:
        UsageError: shapes or dtypes that do not fit.
    """
    _check(student_logits, values, indices, tail)
    if "64" not in str(student_logits.dtype):
        student_logits = cast(student_logits, "float32")
    framework, dtype = framework_of(student_logits), student_logits.dtype
    whole = values.shape[-1] == student_logits.shape[-1]
    with framework.no_grad():
        kept, rest = cast(values, dtype), cast(tail, dtype)
        if soft_label_is == "probabilities":
            kept, rest = logarithm(kept), logarithm(rest)
        events = kept if whole else _joined(kept, rest.clip(min=_NEVER))
        log_p = framework.nn.functional.log_softmax(events, -1)
        p = log_p.exp()
    log_q = _student(student_logits / temperature, cast(indices, "int64"), whole)
    return (p * (log_p - log_q)).sum(-1).mean()


def _student(logits: Tensor, indices: Tensor, whole: bool) -> Tensor:
    """Logarithms of the student's probabilities of the K + 1 events, [N, ..., K + 1]."""
    framework = framework_of(logits)
    functional = framework.nn.functional
    log_q = functional.log_softmax(logits, -1)
    kept = take_along_last(log_q, indices)
    if whole:
        return kept
    # By a sum over the others, as 1 minus the sum of those kept loses all digits of a small tail.
    classes = cast(functional.one_hot(indices, logits.shape[-1]).sum(-2), logits.dtype)
    return _joined(kept, framework.logsumexp(log_q + classes * _NEVER, -1))


def _joined(kept: Tensor, rest: Tensor) -> Tensor:
    return framework_of(kept).concat([kept, rest.unsqueeze(-1)], -1)


def _check(student_logits: Tensor, values: Tensor, indices: Tensor, tail: Tensor) -> None:
    check_logits(student_logits)
    rows, classes = list(student_logits.shape[:-1]), student_logits.shape[-1]
    k = values.shape[-1] if values.ndim else 0
    fits = list(values.shape[:-1]) == rows and list(indices.shape) == list(values.shape)
    if not fits or list(tail.shape) != rows or not 1 <= k <= classes:
        raise UsageError(
            f"top-k labels for student_logits of {list(student_logits.shape)} are values and"
            f" indices of {[*rows, 'K']} and a tail of {rows}, not {list(values.shape)},"
            f" {list(indices.shape)} and {list(tail.shape)}"
        )
    if not is_integer(indices) or is_integer(values):
        raise UsageError("of top-k labels the indices are integers, the values floats")
