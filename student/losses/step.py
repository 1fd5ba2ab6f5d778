"""The loss of one step: the weighted sum of the job's own term, the soft term and hints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ...proto.forms import SoftLabelIs
from ...runtime.errors import UsageError
from ...scheduler.students.weights import always_zero, needs_total, weight_at
from ..frameworks import framework_of
from ..job.distill import Distill, OutputKey
from .terms import (
    at_least_float32,
    feature_l2,
    kl_divergence,
    logarithm,
    logits_mse,
    logits_of_unknown_kind,
    smoothed,
    top_k_divergence,
    weighted_sum,
)


@dataclass(frozen=True, slots=True)
class Terms:
    """The loss of a batch and its terms: scalar tensors; reading a value waits for the device.

    Attributes:
        total: the loss, with gradients.
        named: detached terms `hard`, `soft`, `hint NAME` without their weights, and `total`. NAME
            is the teachers' output that the hint imitates. Terms of weight 0 in this step, or
            without labels in this batch, are missing, unless only `hard` is left by `hard_only`.
    """

    total: Any
    named: Mapping[str, Any]


class StepLoss:
    """`alpha * hard + beta * soft + sum of weight * hint` (the paper, Algorithm 2, line 5).

    Each term is a mean over the rows of its batch. So a sum over ranks and micro-batches, weighted
    by their shares of the rows, is the mean over all rows. With alpha = 1 and beta = 0 the total is
    the hard term itself: training equals one without distillation, bit for bit.

    Args:
        hard: the job's own loss, from (outputs, labels) to a scalar tensor.
        distill: how the job distils; None: it does not.
        model: the student. It gets the projectors of hints as sublayers. Create the optimizer
            afterwards, because it has to train the projectors too.
        steps_total: steps of the whole training, for schedules that run until its end; None:
            unknown.

    Raises:
        UsageError: a schedule needs the unknown number of steps, or a projector is not a layer.
    """

    def __init__(
        self,
        hard: Callable[[Any, Any], Any],
        distill: Distill | None,
        model: Any,
        steps_total: int | None = None,
    ) -> None:
        self._hard = hard
        self.distill = distill
        self.steps_total = steps_total
        if distill is not None and steps_total is None:
            _check_schedules(distill)
        self._projectors = attach_projectors(distill, model)
        self._published: SoftLabelIs | None = None

    def __call__(
        self, outputs: Any, labels: Any, soft: Mapping[str, Any] | None, step: int
    ) -> Terms:
        """Return the loss of a batch in step `step`.

        Args:
            outputs: outputs of the student.
            labels: hard labels, for the job's own loss.
            soft: soft labels by name, float tensors [N, ..., C], as in `job.batches.Parts`; the
                mapping or a value is None if the batch has none.
            step: number of the step in the whole training, from 0.

        Raises:
            UsageError: soft labels do not fit the outputs, the student lacks an output, or no term
                is left for this batch.
        """
        terms = [*self._terms(outputs, labels, soft or {}, step)]
        if not terms and self._only_hard(soft or {}):  # by its schedule, alpha is 0 in this step
            terms = [("hard", 0.0, self._hard(outputs, labels))]
        if not terms:
            raise UsageError(
                f"no term of the loss has a weight in step {step}: alpha, beta and hints are 0, or"
                " the batch has no soft labels"
            )
        total = weighted_sum((weight, term) for _, weight, term in terms)
        named = {name: term.detach() for name, _, term in terms}
        return Terms(total, {**named, "total": total.detach()})

    def on_label_kinds(self, kinds: Mapping[str, str]) -> None:
        """Use the kinds of outputs that teachers publish, unless the job states its own.

        Args:
            kinds: kind by output, as in `ReaderStats.label_kinds`.

        Raises:
            UsageError: the loss compares distributions, and the output has the kind "other".
        """
        distill = self.distill
        if distill is None or distill.arriving_kind is not None or always_zero(distill.beta):
            return
        only = next(iter(kinds.values())) if len(kinds) == 1 else ""
        kind = kinds.get(distill.main_output, only)
        if kind == "other" and distill.loss != "mse":
            name = distill.main_output or next(iter(kinds))
            raise UsageError(
                f"loss={distill.loss!r} compares distributions, but the teachers publish that their"
                f" output {name!r} is neither logits nor probabilities: use loss='mse' or another"
                f" output, or start the teachers with --output {name}=logits if it is logits"
            )
        if kind:  # "other" is compared as it is, like logits
            self._published = "probabilities" if kind == "probabilities" else "logits"

    def _terms(
        self, outputs: Any, labels: Any, soft: Mapping[str, Any], step: int
    ) -> Iterator[tuple[str, float, Any]]:
        """Yield name, weight and value of each term with a weight above 0 in this step."""
        distill = self.distill
        if distill is None:
            yield "hard", 1.0, self._hard(outputs, labels)
            return
        alpha = self._weight(distill.alpha, step)
        if alpha:
            yield "hard", alpha, self._hard_term(distill, outputs, labels)
        beta = self._weight(distill.beta, step)
        if beta and all(soft.get(name) is not None for name in distill.main_label_names):
            psi, factor = self._soft_term(distill, outputs, soft)
            yield "soft", beta * factor, psi
        for hint in distill.hints:
            weight = self._weight(hint.weight, step)
            if weight and soft.get(hint.teacher) is not None:
                student, projector = (
                    _output(outputs, hint.student),
                    self._projectors.get(hint.teacher),
                )
                term = feature_l2(student, soft[hint.teacher], projector, hint.teacher)
                yield f"hint {hint.teacher}", weight, term

    def _only_hard(self, soft: Mapping[str, Any]) -> bool:
        hard_only = self.distill is not None and self.distill.no_teacher == "hard_only"
        return hard_only and all(label is None for label in soft.values())

    def _hard_term(self, distill: Distill, outputs: Any, labels: Any) -> Any:
        hard = self._hard(outputs, labels)
        if not distill.label_smoothing:
            return hard
        return smoothed(hard, logits_of(outputs, distill), distill.label_smoothing)

    def _soft_term(
        self, distill: Distill, outputs: Any, soft: Mapping[str, Any]
    ) -> tuple[Any, float]:
        """Return psi, and the factor that cancels the temperature's effect on its gradient."""
        logits = logits_of(outputs, distill)
        t = distill.temperature
        labels = [soft[name] for name in distill.main_label_names]
        kind = distill.arriving_kind or self._published
        if distill.loss == "mse":
            label = at_least_float32(labels[0])
            if kind is None:
                label = logits_of_unknown_kind(label)
            elif kind == "probabilities":
                label = logarithm(label)
            return logits_mse(logits, label), 1.0
        if distill.loss == "topk":
            values, indices, tail = labels
            # Probabilities that the teacher publishes arrive as their logarithms, so as logits.
            top_k_kind = distill.arriving_kind or "logits"
            psi = top_k_divergence(logits, values, indices, tail, t, top_k_kind)
            return psi, t**2
        label_t = distill.teacher_temperature or 1.0
        return kl_divergence(logits, labels[0], t, kind, label_t), t**2

    def _weight(self, weight: Any, step: int) -> float:
        return weight_at(weight, step, self.steps_total)


def logits_of(outputs: Any, distill: Distill | None = None) -> Any:
    """Return the logits among the outputs of the student.

    Raises:
        UsageError: there is no such output.
    """
    key = None if distill is None else distill.student_output
    if key is not None:
        return _output(outputs, key)
    if isinstance(outputs, (tuple, list)):
        return _output(outputs, 0)
    return _output(outputs, "logits") if isinstance(outputs, Mapping) else outputs


def _output(outputs: Any, key: OutputKey) -> Any:
    try:
        if isinstance(outputs, Mapping):
            return outputs[key]
        if isinstance(outputs, (tuple, list)) and isinstance(key, int):
            return outputs[key]
        if key == 0:
            return outputs
    except (KeyError, IndexError):
        pass
    if isinstance(outputs, Mapping):
        kind = f"a dict of {list(outputs)}"
    elif isinstance(outputs, (tuple, list)):
        kind = f"a {type(outputs).__name__} of {len(outputs)}"
    else:
        kind = "one tensor"
    raise UsageError(
        f"the student's model returns {kind}, which has no output {key!r}: name an output with"
        " student_output= of Distill, or student= of Hint"
    )


def _check_schedules(distill: Distill) -> None:
    named = {"alpha": distill.alpha, "beta": distill.beta}
    named |= {f"the weight of the hint {hint.teacher!r}": hint.weight for hint in distill.hints}
    for name, weight in named.items():
        if needs_total(weight):
            raise UsageError(
                f"the schedule of {name} runs until the end of the training, but the number of"
                " steps is unknown: give it steps=..., or end the training by --steps"
            )


#: Name of a projector as a sublayer of the student; the number of its hint follows.
PROJECTOR: Final = "edl_projector_"


def attach_projectors(distill: Distill | None, model: Any) -> Mapping[str, Any]:
    """Create the projectors of all hints, as sublayers of the model.

    Returns:
        The projectors, by the teachers' output that the student imitates.

    Raises:
        UsageError: a projector is not a layer.
    """
    projectors = {}
    for number, hint in enumerate(() if distill is None else distill.hints):
        if hint.projector is not None:
            projector, framework = hint.projector(), framework_of(model)
            if not framework.is_model(projector):
                raise UsageError(
                    f"the projector of the hint {hint.teacher!r} must return"
                    f" {framework.kinds['model']}, not a {type(projector).__name__}"
                )
            setattr(model, f"{PROJECTOR}{number}", projector)
            projectors[hint.teacher] = projector
    return projectors


def detach_projectors(model: Any) -> None:
    """Remove the projectors of hints from the model: only distillation needs them."""
    for name in [name for name, _ in model.named_children() if name.startswith(PROJECTOR)]:
        delattr(model, name)
