"""psi of soft labels of which only the K greatest classes and the mass of the others came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UsageError
from ...proto.forms import SoftLabelIs
from .kl import logarithm
from .tensors import check_logits, is_integer

if TYPE_CHECKING:
    from paddle import Tensor

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
    import paddle
    import paddle.nn.functional as F

    _check(student_logits, values, indices, tail)
    if "64" not in str(student_logits.dtype):
        student_logits = student_logits.astype("float32")
    whole = values.shape[-1] == student_logits.shape[-1]
    with paddle.no_grad():
        kept, rest = values.astype(student_logits.dtype), tail.astype(student_logits.dtype)
        if soft_label_is == "probabilities":
            kept, rest = logarithm(kept), logarithm(rest)
        events = kept if whole else _joined(kept, rest.clip(min=_NEVER))
        log_p = F.log_softmax(events, axis=-1)
        p = log_p.exp()
    log_q = _student(student_logits / temperature, indices.astype("int64"), whole)
    return (p * (log_p - log_q)).sum(axis=-1).mean()


def _student(logits: Any, indices: Any, whole: bool) -> Any:
    """Logarithms of the student's probabilities of the K + 1 events, [N, ..., K + 1]."""
    import paddle
    import paddle.nn.functional as F

    log_q = F.log_softmax(logits, axis=-1)
    kept = paddle.take_along_axis(log_q, indices, axis=-1)
    if whole:
        return kept
    # By a sum over the others, as 1 minus the sum of those kept loses all digits of a small tail.
    classes = F.one_hot(indices, logits.shape[-1]).sum(axis=-2).astype(logits.dtype)
    return _joined(kept, paddle.logsumexp(log_q + classes * _NEVER, axis=-1))


def _joined(kept: Any, rest: Any) -> Any:
    import paddle

    return paddle.concat([kept, rest.unsqueeze(-1)], axis=-1)


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
