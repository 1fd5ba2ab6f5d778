"""Labels of several services averaged in probability space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ...errors import UsageError
from ...proto.arena import Array
from ...proto.form_arrays import softmax
from ..ensembles import SoftLabelIs
from ..label_forms import LabelForms


def mixed_into(
    mixed: Sequence[Array],
    labels: Sequence[tuple[float, Mapping[str, Array]]],
    forms: LabelForms,
    soft_label_is: SoftLabelIs,
) -> None:
    """Write the weighted mean of probabilities.

    Args:
        mixed: a float32 array for each label, which is overwritten.
        labels: pairs (share, labels by name) of the services that take part; shares sum to 1. The
            first label of each is averaged with the first of the others, and so on, whatever their
            names; shapes have been checked by `layout_of`.
        forms: in which form they were asked for: where a temperature was, they are probabilities.
        soft_label_is: what the models give where none was.
    """
    for array in mixed:
        array[...] = 0.0
    for share, named in labels:
        for total, (name, label) in zip(mixed, named.items(), strict=True):
            form = forms.of(name)
            known = soft_label_is == "probabilities" or (
                form is not None and form.temperature is not None
            )
            rows = label.astype(np.float32, copy=False)
            total += np.float32(share) * (rows if known else softmax(rows, 1.0))


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
