"""Checks of teachers' responses, their conversion to labels, and comparisons of labels."""

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
    datatype_of,
    not_finite,
    pieces_of,
)
from ...proto.forms import LabelForm, check_parts, decode, encode
from ...runtime.errors import BadAnswer, RequestRefused, UsageError, WireError, WrongInstance
from ..label_forms import AS_GIVEN, LabelForms


@dataclass(frozen=True, slots=True)
class ExpectedResponse:
    """What is known of a response before it arrives; the same for all requests to a teacher.

    Attributes:
        teacher_id: id of the teacher; empty: unknown.
        incarnation: incarnation of the teacher; 0: unknown.
        content_id: content of the service's model; empty: unknown.
        outputs: names of the outputs to return; empty: all that the response has, at least one.
        forms: requested form of each output.
        foreign: the server may have another name for its only output.
        declared: outputs of the model by name, as its server describes them; empty: not described.
        whole: every output of the model was requested.
    """

    teacher_id: str
    incarnation: int
    content_id: str
    outputs: tuple[str, ...]
    forms: LabelForms = AS_GIVEN
    foreign: bool = False
    declared: Mapping[str, TensorSpec] = field(default_factory=dict)
    whole: bool = False


def soft_labels(
    answer: LabelResponse, expected: ExpectedResponse, samples: int
) -> dict[str, Array]:
    """Check a response and convert it to labels.

    Args:
        answer: the response.
        expected: what is known of this teacher's responses.
        samples: rows that each output must have.

    Returns:
        The labels by name, in the requested order and form.

    Raises:
        WrongInstance: another teacher or incarnation has answered.
        BadAnswer: a missing output, or one with wrong rows, shape, dtype or values.
        WireError: the parts of a top-k output contradict each other, or an output has another
            dtype than its stated form.
        RequestRefused: an output cannot have the requested form.
    """
    _check_instance(answer.parameters, expected)
    forms, names = expected.forms, expected.outputs
    if expected.foreign or not names:
        answer, names = with_requested_names(answer, expected)
    if not names:
        raise BadAnswer("the answer holds no outputs")
    labels: dict[str, Array] = {}
    is_ours = "teacher_id" in answer.parameters
    for name in names:
        form = forms.of(name)
        arrays = arrays_of(answer, name, form)
        for part, array in arrays.items():
            _check_label(part, array, samples)
        spec = expected.declared.get(name)
        if spec is not None and name in arrays:  # else in parts, which `check_parts` compares
            _check_declared(spec, arrays[name], exact=is_ours and form is None)
        if form is None:
            labels |= arrays
        else:
            labels |= labels_of(answer, name, form, expand=forms.expand)
    return labels


def with_requested_names(
    answer: LabelResponse, expected: ExpectedResponse
) -> tuple[LabelResponse, tuple[str, ...]]:
    """Return the response with the requested names of its outputs, and these names in order."""
    if expected.foreign:
        answer = _renamed(answer, expected.outputs)
    return answer, expected.outputs or output_names(answer, expected.forms)


def _renamed(answer: LabelResponse, requested: tuple[str, ...]) -> LabelResponse:
    """Rename the only output of a response to the only requested one."""
    if len(requested) != 1 or len(answer.outputs) != 1:
        return answer
    return LabelResponse(
        dict(zip(requested, answer.outputs.values(), strict=True)),
        answer.parameters,
        dict(zip(requested, answer.output_parameters.values(), strict=False)),
    )


#: Least device time that is believed: divided by rows, a smaller one might become 0.
LEAST_DEVICE_S: Final = 1e-9


def device_seconds(reported: object, elapsed_s: float, in_flight: int = 1) -> float:
    """Return the seconds that the teacher's device worked on a request.

    Args:
        reported: the teacher's measurement; ignored unless it is a number between
            `LEAST_DEVICE_S` and `elapsed_s`.
        elapsed_s: seconds from sending the request to its response.
        in_flight: requests in flight to the teacher at the time of sending, this one included.
            Without a report, the time is divided by this number: while the device is busy, that is
            the time from one response to the next.
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
        if any(map(not_finite, pieces_of(value))):
            raise RequestRefused(f"input {name!r} holds values that are not finite")


def _check_instance(parameters: Mapping[str, Any], expected: ExpectedResponse) -> None:
    # A foreign server names no instance; ids that a server names must be right.
    for key, wanted in (
        ("teacher_id", expected.teacher_id),
        ("incarnation", str(expected.incarnation or "")),
    ):
        named = str(parameters.get(key, ""))
        if named and wanted and named != wanted:
            raise WrongInstance(f"{key} {named} answered, {wanted} was asked")
    content = str(parameters.get("content_id", ""))
    if content and expected.content_id and content != expected.content_id:
        raise BadAnswer(f"content {content} answered, the service serves {expected.content_id}")


def _check_label(name: str, label: Array, samples: int) -> None:
    if label.dtype.hasobject:
        raise BadAnswer(f"output {name!r} is of BYTES, which no loss can use")
    rows = label.shape[0] if label.ndim else 0
    if rows != samples:
        raise BadAnswer(f"output {name!r} has shape {label.shape}, for a batch of {samples}")
    if not_finite(label):
        raise BadAnswer(f"output {name!r} holds values that are not finite")


def _check_declared(spec: TensorSpec, label: Array, exact: bool) -> None:
    """Compare an output with its declaration; raises BadAnswer.

    Shapes with different numbers of dimensions are not compared, as some servers omit the batch
    dimension. Datatypes are only compared if `exact`: some foreign servers declare another width of
    numbers.
    """
    if len(spec.shape) == label.ndim:
        for want, have in zip(spec.shape[1:], label.shape[1:], strict=True):
            if want not in (FREE, have):
                declared, came = list(spec.shape), list(label.shape)
                raise BadAnswer(f"output {spec.name!r} is declared as {declared}, {came} came")
    if exact and datatype_of(label.dtype) != spec.datatype:
        raise BadAnswer(f"output {spec.name!r} is declared as {spec.datatype}, {label.dtype} came")


def output_names(answer: LabelResponse, forms: LabelForms) -> tuple[str, ...]:
    """Return the model's names of the outputs of a response; a top-k output has three arrays."""
    names = list(answer.outputs)
    for name in answer.outputs:
        whole = name.removesuffix(".values")
        form = forms.of(whole)
        if whole == name or form is None or not form.k:
            continue
        if all(part in names for part in form.parts(whole)):
            names[names.index(name)] = whole
            names = [other for other in names if other not in form.parts(whole)]
    return tuple(names)


def arrays_of(answer: LabelResponse, name: str, form: LabelForm | None) -> dict[str, Array]:
    """Return the arrays of the output `name`: the parts of `form`, or one array of its own name.

    Raises:
        BadAnswer: the response lacks them.
    """
    outputs = answer.outputs
    if form is not None:
        parts = form.parts(name)
        if all(part in outputs for part in parts):
            return {part: outputs[part] for part in parts}
    if name in outputs:
        return {name: outputs[name]}
    raise BadAnswer(f"the answer lacks {name!r}, it has {list(answer.outputs)}")


def in_form(
    answer: LabelResponse, name: str, form: LabelForm | None
) -> tuple[dict[str, Array], Mapping[str, Parameter]]:
    """Return the arrays of the output `name` in the requested form, and their parameters.

    If the server ignored the form, as foreign ones do, the output is converted here, so that labels
    do not depend on the server.

    Raises:
        BadAnswer: the response lacks the output, has its parts in another form, or states a form
            with parts that it lacks.
        RequestRefused: the output cannot have this form.
    """
    arrays = arrays_of(answer, name, form)
    parameters = answer.output_parameters.get(next(iter(arrays)), {})
    if form is None:
        return arrays, parameters
    if _is_in(form, parameters):
        if not all(part in arrays for part in form.parts(name)):
            raise BadAnswer(f"output {name!r} says that it is {form}, and came in one part")
        return arrays, parameters
    if name not in arrays:
        raise BadAnswer(f"output {name!r} came in parts, and they do not say {form}")
    array = arrays[name]
    encoded = encode(name, array, form)
    return encoded, form.parameters(array.shape[-1])


def labels_of(
    answer: LabelResponse, name: str, form: LabelForm, *, expand: bool
) -> Iterator[tuple[str, Array]]:
    """Yield the labels (name, array) that the training loop gets for one output.

    Args:
        answer: a response with checked arrays.
        name: name of the output.
        form: requested form.
        expand: convert to dense float32.

    Raises:
        WireError: see `soft_labels`.
        RequestRefused: the output cannot have this form.
    """
    arrays, parameters = in_form(answer, name, form)
    if expand:
        yield name, decode(name, arrays, form, parameters)
    elif form.k:
        yield from zip(form.parts(name), check_parts(name, arrays, form, parameters), strict=True)
    else:
        if form.dtype is not None and arrays[name].dtype != dtype_named(form.dtype):
            raise WireError(
                f"output {name!r} is of {arrays[name].dtype}, and says that it is {form}"
            )
        yield from arrays.items()


def _is_in(form: LabelForm, parameters: Mapping[str, Parameter]) -> bool:
    try:
        return LabelForm.from_parameters(parameters) == form
    except UsageError:  # a foreign server uses these parameters for something else
        return False


#: Relative rounding error of wire forms; top-k (None) has values in float16.
_ROUNDED = {None: 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 0.0}
#: The share of class ids that may differ is this multiple of the tolerance: values of two classes
#: may be nearly equal.
_ID_SHARE = 5.0


def agree(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float, forms: LabelForms
) -> bool:
    """Whether two teachers' labels of the same rows agree.

    Floats may differ by `tolerance` times the greatest absolute value of both arrays, plus the
    rounding error of the wire form. The top-k classes may differ in classes with nearly equal
    values. Integers are class ids; a small share of them may differ.

    Args:
        ours: labels by name, as the training loop gets them.
        theirs: those of the other teacher.
        tolerance: relative to the greatest absolute value.
        forms: requested forms.
    """
    if not _comparable(ours, theirs):
        return False
    pairs = {name: (ours[name], theirs[name]) for name in ours}
    for name in _in_parts(pairs, forms):
        values, indices, tail = (pairs.pop(part) for part in _parts(name))
        if not _top_k_agree(values, indices, tail, tolerance + _ROUNDED[None]):
            return False
    return all(
        _dense_agree(one, other, tolerance, forms.of(name)) for name, (one, other) in pairs.items()
    )


def greatest_difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[str, str]:
    """Return the output in which labels of two teachers differ most, and describe by how much.

    If outputs differ in names or shapes, return all of these.
    """
    unlike = [
        name
        for name in {**ours, **theirs}
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
    ]
    if unlike:
        return ", ".join(unlike), "names or shapes"
    differences = {name: _difference(one, theirs[name]) for name, one in ours.items()}
    name = max(differences, key=lambda name: differences[name])
    what = "of its values" if ours[name].dtype.kind in "iub" else "of its greatest value"
    return name, f"{differences[name]:.2g} {what}"


def _difference(one: Array, other: Array) -> float:
    """Return the difference relative to the greatest value; of integers, the differing share."""
    if one.dtype.kind in "iub":
        return float(np.count_nonzero(one != other)) / max(one.size, 1)
    one, other = _numbers(one), _numbers(other)
    return float(np.abs(one - other).max(initial=0.0)) / (_greatest(one, other) or 1.0)


def _comparable(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    """Whether names, shapes and kinds of dtypes are equal; floats may differ in precision."""
    return ours.keys() == theirs.keys() and all(
        one.shape == theirs[name].shape and common_dtype(one.dtype, theirs[name].dtype) is not None
        for name, one in ours.items()
    )


def _parts(name: str) -> tuple[str, ...]:
    return LabelForm(None, 1).parts(name)


def _in_parts(names: Mapping[str, object], forms: LabelForms) -> list[str]:
    """Return the top-k outputs with labels that are not expanded."""
    outputs = [name.removesuffix(".values") for name in names if name.endswith(".values")]
    return [
        name
        for name in outputs
        if (form := forms.of(name)) is not None
        and form.k
        and not forms.expand
        and all(part in names for part in _parts(name))
    ]


def _dense_agree(ours: Array, theirs: Array, tolerance: float, form: LabelForm | None) -> bool:
    if ours.dtype.kind in "iub":
        return int(np.count_nonzero(ours != theirs)) <= _ID_SHARE * tolerance * ours.size
    rounded = max(map(_rounded, (ours, theirs))) if form is None else _ROUNDED[form.dtype]
    ours, theirs = _numbers(ours), _numbers(theirs)
    if form is None or not form.k:
        return _near(ours, theirs, (tolerance + rounded) * _greatest(ours, theirs))
    rows = [array.reshape(-1, array.shape[-1]) for array in (ours, theirs)]
    limit = (tolerance + rounded) * _greatest(ours, theirs)
    return _top_agree(_top_of_dense(rows[0]), _top_of_dense(rows[1]), limit)


def _rounded(labels: Array) -> float:
    """Return the relative rounding error of the dtype."""
    return _ROUNDED.get(labels.dtype.name, 0.0)


def _numbers(labels: Array) -> Array:
    """Convert to a dtype that numpy computes in."""
    return labels if labels.dtype.kind in "fc" else labels.astype(np.float32)


def _greatest(*arrays: Array) -> float:
    return max(float(np.abs(array).max(initial=0.0)) for array in arrays)


def _near(ours: Array, theirs: Array, limit: float) -> bool:
    return bool((np.abs(ours - theirs) <= limit).all())


def _top_k_agree(
    values: tuple[Array, Array],
    indices: tuple[Array, Array],
    tail: tuple[Array, Array],
    tolerance: float,
) -> bool:
    """Compare the three parts of top-k; `tolerance` is relative to the greatest value."""
    limit = tolerance * _greatest(*map(_numbers, (*values, *tail)))
    classes = 1 + max(int(one.max(initial=0)) for one in indices)
    ours, theirs = (
        _top_of_parts(_numbers(own).reshape(-1, own.shape[-1]), at, classes, _numbers(rest))
        for own, at, rest in zip(values, indices, tail, strict=True)
    )
    return _top_agree(ours, theirs, limit)


@dataclass(frozen=True, slots=True)
class _Top:
    """The greatest values of each row.

    Attributes:
        positions: row * classes + class of each value, ascending.
        values: at these positions.
        least: the least of these values, per row.
        rest: the value of all other classes, per row.
        classes: number of classes.
    """

    positions: Array
    values: Array
    least: Array
    rest: Array
    classes: int

    def may_omit(self, other: _Top, shared: Array, limit: float) -> bool:
        """Whether the values that only `other` has are too small to be in this top.

        Args:
            other: top of another teacher.
            shared: indices of the values of `other` that both have.
            limit: absolute tolerance.
        """
        alone = np.ones(len(other.positions), bool)
        alone[shared] = False
        rows = other.positions[alone] // other.classes
        return bool((other.values[alone] <= self.least[rows] + limit).all())


def _top_of_parts(values: Array, classes_of: Array, classes: int, tail: Array) -> _Top:
    """Make the top from the parts of top-k labels: values and classes [n, k], tail [n]."""
    rows = np.arange(len(values))[:, np.newaxis]
    positions = (rows * classes + classes_of.reshape(values.shape)).reshape(-1)
    order = np.argsort(positions)
    least = values.min(axis=1)
    return _Top(positions[order], values.reshape(-1)[order], least, tail.reshape(-1), classes)


def _top_of_dense(rows: Array) -> _Top:
    """Make the top from expanded top-k labels [n, classes], where the rest has the least value."""
    rest = rows.min(axis=1)
    kept = rows > rest[:, np.newaxis]
    least = np.where(kept, rows, np.inf).min(axis=1)
    return _Top(np.flatnonzero(kept), rows[kept], least, rest, rows.shape[1])


def _top_agree(ours: _Top, theirs: _Top, limit: float) -> bool:
    _, here, there = np.intersect1d(
        ours.positions, theirs.positions, assume_unique=True, return_indices=True
    )
    return (
        _near(ours.values[here], theirs.values[there], limit)
        and ours.may_omit(theirs, there, limit)
        and theirs.may_omit(ours, here, limit)
        and _near(ours.rest, theirs.rest, limit)
    )


@lru_cache(maxsize=64)
def common_dtype(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """Return the dtype for rows of both dtypes in one array; None: they cannot be joined."""
    if one == other:
        return one
    name = common_dtype_name(one.name, other.name)
    return None if name is None else dtype_named(name)


def concatenated(pieces: Sequence[Array]) -> Array:
    """Concatenate rows of pieces with dtypes that can be joined."""
    dtype = pieces[0].dtype
    for piece in pieces[1:]:
        wider = common_dtype(dtype, piece.dtype)
        assert wider is not None
        dtype = wider
    return np.concatenate([piece.astype(dtype, copy=False) for piece in pieces])


#: Bits of the fraction and of the exponent, the narrowest type first.
_FLOAT_BITS: Final[Mapping[str, tuple[int, int]]] = {
    "float16": (10, 5),
    "bfloat16": (7, 8),
    "float32": (23, 8),
    "float64": (52, 11),
}


def common_dtype_name(one: str, other: str) -> str | None:
    """Return the narrowest dtype for values of both, by name; None: they cannot be joined."""
    if one == other:
        return one
    if one not in _FLOAT_BITS or other not in _FLOAT_BITS:
        return None
    fraction, exponent = map(max, _FLOAT_BITS[one], _FLOAT_BITS[other])
    return next(name for name, (f, e) in _FLOAT_BITS.items() if f >= fraction and e >= exponent)
