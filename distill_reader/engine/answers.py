"""What a teacher answers: each output by itself, in parts, and compared with what another says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ...errors import BadAnswer, RequestRefused, UsageError, WrongInstance
from ...proto.arena import Array, dtype_named
from ...proto.clients import LabelResponse
from ...proto.datatypes import FREE, Input, Parameter, TensorSpec, datatype_of, pieces_of
from ...proto.forms import LabelForm, check_parts, decode, encode
from ..label_forms import AS_GIVEN, LabelForms


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


def soft_labels(answer: LabelResponse, expected: Expected) -> dict[str, Array]:
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
        labels |= arrays if form is None else labels_of(answer, name, form, expand=forms.expand)
    return labels


def named(answer: LabelResponse, expected: Expected) -> tuple[LabelResponse, tuple[str, ...]]:
    """The answer by our names for its outputs, and these in the order asked for."""
    if expected.foreign:
        answer = _under_our_name(answer, expected.outputs)
    return answer, expected.outputs or output_names(answer, expected.forms)


def _under_our_name(answer: LabelResponse, wanted: tuple[str, ...]) -> LabelResponse:
    """The answer, its only output under the name of the only one that is wanted."""
    if len(wanted) != 1 or len(answer.outputs) != 1:
        return answer
    return LabelResponse(
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
    if len(spec.shape) == label.ndim:
        for want, have in zip(spec.shape[1:], label.shape[1:], strict=True):
            if want not in (FREE, have):
                declared, came = list(spec.shape), list(label.shape)
                raise BadAnswer(f"output {spec.name!r} is declared as {declared}, {came} came")
    if exact and datatype_of(label.dtype) != spec.datatype:
        raise BadAnswer(f"output {spec.name!r} is declared as {spec.datatype}, {label.dtype} came")


def output_names(answer: LabelResponse, forms: LabelForms) -> tuple[str, ...]:
    """The outputs of an answer by the model's own names: those of `topk` came as three each."""
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


def received(answer: LabelResponse, name: str, form: LabelForm | None) -> dict[str, Array]:
    """The arrays that came for the output `name`, in its form or by its own name.

    Raises:
        BadAnswer: the answer lacks it.
    """
    outputs = answer.outputs
    parts = () if form is None else form.parts(name)
    if parts and all(part in outputs for part in parts):
        return {part: outputs[part] for part in parts}
    if name in outputs:
        return {name: outputs[name]}
    raise BadAnswer(f"the answer lacks {name!r}, it has {list(answer.outputs)}")


def in_form(
    answer: LabelResponse, name: str, form: LabelForm | None
) -> tuple[dict[str, Array], Mapping[str, Parameter]]:
    """The arrays of the output `name` in its form, and what is said of them.

    A server that has ignored the form that was asked for, as foreign ones do, is helped out here:
    so labels do not depend on who made them.

    Raises:
        BadAnswer: the answer lacks it, or says another form of its parts.
        RequestRefused: the output cannot have this form.
    """
    arrays = received(answer, name, form)
    said = answer.output_parameters.get(next(iter(arrays)), {})
    if form is None or _is_in(form, said):
        return arrays, said
    if name not in arrays:
        raise BadAnswer(f"output {name!r} came in parts, and they do not say {form}")
    array = arrays[name]
    encoded = encode(name, array, form)
    return encoded, form.parameters(array.shape[-1])


def labels_of(
    answer: LabelResponse, name: str, form: LabelForm, *, expand: bool
) -> Iterator[tuple[str, Array]]:
    """The labels that the training loop gets for one output that was asked for in a form.

    Args:
        answer: its arrays must have been checked one by one.
        name: of the output.
        form: what was asked for.
        expand: dense float32, whatever travelled; else what travelled.

    Raises:
        WireError: the parts of the output contradict each other.
        RequestRefused: the output cannot have this form.
    """
    arrays, said = in_form(answer, name, form)
    if expand:
        yield name, decode(name, arrays, form, said)
    elif form.k:
        yield from zip(form.parts(name), check_parts(name, arrays, form, said), strict=True)
    else:
        yield from arrays.items()


def _is_in(form: LabelForm, said: Mapping[str, Parameter]) -> bool:
    try:
        return LabelForm.from_parameters(said) == form
    except UsageError:  # a foreign server has a parameter of this name, for something else
        return False


#: What is lost where labels travel in fewer bits, as a part of a value; top-k values are float16.
_ROUNDED = {None: 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 0.0}
#: Of class ids, so many times the tolerance may differ: where two classes are nearly equal.
_IDS = 5.0


def agree(
    ours: Mapping[str, Array], theirs: Mapping[str, Array], tolerance: float, forms: LabelForms
) -> bool:
    """Whether labels of the same rows lie within a tolerance of each other.

    Floats may lie apart by `tolerance` times the greatest absolute value of both arrays, and by
    what is rounded off on the way. Of top-k, classes may be named by one alone that the other has
    nearly as great; of integers, which are class ids, a part may differ.

    Args:
        ours: labels by name, as the training loop would get them.
        theirs: the same of another teacher.
        tolerance: as a part of the greatest value.
        forms: in which they were asked for.
    """
    if not _alike(ours, theirs):
        return False
    pairs = {name: (ours[name], theirs[name]) for name in ours}
    for name in _in_parts(pairs, forms):
        values, indices, tail = (pairs.pop(part) for part in _parts(name))
        if not _named_agree(values, indices, tail, tolerance + _ROUNDED[None]):
            return False
    return all(
        _whole_agree(one, other, tolerance, forms.of(name)) for name, (one, other) in pairs.items()
    )


def furthest(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[str, str]:
    """The output on which two teachers differ most, and by how much, in words."""
    apart = {
        name: _apart(one, other)
        for name, one in ours.items()
        if (other := theirs.get(name)) is not None and one.shape == other.shape
    }
    if not apart:
        return ", ".join(ours), "names or shapes"
    name = max(apart, key=lambda name: apart[name])
    what = "of its values" if ours[name].dtype.kind in "iub" else "of its greatest value"
    return name, f"{apart[name]:.2g} {what}"


def _apart(one: Array, other: Array) -> float:
    """How far labels lie apart: as a part of the greatest; of integers, the part that differs."""
    if one.dtype.kind in "iub":
        return float(np.count_nonzero(one != other)) / max(one.size, 1)
    one, other = _numbers(one), _numbers(other)
    return float(np.abs(one - other).max(initial=0.0)) / (_greatest(one, other) or 1.0)


def _alike(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    """Whether both have the same labels, of one shape each; floats of any precision are alike."""
    return ours.keys() == theirs.keys() and all(
        one.shape == theirs[name].shape and joined(one.dtype, theirs[name].dtype) is not None
        for name, one in ours.items()
    )


def _parts(name: str) -> tuple[str, ...]:
    return LabelForm(None, 1).parts(name)


def _in_parts(names: Mapping[str, object], forms: LabelForms) -> list[str]:
    """The outputs of top-k that came as it travels."""
    wholes = [name.removesuffix(".values") for name in names if name.endswith(".values")]
    return [
        name
        for name in wholes
        if (form := forms.of(name)) is not None
        and form.k
        and not forms.expand
        and all(part in names for part in _parts(name))
    ]


def _whole_agree(ours: Array, theirs: Array, tolerance: float, form: LabelForm | None) -> bool:
    if ours.dtype.kind in "iub":
        return int(np.count_nonzero(ours != theirs)) <= _IDS * tolerance * ours.size
    rounded = max(map(_rounded, (ours, theirs))) if form is None else _ROUNDED[form.dtype]
    ours, theirs = _numbers(ours), _numbers(theirs)
    if form is None or not form.k:
        return _near(ours, theirs, (tolerance + rounded) * _greatest(ours, theirs))
    rows = [array.reshape(-1, array.shape[-1]) for array in (ours, theirs)]
    limit = (tolerance + rounded) * _greatest(ours, theirs)
    return _top_agree(_expanded(rows[0]), _expanded(rows[1]), limit)


def _rounded(labels: Array) -> float:
    """What a dtype rounds off, as a part of a value."""
    return _ROUNDED.get(labels.dtype.name, 0.0)


def _numbers(labels: Array) -> Array:
    """In a dtype that numpy computes in."""
    return labels if labels.dtype.kind in "fc" else labels.astype(np.float32)


def _greatest(*arrays: Array) -> float:
    return max(float(np.abs(array).max(initial=0.0)) for array in arrays)


def _near(ours: Array, theirs: Array, limit: float) -> bool:
    return bool((np.abs(ours - theirs) <= limit).all())


def _named_agree(
    values: tuple[Array, Array], indices: tuple[Array, Array], tail: tuple[Array, Array], of: float
) -> bool:
    """Labels as top-k travels: values and their classes, and what all others have."""
    limit = of * _greatest(*map(_numbers, (*values, *tail)))
    classes = 1 + max(int(of_one.max(initial=0)) for of_one in indices)
    tops = [
        _Top(
            *_by_place(_numbers(own).reshape(-1, own.shape[-1]), at, classes),
            _numbers(rest).reshape(-1),
        )
        for own, at, rest in zip(values, indices, tail, strict=True)
    ]
    return _top_agree(tops[0], tops[1], limit)


class _Top:
    """The greatest values of each row.

    Attributes:
        places: row * classes + class of each, in growing order.
        values: of these.
        least: of each row.
        rest: of each row, what says how much all others have.
        classes: of each row.
    """

    def __init__(
        self, places: Array, values: Array, least: Array, classes: int, rest: Array
    ) -> None:
        self.places, self.values, self.least = places, values, least
        self.classes, self.rest = classes, rest

    def has_all(self, other: _Top, shared: Array, limit: float) -> bool:
        """Whether what `other` alone names could have been left out here."""
        alone = np.ones(len(other.places), bool)
        alone[shared] = False
        rows = other.places[alone] // other.classes
        return bool((other.values[alone] <= self.least[rows] + limit).all())


def _by_place(values: Array, classes_of: Array, classes: int) -> tuple[Array, Array, Array, int]:
    rows = np.arange(len(values))[:, np.newaxis]
    places = (rows * classes + classes_of.reshape(values.shape)).reshape(-1)
    order = np.argsort(places)
    return places[order], values.reshape(-1)[order], values.min(axis=1), classes


def _expanded(rows: Array) -> _Top:
    """Of dense labels, in which all classes that were left out share the least value."""
    rest = rows.min(axis=1)
    kept = rows > rest[:, np.newaxis]
    least = np.where(kept, rows, np.inf).min(axis=1)
    return _Top(np.flatnonzero(kept), rows[kept], least, rows.shape[1], rest)


def _top_agree(ours: _Top, theirs: _Top, limit: float) -> bool:
    _, here, there = np.intersect1d(
        ours.places, theirs.places, assume_unique=True, return_indices=True
    )
    return (
        _near(ours.values[here], theirs.values[there], limit)
        and ours.has_all(theirs, there, limit)
        and theirs.has_all(ours, here, limit)
        and _near(ours.rest, theirs.rest, limit)
    )


@lru_cache(maxsize=64)
def joined(one: np.dtype[Any], other: np.dtype[Any]) -> np.dtype[Any] | None:
    """The dtype of rows of both in one array; None where they cannot stand in one."""
    if one == other:
        return one
    name = widest_float(one.name, other.name)
    return None if name is None else dtype_named(name)


def concatenated(pieces: Sequence[Array]) -> Array:
    """Rows of pieces whose dtypes can be joined, one below the other."""
    dtype = pieces[0].dtype
    for piece in pieces[1:]:
        wider = joined(dtype, piece.dtype)
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


def widest_float(one: str, other: str) -> str | None:
    """The type for values of both, by their names; None where they cannot stand together."""
    if one == other:
        return one
    if one not in _FLOAT_BITS or other not in _FLOAT_BITS:
        return None
    fraction, exponent = map(max, _FLOAT_BITS[one], _FLOAT_BITS[other])
    return next(
        (name for name, (f, e) in _FLOAT_BITS.items() if f >= fraction and e >= exponent), "float64"
    )
