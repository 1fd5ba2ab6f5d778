"""Comparisons of the labels of two teachers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ...proto.arena import Array
from ...proto.forms import LabelForm
from ..label_forms import LabelForms
from .answers import common_dtype

#: Relative rounding error of wire forms; top-k (None) has values in float16.
_ROUNDING = {None: 2.0**-10, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 0.0}
#: The share of class ids that may differ is this multiple of the tolerance, because the values of
#: two classes may be nearly equal.
_ID_SHARE = 5.0


class KeptLabels:
    """Labels of requests that several teachers answer, until these labels are compared.

    Args:
        forms: requested forms of the labels.
    """

    def __init__(self, forms: LabelForms) -> None:
        self._forms = forms
        self._labels: dict[int, dict[str, Mapping[str, Array]]] = {}  # by request and teacher

    def keep(self, request: int, teacher: str, labels: Mapping[str, Array]) -> None:
        """Keep the labels of a teacher's response."""
        self._labels.setdefault(request, {})[teacher] = labels

    def drop(self, request: int) -> None:
        """Forget the labels of a request."""
        self._labels.pop(request, None)

    def clear(self) -> None:
        """Forget all labels."""
        self._labels.clear()

    def agreeing(
        self, request: int, labels: Mapping[str, Array], tolerance: Callable[[str], float]
    ) -> frozenset[str]:
        """Return the teachers with kept labels of this request that agree with `labels`.

        Args:
            request: number of the request.
            labels: of another teacher.
            tolerance: returns the tolerance towards the labels of a teacher, see `agree`.
        """
        if not self._labels:  # the usual case
            return frozenset()
        return frozenset(
            teacher
            for teacher, kept in self._labels.get(request, {}).items()
            if agree(labels, kept, tolerance(teacher), self._forms)
        )

    def difference(self, request: int, pair: tuple[str, str]) -> tuple[str, str]:
        """Return where and how much labels of two teachers differ, see `greatest_difference`."""
        one, other = (self._labels[request][teacher] for teacher in pair)
        return greatest_difference(one, other)


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
    for name in _top_k_outputs(pairs, forms):
        values, indices, tail = (pairs.pop(part) for part in _top_k_parts(name))
        if not _top_k_agree(values, indices, tail, tolerance + _ROUNDING[None]):
            return False
    return all(
        _dense_agree(one, other, tolerance, forms.of(name)) for name, (one, other) in pairs.items()
    )


def greatest_difference(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> tuple[str, str]:
    """Return the output in which labels of two teachers differ most, and describe by how much.

    If outputs differ in names or shapes, return the names of all these outputs.
    """
    mismatched = [
        name
        for name in {**ours, **theirs}
        if name not in ours or name not in theirs or ours[name].shape != theirs[name].shape
    ]
    if mismatched:
        return ", ".join(mismatched), "names or shapes"
    differences = {name: _difference(one, theirs[name]) for name, one in ours.items()}
    name = max(differences, key=lambda name: differences[name])
    what = "of its values" if ours[name].dtype.kind in "iub" else "of its greatest value"
    return name, f"{differences[name]:.2g} {what}"


def _difference(one: Array, other: Array) -> float:
    """Return the difference relative to the greatest value; for integers, the differing share."""
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


def _top_k_parts(name: str) -> tuple[str, ...]:
    return LabelForm(None, 1).parts(name)


def _top_k_outputs(names: Mapping[str, object], forms: LabelForms) -> list[str]:
    """Return the outputs with top-k labels that are not expanded."""
    outputs = [name.removesuffix(".values") for name in names if name.endswith(".values")]
    return [
        name
        for name in outputs
        if (form := forms.of(name)) is not None
        and form.k
        and not forms.expand
        and all(part in names for part in _top_k_parts(name))
    ]


def _dense_agree(ours: Array, theirs: Array, tolerance: float, form: LabelForm | None) -> bool:
    if ours.dtype.kind in "iub":
        return int(np.count_nonzero(ours != theirs)) <= _ID_SHARE * tolerance * ours.size
    rounding = max(map(_rounding, (ours, theirs))) if form is None else _ROUNDING[form.dtype]
    ours, theirs = _numbers(ours), _numbers(theirs)
    limit = (tolerance + rounding) * _greatest(ours, theirs)
    if form is None or not form.k:
        return _near(ours, theirs, limit)
    rows = [array.reshape(-1, array.shape[-1]) for array in (ours, theirs)]
    return _top_agree(_top_of_dense(rows[0]), _top_of_dense(rows[1]), limit)


def _rounding(labels: Array) -> float:
    """Return the relative rounding error of the dtype."""
    return _ROUNDING.get(labels.dtype.name, 0.0)


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
    classes = 1 + max(int(array.max(initial=0)) for array in indices)
    ours, theirs = (
        _top_of_parts(_numbers(value).reshape(-1, value.shape[-1]), index, classes, _numbers(rest))
        for value, index, rest in zip(values, indices, tail, strict=True)
    )
    return _top_agree(ours, theirs, limit)


@dataclass(frozen=True, slots=True)
class _Top:
    """The greatest values of each row, of top-k labels.

    Attributes:
        positions: row * classes + class of each value, ascending.
        values: the values at these positions.
        least: the least of these values, per row.
        rest: the value that stands for all other classes, per row.
        classes: number of classes.
    """

    positions: Array
    values: Array
    least: Array
    rest: Array
    classes: int

    def may_omit(self, other: _Top, shared: Array, limit: float) -> bool:
        """Whether the values that only `other` has are at most the least value of this top.

        Args:
            other: greatest values by another teacher.
            shared: indices of the values of `other` at positions that both have.
            limit: absolute tolerance.
        """
        only_other = np.ones(len(other.positions), bool)
        only_other[shared] = False
        rows = other.positions[only_other] // other.classes
        return bool((other.values[only_other] <= self.least[rows] + limit).all())


def _top_of_parts(values: Array, indices: Array, classes: int, tail: Array) -> _Top:
    """Make the top from the parts of top-k labels: values and indices [n, k], tail [n]."""
    rows = np.arange(len(values))[:, np.newaxis]
    positions = (rows * classes + indices.reshape(values.shape)).reshape(-1)
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
    _, in_ours, in_theirs = np.intersect1d(
        ours.positions, theirs.positions, assume_unique=True, return_indices=True
    )
    return (
        _near(ours.values[in_ours], theirs.values[in_theirs], limit)
        and ours.may_omit(theirs, in_theirs, limit)
        and theirs.may_omit(ours, in_ours, limit)
        and _near(ours.rest, theirs.rest, limit)
    )
