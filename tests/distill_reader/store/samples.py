"""Samples with labels that follow from them, for tests of the store."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import numpy as np

from edl.distill_reader.store.rows import LabelRow, ModelId, keys_of, layout_of, pack
from edl.proto.arena import Array
from edl.proto.forms import LabelForm, encode

CONTENT = ModelId("content-1")
CLASSES = 50


def inputs_of(numbers: Sequence[int]) -> Array:
    """float32 [n, 4], each row another."""
    return np.outer(np.asarray(numbers, np.float32) + 1, np.full(4, 0.25, np.float32))


def logits_of(x: Array) -> Array:
    """float32 [n, CLASSES], which follow from the rows of `x`."""
    steps = np.sin(np.arange(CLASSES, dtype=np.float64) * 0.37)
    return np.outer(x.astype(np.float64).sum(axis=1), steps).astype(np.float32)


def sample_keys(numbers: Sequence[int], model_id: ModelId = CONTENT) -> list[bytes]:
    return keys_of(model_id, {"x": inputs_of(numbers)}, 0, len(numbers))


def rows_in(
    form: LabelForm | None, numbers: Sequence[int], *, output: str = "logits"
) -> list[LabelRow]:
    """Rows of these samples in a form."""
    logits = logits_of(inputs_of(numbers))
    arrays = [logits] if form is None else list(encode(output, logits, form).values())
    classes = CLASSES if form is not None and form.k else None
    layout = layout_of(CONTENT, {output: (form, classes, arrays)}, whole=True)
    return pack(layout, arrays)


def damage(path: str, statement: str) -> None:
    """Change a store behind its back."""
    with sqlite3.connect(path) as connection:
        connection.execute(statement)
    connection.close()
