"""Rows of a label store: their keys, their form on the disk, and which of two forms is richer.

A key is 16 bytes: a hash of what a teacher gets to see of a sample, and of its model.

xxh3 of 128 bits is no cryptographic hash: it tells apart samples that happen to differ (among a
billion, two agree with a probability of 2e-21), not such as somebody has made to be taken for each
other. Whoever can do that writes the training data anyway. `edl bench store` says what it costs.

Of several forms of a label the richest is kept, and none that can be made of it. One form covers
another when what is made of it is what the teacher would have sent, bit for bit:

- what the model gave covers every form of it;
- float32 covers bfloat16, float16 and top-k at its own temperature, and without a softmax at every
  one;
- every other form covers itself alone: top-5 of a rounded top-20 is not the top-5 of the teacher.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from ...proto.datatypes import Array, datatype_of, dtype_of
from ...proto.forms import FLOATS, LabelForm, encode, narrow

#: A part of every key: another way to make them is another version.
_VERSION = 1


def keys_of(
    content: Content,
    arrays: Mapping[str, Array],
    start: int,
    stop: int,
    ids: Sequence[Array] = (),
) -> list[bytes]:
    """The keys of the samples [start, stop) of a batch.

    Args:
        content: whose labels these are.
        arrays: what the teacher gets, by the model's inputs, [n, ...]. Names, dtypes and shapes of
            rows count whatever `ids` are: what a model says may depend on how far a row is padded.
        start: first sample.
        stop: behind the last one.
        ids: arrays [n, ...] that say which sample it is, in place of the bytes of `arrays`.

    Returns:
        16 bytes for each.

    Raises:
        WireError: an array of a dtype that no teacher can be sent.
    """
    import xxhash

    named = sorted(arrays.items())
    head = [
        _VERSION,
        content,
        [[name, *_kind(array)] for name, array in named],
        [_kind(array) for array in ids],
        bool(ids),
    ]
    begun = xxhash.xxh3_128(json.dumps(head).encode())
    counted = [_rows(array, start, stop) for array in (ids or [array for _, array in named])]
    keys = []
    for row in range(stop - start):
        hasher = begun.copy()
        for rows in counted:
            hasher.update(rows[row])
        keys.append(hasher.digest())
    return keys


def _kind(array: Array) -> list[object]:
    """What all its rows have in common: datatype and shape; of texts, the bytes of one, too."""
    kind: list[object] = [datatype_of(array.dtype), array.shape[1:]]
    return [*kind, array.dtype.itemsize] if array.dtype.kind == "S" else kind


def _rows(array: Array, start: int, stop: int) -> Array:
    """The bytes of these rows, uint8 [n, bytes of a row]; no copy where they lie together."""
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    dtype = array.dtype if array.dtype.kind == "S" else dtype_of(datatype_of(array.dtype))
    raw = np.ascontiguousarray(array[start:stop], dtype).reshape(-1).view(np.uint8)
    return raw.reshape(stop - start, width)


class Piece(NamedTuple):
    """One array of a row: its datatype, as the Open Inference Protocol calls it, and its shape."""

    datatype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return dtype_of(self.datatype).itemsize * math.prod(self.shape)

    @classmethod
    def of(cls, array: Array) -> Self:
        """That of each row of `array` [n, ...]."""
        return cls(datatype_of(array.dtype), tuple(array.shape[1:]))


@dataclass(frozen=True, slots=True)
class Entry:
    """One output of the model, in one form.

    Attributes:
        output: its name.
        form: None: as the model gave it.
        classes: of `topk`, how many the output has; None for other forms.
        pieces: its arrays, in the order of `LabelForm.parts`.
    """

    output: str
    form: LabelForm | None
    classes: int | None
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def names(self) -> tuple[str, ...]:
        """Of its arrays, as they travel."""
        return (self.output,) if self.form is None else self.form.parts(self.output)


class Content(NamedTuple):
    """Whose labels: the model, and what makes its bits where those have to be equal."""

    content_id: str
    numerics_id: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """The model that was last seen at work for a service: what a run without teachers must know.

    Attributes:
        content: whose labels.
        inputs: names of its inputs, in its order; empty where its server named none.
    """

    content: Content
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """What the bytes of a row are; the same for nearly all rows of a service.

    Attributes:
        content: whose labels these are.
        ids: what says which sample it is, where the user's fields do; before all else.
        entries: those of one output stand together.
        whole: every output of the model is there, in the model's order.
    """

    content: Content
    entries: tuple[Entry, ...]
    ids: tuple[Piece, ...] = ()
    whole: bool = False

    @cached_property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """All arrays of a row, in the order of its bytes."""
        return (*self.ids, *(piece for entry in self.entries for piece in entry.pieces))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(dict.fromkeys(entry.output for entry in self.entries))

    @cached_property
    def text(self) -> str:
        """All of it; `from_text` reads it."""
        entries = [
            [
                entry.output,
                None if entry.form is None else [str(entry.form), entry.form.temperature],
                entry.classes,
                entry.pieces,
            ]
            for entry in self.entries
        ]
        return json.dumps([self.content, entries, self.ids, self.whole], separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=4096)
    def from_text(cls, text: str) -> Self:
        content, entries, ids, whole = json.loads(text)
        return cls(
            Content(*content),
            tuple(
                Entry(
                    output,
                    None if form is None else LabelForm.parse(*form),
                    classes,
                    _pieces(pieces),
                )
                for output, form, classes, pieces in entries
            ),
            _pieces(ids),
            whole,
        )


@dataclass(frozen=True, slots=True)
class Row:
    """The labels of one sample.

    Attributes:
        layout: what `data` holds.
        data: `layout.nbytes` bytes.
        makers: the teachers that it comes from; they do not make it another row.
    """

    layout: Layout
    data: bytes
    makers: frozenset[str] = field(default=frozenset(), compare=False)


def pack(layout: Layout, arrays: Sequence[Array], maker: str = "") -> list[Row]:
    """Rows of arrays [n, ...], one for each piece of the layout, in its order."""
    makers = frozenset([maker] if maker else [])
    count = len(arrays[0])
    packed = np.empty((count, layout.nbytes), np.uint8)
    at = 0
    for piece, array in zip(layout.pieces, arrays, strict=True):
        dtype = dtype_of(piece.datatype)
        raw = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
        packed[:, at : at + piece.nbytes] = raw.reshape(count, piece.nbytes)
        at += piece.nbytes
    return [Row(layout, row.tobytes(), makers) for row in packed]


def unpack(rows: Sequence[Row]) -> list[Array]:
    """The arrays [n, ...] of rows of one layout, one for each piece."""
    layout = rows[0].layout
    raw = np.frombuffer(b"".join(row.data for row in rows), np.uint8)
    packed = raw.reshape(len(rows), layout.nbytes)
    arrays: list[Array] = []
    at = 0
    for piece in layout.pieces:
        part = np.ascontiguousarray(packed[:, at : at + piece.nbytes]).reshape(-1)
        arrays.append(part.view(dtype_of(piece.datatype)).reshape(len(rows), *piece.shape))
        at += piece.nbytes
    return arrays


def _pieces(value: Sequence[Any]) -> tuple[Piece, ...]:
    return tuple(Piece(datatype, tuple(shape)) for datatype, shape in value)


def covers(entry: Entry, form: LabelForm | None) -> bool:
    """Whether `form` of its output can be made of what `entry` holds."""
    kept = entry.form
    if kept == form:
        return True
    if form is None or entry.pieces[0].datatype not in FLOATS:
        return False
    if kept is None:
        return True
    return kept.dtype == "float32" and kept.temperature in (None, form.temperature)


def derived(entry: Entry, arrays: Sequence[Array], form: LabelForm | None) -> dict[str, Array]:
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
    return encode(entry.output, arrays[0], form)


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
    outputs: Mapping[str, tuple[LabelForm | None, int | None, Sequence[Array]]],
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
