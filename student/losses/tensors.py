"""What the losses ask of tensors: dtypes by name, and that they fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UsageError

if TYPE_CHECKING:
    from paddle import Tensor


def weighted(weight: float, term: Any) -> Any:
    """`weight * term`; a weight of 1 leaves the term as it is, bit for bit."""
    return term if weight == 1 else weight * term


def dtype_name(tensor: Tensor) -> str:
    """`float32` for `paddle.float32`."""
    return str(tensor.dtype).removeprefix("paddle.")


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
