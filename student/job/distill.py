"""`Distill`: a job's settings for its teachers and for the loss with their soft labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from ...proto.forms import SoftLabelIs
from ...runtime.errors import UsageError
from ...scheduler.no_teacher import GRACE_S
from ...scheduler.students import weights
from ...scheduler.students.weights import Weight

if TYPE_CHECKING:
    from ...distill_reader.config import Feeds, OnNoTeacher
    from ...distill_reader.store import LabelStore

#: Loss between the student's outputs and soft labels.
SoftLoss = Literal["kl", "mse", "topk"]
#: One of a model's outputs: the index in a tuple or list, the key in a dict.
OutputKey = int | str

#: Options of the reader that the training decides, so a job must not give them.
_DECIDED_BY_TRAINING = frozenset(
    {"source", "coordinator", "teachers", "job", "rank", "world_size", "seed", "uneven", "ordered"}
)


@dataclass(frozen=True, slots=True)
class Hint:
    """A feature map of the student that imitates a feature map of the teachers (FitNets).

    Attributes:
        teacher: name of the teachers' output to imitate; must be among the `fetches`.
        student: the student's output that imitates it.
        weight: weight of the mean squared difference, or a schedule.
        projector: returns a layer that maps the student's feature map to the shape of the
            teachers'. It becomes a part of the model, is trained, saved and synchronized with it,
            and is left out of exported models.

    Raises:
        UsageError: the weight or the projector is invalid.
    """

    teacher: str
    student: OutputKey
    weight: Weight = 1.0
    projector: Callable[[], Any] | None = None

    def __post_init__(self) -> None:
        _check_weight(f"the weight of the hint {self.teacher!r}", self.weight)
        if self.projector is not None and not callable(self.projector):
            raise UsageError(
                "projector is a function that makes a layer, as in projector=lambda:"
                f" paddle.nn.Linear(64, 256); not {self.projector!r}"
            )


@dataclass(frozen=True, slots=True)
class Distill:
    """How a job distils: `alpha * hard + beta * soft` (the paper, Algorithm 2, line 5), and hints.

    Attributes:
        service: name of the teachers' service; or several with weights, `{"a": 0.7, "b": 0.3}`.
        alpha: weight of the job's own `loss`, or a schedule.
        beta: weight of the soft loss, or a schedule.
        temperature: T of the soft losses "kl" and "topk"; unused for "mse".
        loss: "kl": T^2 * KL divergence of the softmaxes; "mse": mean squared error of the logits;
            "topk": KL divergence over the K greatest classes and all others as one, for
            `label_form="topk:K"`.
        output: the output of the teachers' model that is compared with the student's logits; empty:
            the first of `fetches`, else the only output.
        student_output: which of the student's outputs are its logits; None: the only output, the
            first of a tuple or list, or "logits" of a dict.
        soft_label_is: what the teachers' model returns. Teachers that publish another kind are
            ejected; if no teacher fits from the start, training fails. None: what they publish,
            else probabilities if the labels look like them, else logits. Top-k labels without
            `teacher_temperature` arrive as logits.
        teacher_temperature: temperature of a softmax that teachers apply to their logits; None:
            they send what their model returns.
        hints: feature maps to imitate.
        label_smoothing: share of the hard term, from 0 to below 1, that is the cross entropy with
            the uniform distribution instead of the job's own loss.
        feeds: the fields of a batch that teachers get, as in `DistilReader`.
        fetches: the outputs that teachers send; empty: `output`, or all if `output` is empty too.
        label_form: encoding of soft labels on the wire, as in `DistilReader`.
        no_teacher: policy without teachers: "wait", "hard_only" or "fail".
        no_teacher_grace_s: seconds without a teacher until "hard_only" and "fail" act.
        wait_timeout_s: seconds without a teacher until "wait" gives up; None: never.
        store: label store on disk; None: none.
        options: further options of `DistilReader` by name, such as `{"upper_bytes": 64 << 20}`; of
            `timeouts`, only `request_s` is used.

    Raises:
        UsageError: values are invalid or do not fit together.
    """

    service: str | Mapping[str, float]
    alpha: Weight = 0.5
    beta: Weight = 0.5
    temperature: float = 1.0
    loss: SoftLoss = "kl"
    output: str = ""
    student_output: OutputKey | None = None
    soft_label_is: SoftLabelIs | None = None
    teacher_temperature: float | None = None
    hints: Sequence[Hint] = ()
    label_smoothing: float = 0.0
    feeds: Feeds | None = None
    fetches: Sequence[str] = ()
    label_form: str | Mapping[str, str] | None = None
    no_teacher: OnNoTeacher = "wait"
    no_teacher_grace_s: float = GRACE_S
    wait_timeout_s: float | None = 600.0
    store: LabelStore | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.service or not isinstance(self.service, str | Mapping):
            raise UsageError(
                "distillation needs the name of a service, as in service='resnet101', or several"
                f" with weights; not {self.service!r}"
            )
        self._check_weights()
        self._check_loss()
        self._check_outputs()
        if reserved := sorted(_DECIDED_BY_TRAINING & set(self.options)):
            raise UsageError(f"{reserved[0]!r} is set by the training itself: omit it")
        misplaced = [name for name in self._own_options() if name in self.options]
        if misplaced:
            raise UsageError(f"give {misplaced[0]}=... to Distill itself, not in options")
        if self.options:
            _check_known(self.options)

    @property
    def needs_labels(self) -> bool:
        """Whether teachers are needed: a soft term has a weight above 0 in some step."""
        soft = (self.beta, *(hint.weight for hint in self.hints))
        return not all(weights.always_zero(weight) for weight in soft)

    @property
    def top_k(self) -> bool:
        """Whether the main output comes as three arrays: values, indices and tail."""
        return self.loss == "topk"

    @property
    def arriving_kind(self) -> SoftLabelIs | None:
        """What soft labels of the main output are on arrival, by all settings; None: unknown.

        Labels of several services are averaged as probabilities, and a teacher with a temperature
        applies the softmax.
        """
        if self.teacher_temperature is not None or not isinstance(self.service, str):
            return "probabilities"
        return "logits" if self._main_form().startswith("topk:") else self.soft_label_is

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the soft labels of a batch, in order; "": the only output, whatever its name.

        A top-k output has three, as the reader names them.
        """
        names = tuple(self.fetches) or (self.output,)
        index = names.index(self.main_output)
        names = (*names[:index], *self.main_label_names, *names[index + 1 :])
        if not getattr(self.options.get("ensemble"), "with_weights", False):
            return names
        from ...distill_reader.options import WEIGHTS

        return (*names, WEIGHTS)

    @property
    def main_label_names(self) -> tuple[str, ...]:
        """Names of the soft labels that are compared with the student's logits; three for top-k."""
        parts = (".values", ".indices", ".tail") if self.top_k else ("",)
        return tuple(f"{self.main_output}{part}" for part in parts)

    @property
    def main_output(self) -> str:
        """Name of the output that is compared with the student's logits; "": the only output."""
        return self.output or (self.fetches[0] if self.fetches else "")

    def reader_options(self) -> dict[str, Any]:
        """Return keyword arguments for `DistilReader`, without those that the training decides."""
        from ...distill_reader import Timeouts

        timeouts = self.options.get("timeouts") or Timeouts()
        timeouts = replace(
            timeouts, no_teacher_s=self.no_teacher_grace_s, wait_s=self.wait_timeout_s
        )
        return {**self._own_options(), **self.options, "timeouts": timeouts}

    def _own_options(self) -> dict[str, Any]:
        """Return the arguments for `DistilReader` that come from fields other than `options`."""
        form: Any = self.label_form
        temperature: Any = self.teacher_temperature
        kind: Any = self.soft_label_is
        if self.hints:  # apply these to the main output only, not to feature maps
            main = self.main_output
            form = {main: form} if isinstance(form, str) else form
            temperature = None if temperature is None else {main: temperature}
            kind = None if kind is None else {main: kind}
        return {
            "service": self.service,
            "feeds": self.feeds,
            "fetches": tuple(self.fetches) or ((self.output,) if self.output else None),
            "label_form": form,
            "temperature": temperature,
            "soft_label_is": kind,
            "expand_labels": not self.top_k,
            "no_teacher": self.no_teacher,
            "store": self.store,
        }

    def _check_weights(self) -> None:
        _check_weight("alpha", self.alpha)
        _check_weight("beta", self.beta)
        if weights.always_zero(self.alpha) and not self.needs_labels:
            raise UsageError("alpha and beta are both 0: there is nothing to learn from")
        if not 0 <= self.label_smoothing < 1:
            raise UsageError(f"label_smoothing is from 0 to below 1, not {self.label_smoothing}")
        check_hard_term(self.no_teacher, self.alpha)

    def _check_loss(self) -> None:
        if self.loss not in get_args(SoftLoss):
            raise UsageError(f"loss is one of {', '.join(get_args(SoftLoss))}, not {self.loss!r}")
        if self.soft_label_is is not None and self.soft_label_is not in get_args(SoftLabelIs):
            raise UsageError(f"soft_label_is is one of {get_args(SoftLabelIs)}")
        for name, t in (
            ("temperature", self.temperature),
            ("teacher_temperature", self.teacher_temperature),
        ):
            if t is not None and not (math.isfinite(t) and t > 0):
                raise UsageError(f"{name} is a finite number above 0, not {t}")
        form = self._main_form()
        if (self.loss == "topk") != form.startswith("topk:") and self.loss != "kl":
            raise UsageError(
                "loss='topk' needs label_form='topk:K'"
                if self.top_k
                else "loss='mse' needs all logits, but label_form='topk:K' omits most of them:"
                " use loss='topk' or another form"
            )
        if self.loss == "mse" and self.arriving_kind == "probabilities":
            raise UsageError(
                "loss='mse' compares logits, but teachers send probabilities with these settings:"
                " use loss='kl'"
            )
        tail_temperature = self.teacher_temperature or 1.0
        if self.top_k and self.temperature != tail_temperature:
            raise UsageError(
                f"the tail of top-k labels is valid only for temperature {tail_temperature:g}, but"
                f" temperature={self.temperature:g}: give teacher_temperature={self.temperature:g}"
                " too"
            )
        if self.top_k and not isinstance(self.service, str):
            raise UsageError(
                "labels of several services are averaged as dense labels: use loss='kl'"
            )

    def _check_outputs(self) -> None:
        if self.output and self.fetches and self.output not in self.fetches:
            raise UsageError(f"output {self.output!r} is not among the fetches {self.fetches}")
        missing = [hint.teacher for hint in self.hints if hint.teacher not in self.fetches]
        if missing:
            raise UsageError(
                f"the hint {missing[0]!r} is not among the fetches {list(self.fetches)}: give"
                " fetches=[...] with the logits first, then all hints"
            )
        outputs = [hint.teacher for hint in self.hints]
        if repeated := [name for name in outputs if outputs.count(name) > 1]:
            raise UsageError(f"two hints name the output {repeated[0]!r}: give it only one")
        if self.top_k and not self.main_output:
            raise UsageError("loss='topk' needs the name of the output: fetches=['logits']")

    def _main_form(self) -> str:
        form = self.label_form
        if isinstance(form, Mapping):
            form = form.get(self.main_output)
        return form or ""


def check_hard_term(no_teacher: OnNoTeacher, alpha: Weight) -> None:
    """Raise UsageError if batches without soft labels would have no term of the loss."""
    if no_teacher == "hard_only" and weights.always_zero(alpha):
        raise UsageError(
            "no_teacher='hard_only' trains by the hard term while there is no teacher, but"
            " alpha is 0: choose 'wait' or 'fail'"
        )


def _check_known(options: Mapping[str, Any]) -> None:
    import inspect

    from ...distill_reader import DistilReader
    from ...distill_reader.options import FORMER_PARAMETERS

    if moved := next((name for name in options if name in FORMER_PARAMETERS), None):
        raise UsageError(f"a reader has no option {moved!r}: write {FORMER_PARAMETERS[moved]}")
    known = inspect.signature(DistilReader).parameters
    if unknown := [name for name in options if name not in known]:
        raise UsageError(f"a reader has no option {unknown[0]!r}; it has {', '.join(known)}")


def _check_weight(name: str, weight: Weight) -> None:
    try:
        weights.check(weight)
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
