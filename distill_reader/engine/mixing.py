"""Labels of several services averaged in probability space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ...proto.form_arrays import kind_of, softmax
from ..label_forms import LabelForms


def mixed_into(
    mixed: Sequence[Array],
    labels: Sequence[tuple[float, Mapping[str, Array]]],
    forms: LabelForms,
    kinds: Sequence[Mapping[str, str]],
) -> None:
    """Write the weighted mean of probabilities.

    Args:
        mixed: a float32 array for each label, which is overwritten.
        labels: pairs (share, labels by name) of the services that take part; shares sum to 1. The
            first label of each is averaged with the first of the others, and so on, whatever their
            names; shapes have been checked by `layout_of`.
        forms: in which form they were asked for, and what the user states of them.
        kinds: of each of `labels`, the `OutputKind` that its teachers state, by name; what nobody
            states is found out by the values.

    Raises:
        UsageError: an output is "other".
    """
    for array in mixed:
        array[...] = 0.0
    for (share, named), stated in zip(labels, kinds, strict=True):
        for total, (name, label) in zip(mixed, named.items(), strict=True):
            rows = label.astype(np.float32, copy=False)
            known = _are_probabilities(name, label, forms, stated.get(name, ""))
            total += np.float32(share) * (rows if known else softmax(rows, 1.0))


def _are_probabilities(name: str, label: Array, forms: LabelForms, kind: str) -> bool:
    form = forms.of(name)
    if form is not None and form.temperature is not None:
        return True
    if kind == "other":
        raise UsageError(
            f"output {name!r} cannot be averaged, as its teachers publish that it is neither logits"
            " nor probabilities: name another by fetches, or start them with --output-kind"
        )
    if form is not None and form.k:
        return False  # top-k of probabilities arrives as logarithms
    return (forms.stated_kind(name) or kind or kind_of([label])) == "probabilities"


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
