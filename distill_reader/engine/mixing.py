"""Labels of several services averaged in probability space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ...proto.form_arrays import kind_of, softmax
from ...proto.forms import Form
from ..ensembles import SoftLabelIs
from ..label_forms import LabelForms

#: Kinds of outputs that may be called so.
_AGREE: Final = {"logits": ("logits", "log-probabilities"), "probabilities": ("probabilities",)}


def mixed_into(
    mixed: Sequence[Array],
    labels: Sequence[tuple[float, Mapping[str, Array]]],
    forms: LabelForms,
    soft_label_is: SoftLabelIs | None,
    kinds: Sequence[Mapping[str, str]],
) -> None:
    """Write the weighted mean of probabilities.

    Args:
        mixed: a float32 array for each label, which is overwritten.
        labels: pairs (share, labels by name) of the services that take part; shares sum to 1. The
            first label of each is averaged with the first of the others, and so on, whatever their
            names; shapes have been checked by `layout_of`.
        forms: in which form they were asked for: where a temperature was, they are probabilities.
        soft_label_is: what the models give where none was; None: as `kinds` says.
        kinds: of each of `labels`, the `OutputKind` that its teachers state, by name; what is not
            there is found out by the values.

    Raises:
        UsageError: `soft_label_is` contradicts `kinds`, or an output is "other".
    """
    for array in mixed:
        array[...] = 0.0
    for (share, named), stated in zip(labels, kinds, strict=True):
        for total, (name, label) in zip(mixed, named.items(), strict=True):
            rows = label.astype(np.float32, copy=False)
            known = _are_probabilities(name, label, forms.of(name), soft_label_is, stated)
            total += np.float32(share) * (rows if known else softmax(rows, 1.0))


def _are_probabilities(
    name: str,
    label: Array,
    form: Form | None,
    soft_label_is: SoftLabelIs | None,
    stated: Mapping[str, str],
) -> bool:
    if form is not None and form.temperature is not None:
        return True
    kind = stated.get(name, "")
    if kind == "other" or (soft_label_is and kind and kind not in _AGREE[soft_label_is]):
        raise UsageError(
            f"output {name!r} is {kind} by its teachers, and is to be averaged as"
            f" {soft_label_is or 'probabilities'}: leave soft_label_is out, name another output by"
            " fetches, or start the teachers with --output-kind"
        )
    if form is not None and form.k:
        return soft_label_is == "probabilities"  # else they came as logits
    return (soft_label_is or kind or kind_of([label])) == "probabilities"


def layout_of(
    labels: Mapping[str, Mapping[str, Array]],
) -> list[tuple[str, np.dtype[np.float32], tuple[int, ...]]]:
    """Names, dtypes and shapes of the mean, of labels by service.

    Raises:
        UsageError: they are no labels of the same classes.
    """
    kinds = {
        service: [(label.shape, label.dtype.kind in "fV") for label in named.values()]
        for service, named in labels.items()
    }
    (first, expected), *others = kinds.items()
    for service, kind in others:
        if kind != expected:
            raise UsageError(
                f"labels of {first!r} and {service!r} cannot be averaged: shapes"
                f" {[shape for shape, _ in expected]} and {[shape for shape, _ in kind]}; name the"
                " outputs that can by fetches=[...]"
            )
    if not all(is_float for _, is_float in expected):
        raise UsageError("labels that are no floats cannot be averaged: name others by fetches")
    return [(name, np.dtype(np.float32), label.shape) for name, label in labels[first].items()]
