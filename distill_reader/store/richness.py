"""Which form of a label can be made of which other one, so that the richest is kept and no more.

One form covers another when what is made of it is what the teacher would have sent, bit for bit:

- what the model gave covers every form of it;
- float32 covers bfloat16, float16 and top-k at its own temperature, and without a softmax at every
  one;
- every other form covers itself alone: top-5 of a rounded top-20 is not the top-5 of the teacher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...proto.datatypes import Array
from ...proto.form_arrays import encode, kind_by_values, narrow
from ...proto.forms import Form
from .rows import Content, Entry, Layout, Piece, Row

_FLOATS = ("FP16", "FP32", "FP64", "BF16")


def covers(entry: Entry, form: Form | None) -> bool:
    """Whether `form` of its output can be made of what `entry` holds."""
    kept = entry.form
    if kept == form:
        return True
    if form is None or entry.pieces[0].datatype not in _FLOATS:
        return False
    if kept is None:
        return True
    return kept.dtype == "float32" and kept.temperature in (None, form.temperature)


def derived(entry: Entry, arrays: Sequence[Array], form: Form | None) -> dict[str, Array]:
    """The arrays of `form` [n, ...] by the names under which they travel.

    Args:
        entry: one that covers `form`.
        arrays: [n, ...], one for each of its pieces.
        form: the one that is wanted.

    Raises:
        RequestRefused: this output cannot have this form, whoever makes it.
    """
    if entry.form == form or form is None:
        return dict(zip(entry.names, arrays, strict=True))
    if entry.form is not None and entry.form.temperature is not None:
        return narrow(entry.output, arrays[0], form)
    return encode(entry.output, arrays[0], form, kind_by_values(arrays[0], form))


def merged(old: Row, new: Row) -> Row:
    """A row that covers what each of the two covers, and holds nothing twice.

    Both are of one sample. What is there stays as it is: a label does not change because another
    teacher has said it again.
    """
    entries = _entries(old) + _entries(new)
    kept = [
        (entry, data)
        for place, (entry, data) in enumerate(entries)
        if not any(
            other.output == entry.output
            and covers(other, entry.form)
            and (other_place < place or not covers(entry, other.form))
            for other_place, (other, _) in enumerate(entries)
            if other_place != place
        )
    ]
    if [entry for entry, _ in kept] == list(old.layout.entries) and (
        old.layout.whole or not new.layout.whole
    ):
        return old
    whole = next((row.layout for row in (old, new) if row.layout.whole), None)
    order = dict.fromkeys((*(whole.outputs if whole else ()), *(entry.output for entry, _ in kept)))
    kept.sort(key=lambda pair: list(order).index(pair[0].output))
    layout = replace(old.layout, entries=tuple(entry for entry, _ in kept), whole=whole is not None)
    ids = old.data[: sum(piece.nbytes for piece in old.layout.ids)]
    return Row(layout, ids + b"".join(data for _, data in kept), old.makers | new.makers)


def layout_of(
    content: Content,
    outputs: Mapping[str, tuple[Form | None, int | None, Sequence[Array]]],
    ids: Sequence[Array] = (),
    *,
    whole: bool = False,
) -> Layout:
    """The layout of rows with these outputs: each with its form, classes and arrays [n, ...]."""
    entries = tuple(
        Entry(name, form, classes, tuple(map(Piece.of, arrays)))
        for name, (form, classes, arrays) in outputs.items()
    )
    return Layout(content, entries, tuple(map(Piece.of, ids)), whole)


def _entries(row: Row) -> list[tuple[Entry, bytes]]:
    at = sum(piece.nbytes for piece in row.layout.ids)
    found = []
    for entry in row.layout.entries:
        found.append((entry, row.data[at : at + entry.nbytes]))
        at += entry.nbytes
    return found
