"""Whether two teachers say the same of the same samples, in whichever form they say it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ...proto.arena import Array
from ...proto.forms import Form
from ..label_forms import LabelForms
from .widening import joined

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
    return Form(None, 1).parts(name)


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


def _whole_agree(ours: Array, theirs: Array, tolerance: float, form: Form | None) -> bool:
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
