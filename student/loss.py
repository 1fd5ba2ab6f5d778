"""The loss of distillation, alpha * hard + beta * soft (the paper, Algorithm 2, line 5)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, get_args

from ..errors import UsageError

if TYPE_CHECKING:
    from paddle import Tensor

SoftLabelIs = Literal["logits", "probabilities"]


class DistillLoss:
    """`alpha * phi(y, F(theta, x)) + beta * psi(soft label, F'(theta, x))`, for Paddle.

    As in the paper, section 3.3. phi is the cross entropy between the hard label and the student's
    logits. psi is

        T^2 * KL(softmax(teacher / T) || softmax(student / T))

    Both are means over the batch. The temperature T flattens both distributions, so that the small
    probabilities, by which a teacher says which classes resemble each other, count as well.

    Why T^2: the gradient of the KL term with respect to the student's logits is
    `(softmax(student / T) - softmax(teacher / T)) / T`, and the difference itself shrinks like 1/T
    as T grows, which makes 1/T^2 together. The factor takes that back, so that `beta` keeps its
    meaning when the temperature is changed (Hinton et al. 2015, section 2).

    A term of weight 0 is left out wholly: `alpha=1, beta=0` is plain cross entropy, bit for bit.

    Args:
        alpha: weight of the hard loss, at least 0.
        beta: weight of the soft loss, at least 0; one of the two must be above 0.
        temperature: T, above 0.
        soft_label_is: what teachers send: `logits`, or `probabilities` (which are brought to
            temperature T here: p^(T0/T), normalised).
        soft_label_temperature: T0, of the softmax that made the probabilities: what the reader was
            told by `temperature=`, if it was. With logits it has no meaning and stays 1.

    Raises:
        UsageError: weights or a temperature that cannot work.
    """

    def __init__(
        self,
        alpha: float,
        beta: float,
        temperature: float = 1.0,
        *,
        soft_label_is: SoftLabelIs = "logits",
        soft_label_temperature: float = 1.0,
    ) -> None:
        for name, weight in (("alpha", alpha), ("beta", beta)):
            if not (math.isfinite(weight) and weight >= 0):
                raise UsageError(f"{name} is a weight: a finite number >= 0, not {weight}")
        if alpha == 0 and beta == 0:
            raise UsageError("alpha and beta are both 0: there is nothing to learn from")
        for t in (temperature, soft_label_temperature):
            if not (math.isfinite(t) and t > 0):
                raise UsageError(f"temperature must be a finite number above 0, not {t}")
        if soft_label_is not in get_args(SoftLabelIs):
            raise UsageError(f"soft_label_is is one of {get_args(SoftLabelIs)}: {soft_label_is!r}")
        if soft_label_is == "logits" and soft_label_temperature != 1:
            raise UsageError(
                "logits have no temperature: say soft_label_is='probabilities', or leave"
                " soft_label_temperature out"
            )
        self.alpha = alpha
        self.beta = beta
        self.temperature = temperature
        self.soft_label_is = soft_label_is
        self.soft_label_temperature = soft_label_temperature

    def __call__(
        self,
        student_logits: Tensor,
        hard_label: Tensor | None = None,
        soft_label: Tensor | None = None,
    ) -> Tensor:
        """The loss of a batch.

        Args:
            student_logits: float [N, ..., C]; what lies between N and C (pixels, tokens) is
                averaged like the batch itself.
            hard_label: int [N, ...] or [N, ..., 1]; may be None when `alpha` is 0.
            soft_label: float [N, ..., C], of any float dtype; may be None when `beta` is 0. No
                gradient flows into it.

        Returns:
            A scalar tensor of the dtype of the logits.

        Raises:
            UsageError: a label that is needed is missing, or has another shape or kind of dtype.
        """
        if len(student_logits.shape) < 2:
            raise UsageError(
                "student_logits must have the shape [batch, ..., classes], not"
                f" {list(student_logits.shape)}"
            )
        hard = soft = None
        if self.alpha:
            hard = self._hard_loss(student_logits, hard_label)
        if self.beta:
            soft = self._soft_loss(student_logits, soft_label)
        if hard is None or soft is None:
            return hard if soft is None else soft
        return hard + soft

    def _hard_loss(self, student_logits: Tensor, hard_label: Tensor | None) -> Tensor:
        import paddle.nn.functional as F

        _check_hard_label(student_logits, hard_label)
        return _weighted(self.alpha, F.cross_entropy(student_logits, hard_label))

    def _soft_loss(self, student_logits: Tensor, soft_label: Tensor | None) -> Tensor:
        import paddle
        import paddle.nn.functional as F

        _check_soft_label(student_logits, soft_label)
        assert soft_label is not None
        with paddle.no_grad():
            log_p = self._log_teacher(soft_label.astype(student_logits.dtype))
            p = log_p.exp()
        log_q = F.log_softmax(student_logits / self.temperature, axis=-1)
        divergence = (p * (log_p - log_q)).sum(axis=-1).mean()
        return _weighted(self.beta * self.temperature**2, divergence)

    def _log_teacher(self, soft_label: Tensor) -> Tensor:
        """Logarithm of the teacher's distribution at this temperature."""
        import paddle
        import paddle.nn.functional as F

        if self.soft_label_is == "probabilities":
            # 0 has no logarithm; the smallest normal number stands for it and weighs nothing.
            soft_label = soft_label.clip(min=float(paddle.finfo(soft_label.dtype).tiny)).log()
        hotter = self.temperature / self.soft_label_temperature
        return F.log_softmax(soft_label / hotter, axis=-1)


def _weighted(weight: float, term: Any) -> Any:
    return term if weight == 1 else weight * term


def _check_hard_label(student_logits: Tensor, hard_label: Tensor | None) -> None:
    if hard_label is None:
        raise UsageError("alpha is above 0, so the loss needs the hard label")
    rows, shape = list(student_logits.shape[:-1]), list(hard_label.shape)
    if shape not in (rows, [*rows, 1]):
        raise UsageError(
            f"the hard label must have the shape {rows} or {[*rows, 1]} for student_logits of"
            f" {list(student_logits.shape)}, not {shape}"
        )
    if not _is_integer(hard_label):
        raise UsageError(
            f"the hard label holds class numbers, integers; its dtype is {_name(hard_label)}"
        )


def _check_soft_label(student_logits: Tensor, soft_label: Tensor | None) -> None:
    if soft_label is None:
        raise UsageError("beta is above 0, so the loss needs the teacher's soft label")
    if list(soft_label.shape) != list(student_logits.shape):
        raise UsageError(
            f"the soft label must have the shape of student_logits, {list(student_logits.shape)},"
            f" not {list(soft_label.shape)}"
        )
    if _is_integer(soft_label):
        raise UsageError(
            f"the soft label holds the teacher's scores, floats; its dtype is {_name(soft_label)}"
        )


def _is_integer(tensor: Tensor) -> bool:
    return _name(tensor).startswith(("int", "uint", "bool"))


def _name(tensor: Tensor) -> str:
    """`float32` for `paddle.float32`."""
    return str(tensor.dtype).removeprefix("paddle.")
