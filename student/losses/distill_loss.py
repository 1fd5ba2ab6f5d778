"""The loss of distillation, alpha * hard + beta * soft (the paper, Algorithm 2, line 5)."""

from __future__ import annotations

import math
from typing import get_args

from ...proto.forms import SoftLabelIs
from ...runtime.errors import UsageError
from .terms import Tensor, cross_entropy, kl_divergence, weighted_sum


class DistillLoss:
    """`alpha * phi(hard label, logits) + beta * psi(soft label, logits)`.

    As in the paper, section 3.3. All tensors are of Paddle, or all of PyTorch. phi is the cross
    entropy between the hard label and the student's logits. psi is

        T^2 * KL(softmax(teacher / T) || softmax(student / T))

    Both are means over the batch. The temperature T flattens both distributions, so that small
    probabilities count as well: they show which classes the teacher finds similar.

    Why T^2: the gradient of the KL term with respect to the student's logits is
    `(softmax(student / T) - softmax(teacher / T)) / T`, and the difference itself shrinks like 1/T
    as T grows; together that is 1/T^2. The factor cancels it, so that `beta` keeps its meaning when
    the temperature changes (Hinton et al. 2015, section 2).

    A term of weight 0 is omitted: `alpha=1, beta=0` is plain cross entropy, bit for bit.

    Args:
        alpha: weight of the hard loss, at least 0.
        beta: weight of the soft loss, at least 0; one of the two must be above 0.
        temperature: T, above 0.
        soft_label_is: what teachers send: `logits`, or `probabilities`, which are converted to
            temperature T here: p^(T0/T), normalised. None: probabilities if all rows of a batch are
            non-negative and sum to 1, else logits.
        soft_label_temperature: T0, the temperature of the softmax that made the probabilities: the
            reader's `temperature=`. Must be 1 unless `soft_label_is` is `probabilities`.

    Raises:
        UsageError: a weight or temperature is invalid.
    """

    def __init__(
        self,
        alpha: float,
        beta: float,
        temperature: float = 1.0,
        *,
        soft_label_is: SoftLabelIs | None = None,
        soft_label_temperature: float = 1.0,
    ) -> None:
        for name, weight in (("alpha", alpha), ("beta", beta)):
            if not (math.isfinite(weight) and weight >= 0):
                raise UsageError(f"{name} is a weight: a finite number >= 0, not {weight}")
        if alpha == 0 and beta == 0:
            raise UsageError("alpha and beta are both 0: there is nothing to learn from")
        temperatures = {
            "temperature": temperature,
            "soft_label_temperature": soft_label_temperature,
        }
        for name, t in temperatures.items():
            if not (math.isfinite(t) and t > 0):
                raise UsageError(f"{name} must be a finite number above 0, not {t}")
        if soft_label_is is not None and soft_label_is not in get_args(SoftLabelIs):
            raise UsageError(f"soft_label_is is one of {get_args(SoftLabelIs)}: {soft_label_is!r}")
        if soft_label_is != "probabilities" and soft_label_temperature != 1:
            raise UsageError(
                "soft_label_temperature is only for probabilities: set"
                " soft_label_is='probabilities', or leave soft_label_temperature out"
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
        mask: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch.

        Args:
            student_logits: float [N, ..., C]; axes between N and C (pixels, tokens) are averaged
                like the batch axis.
            hard_label: int [N, ...] or [N, ..., 1]; may be None if `alpha` is 0.
            soft_label: float [N, ..., C], of any float dtype; may be None if `beta` is 0. No
                gradient flows into it.
            mask: bool or 0 and 1 [N, ...], such as the attention mask of texts: psi is a mean over
                rows of 1; None: over all rows.

        Returns:
            A scalar tensor of the dtype of the logits; with a soft term at least float32.

        Raises:
            UsageError: a needed label is missing, or its shape or dtype does not fit.
        """
        terms: list[tuple[float, Tensor]] = []
        if self.alpha:
            terms.append((self.alpha, cross_entropy(student_logits, hard_label)))
        if self.beta:
            divergence = kl_divergence(
                student_logits,
                soft_label,
                self.temperature,
                self.soft_label_is,
                self.soft_label_temperature,
                mask,
            )
            terms.append((self.beta * self.temperature**2, divergence))
        return weighted_sum(terms)
