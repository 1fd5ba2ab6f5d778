"""Is this answer what was asked for? No answer is trusted blindly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...errors import BadAnswer, RequestRefused, WrongInstance
from ...proto.arena import Array
from ...proto.clients import Answer
from ...proto.datatypes import datatype_of
from ...proto.specs import FREE, TensorSpec
from ...proto.stacked import Input, pieces_of
from ..label_forms import AS_GIVEN, LabelForms
from .label_parts import labels_of, output_names, received


@dataclass(frozen=True, slots=True)
class Expected:
    """What is known of an answer before it comes.

    Attributes:
        teacher_id: the instance that was asked, or empty where it is not known.
        incarnation: its life, or 0 where that is not known.
        content_id: the model content of the service, or empty where it is not known.
        outputs: names that must be there; empty: at least one.
        samples: rows that each output must have.
        forms: in which form each output was asked for.
        foreign: the server has names of its own for its outputs.
        declared: outputs of the model, as its server describes them; empty where it does not.
        whole: every output of the model is wanted.
    """

    teacher_id: str
    incarnation: int
    content_id: str
    outputs: tuple[str, ...]
    samples: int
    forms: LabelForms = AS_GIVEN
    foreign: bool = False
    declared: tuple[TensorSpec, ...] = ()
    whole: bool = False


def soft_labels(answer: Answer, expected: Expected) -> dict[str, Array]:
    """The labels in `answer`, in the order asked for.

    Raises:
        WrongInstance: another teacher, or another life of it, has answered.
        BadAnswer: names, rows, dtype or values are not what labels can be, or not the model's.
        WireError: an output came in parts that contradict each other.
        RequestRefused: an output cannot have the form that was asked for.
    """
    _check_instance(answer.parameters, expected)
    forms = expected.forms
    answer, names = named(answer, expected)
    if not names:
        raise BadAnswer("the answer holds no outputs")
    labels: dict[str, Array] = {}
    specs = {spec.name: spec for spec in expected.declared}
    is_ours = "teacher_id" in answer.parameters
    for name in names:
        form = forms.of(name)
        arrays = received(answer, name, form)
        for part, array in arrays.items():
            _check_label(part, array, expected.samples)
        if name in specs and name in arrays:  # else in parts, which are held against each other
            _check_declared(specs[name], arrays[name], exact=is_ours and form is None)
        labels |= labels_of(answer, name, form, expand=forms.expand)
    return labels


def named(answer: Answer, expected: Expected) -> tuple[Answer, tuple[str, ...]]:
    """The answer by our names for its outputs, and these in the order asked for."""
    if expected.foreign:
        answer = _under_our_name(answer, expected.outputs)
    return answer, expected.outputs or output_names(answer, expected.forms)


def _under_our_name(answer: Answer, wanted: tuple[str, ...]) -> Answer:
    """The answer, its only output under the name of the only one that is wanted."""
    if len(wanted) != 1 or len(answer.outputs) != 1:
        return answer
    return Answer(
        dict(zip(wanted, answer.outputs.values(), strict=True)),
        answer.parameters,
        dict(zip(wanted, answer.output_parameters.values(), strict=False)),
    )


def device_seconds(told: object, elapsed_s: float, beside: int = 1) -> float:
    """How long the teacher's device worked, as it has told.

    Where it has not, or that cannot be, it is the time of the request, shared among the
    `beside` requests that were on their way to it then: so long is it, while the device is busy,
    from the end of one to the end of the next.
    """
    if isinstance(told, (int, float)) and 0 < told < elapsed_s:
        return float(told)
    return elapsed_s / beside


def refuse_what_is_not_finite(inputs: Mapping[str, Input]) -> None:
    """Raises RequestRefused for inputs of which no teacher could make good labels."""
    for name, value in inputs.items():
        if not all(map(is_finite, pieces_of(value))):
            raise RequestRefused(f"input {name!r} holds values that are not finite")


def is_finite(array: Array) -> bool:
    """Whether none of the elements is NaN or infinite."""
    return array.dtype.kind not in "fcV" or np.count_nonzero(np.isfinite(array)) == array.size


def _check_instance(parameters: Mapping[str, Any], expected: Expected) -> None:
    # A foreign server names no instance; what it does name must be right.
    for key, wanted in (
        ("teacher_id", expected.teacher_id),
        ("incarnation", str(expected.incarnation or "")),
    ):
        told = str(parameters.get(key, ""))
        if told and wanted and told != wanted:
            raise WrongInstance(f"{key} {told} answered, {wanted} was asked")
    content = str(parameters.get("content_id", ""))
    if content and expected.content_id and content != expected.content_id:
        raise BadAnswer(f"content {content} answered, the service serves {expected.content_id}")


def _check_label(name: str, label: Array, samples: int) -> None:
    if label.dtype.hasobject:
        raise BadAnswer(f"output {name!r} is of BYTES, which no loss can use")
    rows = label.shape[0] if label.ndim else 0
    if rows != samples:
        raise BadAnswer(f"output {name!r} has shape {label.shape}, for a batch of {samples}")
    if not is_finite(label):
        raise BadAnswer(f"output {name!r} holds values that are not finite")


def _check_declared(spec: TensorSpec, label: Array, exact: bool) -> None:
    """Hold an output against what its server says of the model.

    Where the number of dimensions is another, nothing is said: some servers leave out the batch's.
    Of servers that are not ours some declare one width of numbers and answer with another.
    """
    width = spec.shape[1:]
    if len(spec.shape) == label.ndim and not all(
        want in (FREE, have) for want, have in zip(width, label.shape[1:], strict=True)
    ):
        raise BadAnswer(
            f"output {spec.name!r} is declared as {list(spec.shape)}, {list(label.shape)} came"
        )
    if exact and datatype_of(label.dtype) != spec.datatype:
        raise BadAnswer(f"output {spec.name!r} is declared as {spec.datatype}, {label.dtype} came")
