"""The terms of a loss: means over rows.

| soft term | source |
|---|---|
| `kl_divergence` | the paper, section 3.3; Hinton et al. 2015 |
| `logits_mse` | Ba and Caruana 2014 |
| `top_k_divergence` | `kl_divergence` of the K greatest classes and the mass of the others |

Also `smoothed_cross_entropy` (Szegedy et al. 2016) of hard labels, and `feature_l2` (Romero et al.
2015) of feature maps. Functions such as `module_of` and `take_along_last` hide differences
between Paddle and PyTorch. All other calls are the same in both:
`F.log_softmax(x, -1)`, `x.sum(-1)`, `x.clip(min=0)`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import reduce
from operator import add
from typing import Any, TypeAlias

from ...proto.forms import SUM_TOLERANCE, SoftLabelIs
from ...runtime.errors import UsageError

#: A tensor of Paddle or PyTorch.
Tensor: TypeAlias = Any


def kl_divergence(
    student_logits: Tensor,
    soft_label: Tensor | None,
    temperature: float = 1.0,
    soft_label_is: SoftLabelIs | None = None,
    soft_label_temperature: float = 1.0,
    mask: Tensor | None = None,
) -> Tensor:
    """Return `KL(softmax(teacher / T) || softmax(student / T))`, a mean over all but the last axis.

    The factor T^2 is not included: callers multiply by it. No gradient flows into the soft
    label.

    Args:
        student_logits: float [N, ..., C].
        soft_label: float [N, ..., C], of any float dtype.
        temperature: T, above 0.
        soft_label_is: kind of the soft label; probabilities are converted to temperature T:
            p^(T0/T), normalised. None: probabilities if all rows look like them, else logits.
        soft_label_temperature: T0, the temperature of the softmax that made the probabilities; 1
            for logits.
        mask: bool or 0 and 1 [N, ...]: the mean is over rows of 1; None: over all rows.

    Returns:
        A scalar tensor, float32 (float64 for float64 logits); 0 if no row counts.

    Raises:
        UsageError: shapes or dtypes do not fit.
    """
    soft_label = _checked(student_logits, soft_label)
    student_logits = at_least_float32(student_logits)
    framework = module_of(student_logits)
    log_softmax = framework.nn.functional.log_softmax
    with framework.no_grad():
        teacher = cast(soft_label, student_logits.dtype)
        if soft_label_is is None:
            teacher = logits_of_unknown_kind(teacher)
        elif soft_label_is == "probabilities":
            teacher = logarithm(teacher)
        log_p = log_softmax(teacher / (temperature / soft_label_temperature), -1)
        p = log_p.exp()
    log_q = log_softmax(student_logits / temperature, -1)
    divergence = (p * (log_p - log_q)).sum(-1)
    if mask is None:
        return divergence.mean()
    if list(mask.shape) != list(divergence.shape):
        raise UsageError(
            f"the mask must have the shape {list(divergence.shape)} for student_logits of"
            f" {list(student_logits.shape)}, not {list(mask.shape)}"
        )
    counts = cast(mask, divergence.dtype)
    return (divergence * counts).sum() / counts.sum().clip(min=1)


def logits_of_unknown_kind(soft_label: Tensor) -> Tensor:
    """Return soft labels as logits: their logarithm if they look like probabilities.

    Labels count as probabilities if no number is negative and each row sums to 1, within the
    precision of 16-bit floats. This is computed on the device, so the host does not wait.

    Args:
        soft_label: float [N, ..., C].
    """
    framework = module_of(soft_label)
    error = (cast(soft_label, "float32").sum(-1) - 1).abs().max()
    is_normalised = framework.logical_and(soft_label.min() >= 0, error <= SUM_TOLERANCE)
    condition = is_normalised.broadcast_to(soft_label.shape)
    return framework.where(condition, logarithm(soft_label), soft_label)


def logarithm(probabilities: Tensor) -> Tensor:
    """Return the logarithm; the smallest normal number replaces 0, with negligible weight."""
    tiny = float(module_of(probabilities).finfo(probabilities.dtype).tiny)
    return probabilities.clip(min=tiny).log()


def logits_mse(student_logits: Tensor, soft_label: Tensor | None) -> Tensor:
    """Return the mean over rows and classes of `(student - teacher)^2`.

    Args:
        student_logits: float [N, ..., C].
        soft_label: the teacher's logits, float [N, ..., C], of any float dtype. No gradient flows
            into them.

    Returns:
        A scalar tensor, float32 (float64 for float64 logits).

    Raises:
        UsageError: shapes or dtypes do not fit.
    """
    soft_label = _checked(student_logits, soft_label)
    student_logits = at_least_float32(student_logits)
    return (student_logits - cast(soft_label.detach(), student_logits.dtype)).square().mean()


def _checked(student_logits: Tensor, soft_label: Tensor | None) -> Tensor:
    """Return the soft label; raise UsageError unless it has floats and the shape of the logits."""
    _check_logits(student_logits)
    if soft_label is None:
        raise UsageError("beta is above 0, so the loss needs the teacher's soft label")
    if list(soft_label.shape) != list(student_logits.shape):
        raise UsageError(
            f"the soft label must have the shape of student_logits, {list(student_logits.shape)},"
            f" not {list(soft_label.shape)}"
        )
    if is_integer(soft_label):
        raise UsageError(
            f"the soft label must have the teacher's scores as floats, not {dtype_name(soft_label)}"
        )
    return soft_label


def _check_logits(logits: Tensor) -> None:
    if len(logits.shape) < 2:
        raise UsageError(
            f"student_logits must have the shape [batch, ..., classes], not {list(logits.shape)}"
        )


#: Replaces the logarithm of 0, for float32.
_LOG_OF_ZERO = -1e30


def top_k_divergence(
    student_logits: Tensor,
    values: Tensor,
    indices: Tensor,
    tail: Tensor,
    temperature: float = 1.0,
    soft_label_is: SoftLabelIs = "logits",
) -> Tensor:
    """Return the KL divergence of K + 1 events: each of the K classes, and "any other class".

    The loss does not depend on how the student divides the tail among the other classes, because
    the teacher's probabilities of these classes are unknown. A dense label with equal values for
    these classes would make the student uniform over them. The result is at most the divergence
    over all classes, and equals it if K = C.

    The tail is valid for one temperature, which `temperature` must equal: 1 for logits, the
    temperature of the teacher's softmax for probabilities.

    Args:
        student_logits: float [N, ..., C].
        values: the K greatest logits or probabilities, float [N, ..., K].
        indices: their classes, int [N, ..., K].
        tail: float [N, ...]: for logits the log-sum-exp of the other classes, for probabilities the
            sum.
        temperature: T, by which the student's logits are divided.
        soft_label_is: kind of the values.

    Returns:
        A scalar tensor, float32 (float64 for float64 logits), the mean over all but the last axis.

    Raises:
        UsageError: shapes or dtypes do not fit.
    """
    _check_top_k(student_logits, values, indices, tail)
    student_logits = at_least_float32(student_logits)
    framework, dtype = module_of(student_logits), student_logits.dtype
    has_all_classes = values.shape[-1] == student_logits.shape[-1]
    with framework.no_grad():
        kept, rest = cast(values, dtype), cast(tail, dtype)
        if soft_label_is == "probabilities":
            kept, rest = logarithm(kept), logarithm(rest)
        events = kept if has_all_classes else _joined(kept, rest.clip(min=_LOG_OF_ZERO))
        log_p = framework.nn.functional.log_softmax(events, -1)
        p = log_p.exp()
    classes = cast(indices, "int64")
    log_q = _student_log_probabilities(student_logits / temperature, classes, has_all_classes)
    return (p * (log_p - log_q)).sum(-1).mean()


def _student_log_probabilities(logits: Tensor, indices: Tensor, has_all_classes: bool) -> Tensor:
    """Return the student's log-probabilities of the K + 1 events, [N, ..., K + 1]."""
    framework = module_of(logits)
    log_q = framework.nn.functional.log_softmax(logits, -1)
    kept = take_along_last(log_q, indices)
    if has_all_classes:
        return kept
    # Sum the others: 1 minus the sum of the kept ones would lose all digits of a small tail.
    others = log_q + _put_along_last(framework.zeros_like(log_q), indices, _LOG_OF_ZERO)
    return _joined(kept, framework.logsumexp(others, -1))


def _joined(kept: Tensor, rest: Tensor) -> Tensor:
    return module_of(kept).concat([kept, rest.unsqueeze(-1)], -1)


def _check_top_k(student_logits: Tensor, values: Tensor, indices: Tensor, tail: Tensor) -> None:
    _check_logits(student_logits)
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
        raise UsageError("top-k labels need integers as indices and floats as values")


def cross_entropy(logits: Tensor, hard_label: Tensor | None) -> Tensor:
    """Return the mean cross entropy of logits [N, ..., C] with classes [N, ...] or [N, ..., 1].

    Raises:
        UsageError: shapes or dtypes do not fit.
    """
    _check_logits(logits)
    if hard_label is None:
        raise UsageError("alpha is above 0, so the loss needs the hard label")
    rows, shape = list(logits.shape[:-1]), list(hard_label.shape)
    if shape not in (rows, [*rows, 1]):
        raise UsageError(
            f"the hard label must have the shape {rows} or {[*rows, 1]} for student_logits of"
            f" {list(logits.shape)}, not {shape}"
        )
    if not is_integer(hard_label):
        raise UsageError(
            f"the hard label must have class numbers as integers, not {dtype_name(hard_label)}"
        )
    framework = module_of(logits)
    mean_loss = framework.nn.functional.cross_entropy
    if framework.__name__ == "torch":  # expects the classes in the second axis
        return mean_loss(logits.flatten(0, -2), cast(hard_label, "int64").flatten())
    return mean_loss(logits, hard_label)


def smoothed_cross_entropy(logits: Tensor, hard_label: Tensor, smoothing: float = 0.1) -> Tensor:
    """Return the cross entropy with `(1 - smoothing) * one_hot(label) + smoothing / C`.

    Args:
        logits: float [N, ..., C].
        hard_label: int [N, ...] or [N, ..., 1].
        smoothing: from 0 to below 1; 0 is plain cross entropy, bit for bit.

    Returns:
        A scalar tensor of the dtype of the logits: the mean over all but the last axis.

    Raises:
        UsageError: shapes or dtypes do not fit, or the smoothing is out of range.
    """
    return smoothed(cross_entropy(logits, hard_label), logits, smoothing)


def smoothed(hard: Tensor, logits: Tensor, smoothing: float) -> Tensor:
    """Return a weighted mean of the hard term and the cross entropy with the uniform distribution.

    `smoothing`, from 0 to below 1, is the weight of the latter.
    """
    if not 0 <= smoothing < 1:
        raise UsageError(f"label smoothing is from 0 to below 1, not {smoothing}")
    if smoothing == 0:
        return hard
    uniform = -module_of(logits).nn.functional.log_softmax(logits, -1).mean()
    return (1 - smoothing) * hard + smoothing * uniform


def feature_l2(student: Tensor, teacher: Tensor, projector: Any = None, name: str = "") -> Tensor:
    """Return the mean squared difference of two feature maps.

    Args:
        student: float [N, ...].
        teacher: float [N, ...], with the shape of the projected feature map of the student. No
            gradient flows into it.
        projector: a layer from the student's feature map to the teacher's shape; None: none.
        name: name of the teacher's output, for messages.

    Returns:
        A scalar tensor, float32 (float64 for a float64 feature map).

    Raises:
        UsageError: the shapes differ.
    """
    projected = student if projector is None else projector(student)
    if list(projected.shape) != list(teacher.shape):
        verb = "is" if projector is None else "is projected to"
        raise UsageError(
            f"the feature map {name!r} of the teachers is {list(teacher.shape)}, the student's"
            f" {verb} {list(projected.shape)}: give the hint a projector= to that shape"
        )
    projected = at_least_float32(projected)
    return (projected - cast(teacher.detach(), projected.dtype)).square().mean()


def module_of(tensor: Tensor) -> Any:
    """Return the module `paddle` or `torch` to which a tensor belongs.

    Raises:
        UsageError: it belongs to neither.
    """
    for name in ("paddle", "torch"):
        module = sys.modules.get(name)
        # Tensors of Paddle's static programs have other classes.
        defined_there = type(tensor).__module__.partition(".")[0] == name
        if module is not None and (defined_there or isinstance(tensor, module.Tensor)):
            return module
    raise UsageError(f"a tensor of Paddle or PyTorch is needed, not {type(tensor).__name__}")


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    """Return the tensor in another dtype of its framework, which may be given by name."""
    framework = module_of(tensor)
    target = getattr(framework, dtype) if isinstance(dtype, str) else dtype
    return tensor.to(target) if framework.__name__ == "torch" else tensor.astype(target)


def at_least_float32(tensor: Tensor) -> Tensor:
    """Convert 16-bit floats to float32: too coarse for sums, and float16 ends at 65504."""
    return cast(tensor, "float32") if "16" in str(tensor.dtype) else tensor


def take_along_last(tensor: Tensor, indices: Tensor) -> Tensor:
    """Return the elements of the last axis, [..., C], at int64 `indices`, [..., K]."""
    framework = module_of(tensor)
    if framework.__name__ == "torch":
        return framework.gather(tensor, -1, indices)
    return framework.take_along_axis(tensor, indices, axis=-1)


def _put_along_last(tensor: Tensor, indices: Tensor, value: float) -> Tensor:
    """Return the tensor with `value` in the elements that `take_along_last` would return."""
    framework = module_of(tensor)
    if framework.__name__ == "torch":
        return framework.scatter(tensor, -1, indices, value)
    values = framework.full([1], value, tensor.dtype)
    return framework.put_along_axis(tensor, indices, values, axis=-1)


def weighted_sum(terms: Iterable[tuple[float, Any]]) -> Any:
    """Return the sum of `weight * term`; a weight of 1 leaves a term unchanged, bit for bit.

    Args:
        terms: weights and terms, at least one.
    """
    return reduce(add, (term if weight == 1 else weight * term for weight, term in terms))


def dtype_name(tensor: Tensor) -> str:
    """Return `float32` for `paddle.float32` and `torch.float32`."""
    return str(tensor.dtype).rpartition(".")[2]


def is_integer(tensor: Tensor) -> bool:
    """Whether the tensor holds integers or booleans."""
    return dtype_name(tensor).startswith(("int", "uint", "bool"))
