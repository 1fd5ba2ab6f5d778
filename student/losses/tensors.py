"""Operations and checks that Paddle and PyTorch spell differently.

All else that the losses use has one spelling: `F.log_softmax(x, -1)`, `x.sum(-1)`, `x.clip(min=0)`.
"""

from __future__ import annotations

import sys
from typing import Any, Final, TypeAlias

from ...errors import UsageError

#: A tensor of Paddle or PyTorch.
Tensor: TypeAlias = Any

#: Framework -> its base class of layers.
_LAYERS: Final = {"paddle": "Layer", "torch": "Module"}


def framework_of(value: Any) -> Any:
    """The module `paddle` or `torch` to which a tensor or a layer belongs.

    Raises:
        UsageError: it belongs to neither.
    """
    for name in _LAYERS:
        framework = sys.modules.get(name)
        if framework is None:
            continue
        # Tensors of Paddle's static programs are of other classes.
        of_framework = type(value).__module__.partition(".")[0] == name
        if of_framework or isinstance(value, (framework.Tensor, layer_class(framework))):
            return framework
    raise UsageError(f"a tensor of Paddle or PyTorch is needed, not {type(value).__name__}")


def layer_class(framework: Any) -> type:
    """`paddle.nn.Layer` or `torch.nn.Module`."""
    found: type = getattr(framework.nn, _LAYERS[framework.__name__])
    return found


def cast(tensor: Tensor, dtype: Any) -> Tensor:
    """The tensor in another dtype: one of its framework, or the name of one."""
    framework = framework_of(tensor)
    wanted = getattr(framework, dtype) if isinstance(dtype, str) else dtype
    return tensor.to(wanted) if framework.__name__ == "torch" else tensor.astype(wanted)


def take_along_last(tensor: Tensor, indices: Tensor) -> Tensor:
    """Elements of the last axis, [..., C], at int64 `indices`, [..., K]."""
    framework = framework_of(tensor)
    if framework.__name__ == "torch":
        return framework.gather(tensor, -1, indices)
    return framework.take_along_axis(tensor, indices, axis=-1)


def cross_entropy(logits: Tensor, hard_label: Tensor) -> Tensor:
    """The mean cross entropy of logits [N, ..., C] with class numbers [N, ...] or [N, ..., 1]."""
    framework = framework_of(logits)
    of_batch = framework.nn.functional.cross_entropy
    if framework.__name__ == "torch":  # which has the classes in the second axis
        return of_batch(logits.flatten(0, -2), cast(hard_label, "int64").flatten())
    return of_batch(logits, hard_label)


def weighted(weight: float, term: Any) -> Any:
    """`weight * term`; a weight of 1 leaves the term as it is, bit for bit."""
    return term if weight == 1 else weight * term


def dtype_name(tensor: Tensor) -> str:
    """`float32` for `paddle.float32` and `torch.float32`."""
    return str(tensor.dtype).rpartition(".")[2]


def is_integer(tensor: Tensor) -> bool:
    """Whether the tensor holds whole numbers or bools."""
    return dtype_name(tensor).startswith(("int", "uint", "bool"))


def check_logits(logits: Tensor) -> None:
    """Raise UsageError where these are no logits of a batch."""
    if len(logits.shape) < 2:
        raise UsageError(
            f"student_logits must have the shape [batch, ..., classes], not {list(logits.shape)}"
        )


def check_hard_label(logits: Tensor, hard_label: Tensor | None) -> None:
    """Raise UsageError where these are no class numbers for the rows of these logits."""
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
            f"the hard label holds class numbers, integers; its dtype is {dtype_name(hard_label)}"
        )


def check_soft_label(logits: Tensor, soft_label: Tensor | None) -> None:
    """Raise UsageError where these are no teacher's scores for these logits."""
    if soft_label is None:
        raise UsageError("beta is above 0, so the loss needs the teacher's soft label")
    if list(soft_label.shape) != list(logits.shape):
        raise UsageError(
            f"the soft label must have the shape of student_logits, {list(logits.shape)},"
            f" not {list(soft_label.shape)}"
        )
    if is_integer(soft_label):
        raise UsageError(
            "the soft label holds the teacher's scores, floats; its dtype is"
            f" {dtype_name(soft_label)}"
        )
