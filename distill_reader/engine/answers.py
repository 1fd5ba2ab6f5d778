"""Checks of teachers' responses, and their conversion to labels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ...proto.arena import Array, dtype_named
from ...proto.clients import LabelResponse
from ...proto.datatypes import (
    FREE,
    Input,
    Parameter,
    TensorSpec,
    count_not_finite,
    datatype_of,
    pieces_of,
)
from ...proto.forms import LabelForm, check_parts, decode, encode
from ...runtime.errors import BadAnswer, RequestRefused, UsageError, WireError, WrongInstance
from ..label_forms import NO_FORMS, LabelForms


@dataclass(frozen=True, slots=True)
class ExpectedResponse:
    """The properties that a response must have; the same for all requests to a teacher.

    Attributes:
        teacher_id: id of the teacher; empty: unknown.
        incarnation: incarnation of the teacher; 0: unknown.
        content_id: content of the service's model; empty: unknown.
        outputs: names of the outputs to return; empty: all outputs of the response, at least one.
        forms: requested form of each output.
        foreign: the server may have another name for its only output.
        declared: outputs of the model by name, as its server describes them; empty: not described.
        whole: every output of the model was requested.
    """

    teacher_id: str
    incarnation: int
    content_id: str
    outputs: tuple[str, ...]
    forms: LabelForms = NO_FORMS
    foreign: bool = False
    declared: Mapping[str, TensorSpec] = field(default_factory=dict)
    whole: bool = False


def checked_labels(
    response: LabelResponse, expected: ExpectedResponse, samples: int
) -> dict[str, Array]:
    """Check a response and convert it to labels.

    Args:
        response: response of the teacher.
        expected: the properties that this teacher's responses must have.
        samples: rows that each output must have.

    Returns:
        The labels by name, in the requested order and form.

    Raises:
        WrongInstance: another teacher or incarnation has answered.
        BadAnswer: another content has answered, or an output is missing, or has wrong rows, shape,
            dtype or values.
        WireError: the parts of a top-k output contradict each other, or an output has another
            dtype than its stated form.
        RequestRefused: an output cannot have the requested form.
    """
    _check_instance(response.parameters, expected)
    forms, names = expected.forms, expected.outputs
    if expected.foreign or not names:
        response, names = with_requested_names(response, expected)
    if not names:
        raise BadAnswer("the answer holds no outputs")
    labels: dict[str, Array] = {}
    is_edl_teacher = "teacher_id" in response.parameters
    for name in names:
        form = forms.of(name)
        arrays = arrays_of(response, name, form)
        for part, array in arrays.items():
            _check_label(part, array, samples)
        spec = expected.declared.get(name)
        if spec is not None and name in arrays:  # else `check_parts` compares its parts
            _check_declared(spec, arrays[name], exact=is_edl_teacher and form is None)
        if form is None:
            labels |= arrays
        else:
            labels |= labels_of(response, name, form, expand=forms.expand)
    return labels


def with_requested_names(
    response: LabelResponse, expected: ExpectedResponse
) -> tuple[LabelResponse, tuple[str, ...]]:
    """Return the response with the requested names of its outputs, and these names in order."""
    if expected.foreign:
        response = _renamed(response, expected.outputs)
    return response, expected.outputs or output_names(response, expected.forms)


def _renamed(response: LabelResponse, requested: tuple[str, ...]) -> LabelResponse:
    """Rename the only output of a response to the only requested one."""
    if len(requested) != 1 or len(response.outputs) != 1:
        return response
    return LabelResponse(
        dict(zip(requested, response.outputs.values(), strict=True)),
        response.parameters,
        dict(zip(requested, response.output_parameters.values(), strict=False)),
    )


#: Shorter device times are ignored: divided by rows, they might become 0.
LEAST_DEVICE_S: Final = 1e-9


def device_seconds(reported: object, elapsed_s: float, in_flight: int = 1) -> float:
    """Return the seconds that the teacher's device worked on a request.

    Args:
        reported: the teacher's measurement; ignored unless it is a number between
            `LEAST_DEVICE_S` and `elapsed_s`.
        elapsed_s: seconds from sending the request to its response.
        in_flight: requests in flight to the teacher at the time of sending, this one included.
            Without a report, the elapsed time is divided by this number: while the device is busy,
            the quotient is the time from one response to the next.
    """
    if (
        isinstance(reported, (int, float))
        and reported is not True
        and LEAST_DEVICE_S <= reported < elapsed_s
    ):
        return float(reported)
    return elapsed_s / in_flight


def check_inputs_finite(inputs: Mapping[str, Input]) -> None:
    """Raise RequestRefused if inputs have values that are not finite."""
    for name, value in inputs.items():
        if any(map(count_not_finite, pieces_of(value))):
            raise RequestRefused(f"input {name!r} holds values that are not finite")


def _check_instance(parameters: Mapping[str, Any], expected: ExpectedResponse) -> None:
    # Foreign servers do not name their instance. If a server names its ids, they must be right.
    for key, requested in (
        ("teacher_id", expected.teacher_id),
        ("incarnation", str(expected.incarnation or "")),
    ):
        answering = str(parameters.get(key, ""))
        if answering and requested and answering != requested:
            raise WrongInstance(f"the answer is of {key} {answering}, not {requested}")
    content = str(parameters.get("content_id", ""))
    if content and expected.content_id and content != expected.content_id:
        raise BadAnswer(f"the answer is of content {content}, not {expected.content_id}")


def _check_label(name: str, label: Array, samples: int) -> None:
    if label.dtype.hasobject:
        raise BadAnswer(f"output {name!r} is of BYTES, which no loss can use")
    rows = label.shape[0] if label.ndim else 0
    if rows != samples:
        raise BadAnswer(f"output {name!r} has shape {label.shape}, for a batch of {samples}")
    if count_not_finite(label):
        raise BadAnswer(f"output {name!r} holds values that are not finite")


def _check_declared(spec: TensorSpec, label: Array, exact: bool) -> None:
    """Compare an output with its declaration; raises BadAnswer.

    Shapes with different numbers of dimensions are not compared, as some servers omit the batch
    dimension. Datatypes are only compared if `exact`: some foreign servers declare another width of
    numbers.
    """
    if len(spec.shape) == label.ndim:
        for declared, received in zip(spec.shape[1:], label.shape[1:], strict=True):
            if declared not in (FREE, received):
                raise BadAnswer(
                    f"output {spec.name!r} is declared as {list(spec.shape)}, but has the shape"
                    f" {list(label.shape)}"
                )
    if exact and datatype_of(label.dtype) != spec.datatype:
        raise BadAnswer(
            f"output {spec.name!r} is declared as {spec.datatype}, but has the dtype {label.dtype}"
        )


def output_names(response: LabelResponse, forms: LabelForms) -> tuple[str, ...]:
    """Return the model's names of the outputs of a response; a top-k output has three arrays."""
    names = list(response.outputs)
    for name in response.outputs:
        output = name.removesuffix(".values")
        form = forms.of(output)
        if output == name or form is None or not form.k:
            continue
        if all(part in names for part in form.parts(output)):
            names[names.index(name)] = output
            names = [other for other in names if other not in form.parts(output)]
    return tuple(names)


def arrays_of(response: LabelResponse, name: str, form: LabelForm | None) -> dict[str, Array]:
    """Return the arrays of the output `name`: the parts of `form`, or one array of its own name.

    Raises:
        BadAnswer: the response lacks these arrays.
    """
    outputs = response.outputs
    if form is not None:
        parts = form.parts(name)
        if all(part in outputs for part in parts):
            return {part: outputs[part] for part in parts}
    if name in outputs:
        return {name: outputs[name]}
    raise BadAnswer(f"the answer lacks {name!r}, it has {list(response.outputs)}")


def in_form(
    response: LabelResponse, name: str, form: LabelForm | None
) -> tuple[dict[str, Array], Mapping[str, Parameter]]:
    """Return the arrays of the output `name` in the requested form, and their parameters.

    If the server ignored the form, as foreign servers do, the output is converted here, so that
    labels do not depend on the server.

    Raises:
        BadAnswer: the response lacks the output, has its parts in another form, or states a form
            but lacks parts of it.
        RequestRefused: the output cannot have this form.
    """
    arrays = arrays_of(response, name, form)
    parameters = response.output_parameters.get(next(iter(arrays)), {})
    if form is None:
        return arrays, parameters
    if _is_in(form, parameters):
        if not all(part in arrays for part in form.parts(name)):
            raise BadAnswer(f"output {name!r} is marked as {form}, but has only one array")
        return arrays, parameters
    if name not in arrays:
        raise BadAnswer(f"output {name!r} has several arrays, which are not marked as {form}")
    array = arrays[name]
    encoded = encode(name, array, form)
    return encoded, form.parameters(array.shape[-1])


def labels_of(
    response: LabelResponse, name: str, form: LabelForm, *, expand: bool
) -> Iterator[tuple[str, Array]]:
    """Yield the labels (name, array) that the training loop gets for one output.

    Args:
        response: a response with checked arrays.
        name: name of the output.
        form: requested form.
        expand: convert to dense float32.

    Raises:
        WireError: see `checked_labels`.
        BadAnswer, RequestRefused: see `in_form`.
    """
    arrays, parameters = in_form(response, name, form)
    if expand:
        yield name, decode(name, arrays, form, parameters)
    elif form.k:
        yield from zip(form.parts(name), check_parts(name, arrays, form, parameters), strict=True)
    else:
        if form.dtype is not None and arrays[name].dtype != dtype_named(form.dtype):
            raise WireError(
                f"output {name!r} is {arrays[name].dtype}, but its parameters state {form}"
            )
        yield from arrays.items()


def _is_in(form: LabelForm, parameters: Mapping[str, Parameter]) -> bool:
    try:
        return LabelForm.from_parameters(parameters) == form
    except UsageError:  # a foreign server uses these parameters for something else
        return False


@lru_cache(maxsize=64)
def common_dtype(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the narrowest dtype for values of both dtypes; None: they cannot be joined."""
    if one == other:
        return one
    if {one.name, other.name} == {"float16", "bfloat16"}:  # numpy has no common dtype for these
        return np.dtype(np.float32)
    are_floats = {one.name, other.name} <= {"float16", "bfloat16", "float32", "float64"}
    return np.promote_types(one, other) if are_floats or one.name == other.name else None


def concatenated(pieces: Sequence[Array]) -> Array:
    """Concatenate rows of pieces with dtypes that can be joined."""
    dtype = pieces[0].dtype
    for piece in pieces[1:]:
        wider = common_dtype(dtype, piece.dtype)
        assert wider is not None
        dtype = wider
    return np.concatenate([piece.astype(dtype, copy=False) for piece in pieces])
