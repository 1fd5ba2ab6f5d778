"""Rows of a label store: their keys, their encoding, and which forms of a label cover others.

A key is 16 bytes: a hash of the id of the model and of a sample's inputs, or of the user's ids of
samples with the names, dtypes and shapes of the inputs. The hash is xxh3 with 128 bits. Among a
billion different samples, two collide with a probability below 2e-21. It is not cryptographic:
collisions can be constructed, but only by someone who can write the training data. `edl bench
store` measures the cost of hashing.

A store keeps no form of a label that another stored form covers. Form A covers form B if B, derived
from A, equals what the teacher would have sent, bit for bit:

- the model's own form covers every form if its numbers are floats;
- float32 covers float32, bfloat16, float16 and top-k of the same temperature. Without a temperature
  (no softmax was applied), float32 covers those forms at every temperature;
- any other form covers only itself: the top-5 of a rounded top-20 is not the teacher's top-5.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from ...proto.arena import Array
from ...proto.datatypes import datatype_of, dtype_of
from ...proto.forms import FLOATS, LabelForm, encode, encode_after_softmax

#: Part of every key; changes with the way keys are made.
_VERSION = 1


def keys_of(
    model_id: ModelId,
    arrays: Mapping[str, Array],
    start: int,
    stop: int,
    ids: Sequence[Array] = (),
) -> list[bytes]:
    """Return the keys of the samples [start, stop) of a batch.

    Args:
        model_id: which model made the labels.
        arrays: inputs [n, ...] by name. Their names, dtypes and row shapes are part of the key even
            if `ids` are given, because labels may depend on how a row was padded.
        start: first sample.
        stop: end of the range.
        ids: arrays [n, ...] that identify the samples instead of the bytes of `arrays`.

    Returns:
        16 bytes for each sample.

    Raises:
        WireError: a dtype that cannot be sent to teachers.
    """
    import xxhash

    named = sorted(arrays.items())
    head = [
        _VERSION,
        model_id,
        [[name, *_row_type(array)] for name, array in named],
        [_row_type(array) for array in ids],
        bool(ids),
    ]
    prefix_hasher = xxhash.xxh3_128(json.dumps(head).encode())
    to_hash = [_row_bytes(array, start, stop) for array in (ids or [array for _, array in named])]
    keys = []
    for row in range(stop - start):
        hasher = prefix_hasher.copy()
        for rows in to_hash:
            hasher.update(rows[row])
        keys.append(hasher.digest())
    return keys


def _row_type(array: Array) -> list[object]:
    """Return the datatype and shape of the array's rows; for texts, also the bytes per element."""
    kind: list[object] = [datatype_of(array.dtype), array.shape[1:]]
    return [*kind, array.dtype.itemsize] if array.dtype.kind == "S" else kind


def _row_bytes(array: Array, start: int, stop: int) -> Array:
    """Return the bytes of these rows, uint8 [n, bytes of a row]; no copy if contiguous."""
    width = array.dtype.itemsize * math.prod(array.shape[1:])
    dtype = array.dtype if array.dtype.kind == "S" else dtype_of(datatype_of(array.dtype))
    raw = np.ascontiguousarray(array[start:stop], dtype).reshape(-1).view(np.uint8)
    return raw.reshape(stop - start, width)


class ArraySpec(NamedTuple):
    """One array of a row: its datatype (a name of the Open Inference Protocol) and its shape."""

    datatype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return dtype_of(self.datatype).itemsize * math.prod(self.shape)

    @classmethod
    def of(cls, array: Array) -> Self:
        """Return the spec of each row of `array` [n, ...]."""
        return cls(datatype_of(array.dtype), tuple(array.shape[1:]))


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One output of the model, in one form.

    Attributes:
        output: name of the output.
        form: form of its values; None: the model's own.
        classes: number of classes of the output, for top-k; None for other forms.
        pieces: specs of its arrays, in the order of `LabelForm.parts`.
    """

    output: str
    form: LabelForm | None
    classes: int | None
    pieces: tuple[ArraySpec, ...]

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def class_count(self) -> int | None:
        """Number of classes of the output; None: its rows are scalars."""
        return self.classes or next(iter(self.pieces[0].shape[-1:]), None)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its arrays on the wire."""
        return (self.output,) if self.form is None else self.form.parts(self.output)


class ModelId(NamedTuple):
    """Which model made labels; `numerics_id` is empty unless labels must match to the last bit."""

    content_id: str
    numerics_id: str = ""

    def __str__(self) -> str:
        return f"{self.content_id}/{self.numerics_id}" if self.numerics_id else self.content_id


@dataclass(frozen=True, slots=True)
class ServiceModel:
    """The latest model of a service. A run without teachers needs it to find labels.

    Attributes:
        model_id: which model made the labels.
        inputs: names of the model's inputs, in its order; empty: not published.
    """

    model_id: ModelId
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """The encoding of a row; nearly all rows of a service share one.

    Attributes:
        model_id: which model made the labels.
        entries: one for each stored form of each output; entries of one output are adjacent.
        ids: the user's sample ids, which come first in a row.
        whole: a row has all outputs of the model, in the model's order.
    """

    model_id: ModelId
    entries: tuple[StoredOutput, ...]
    ids: tuple[ArraySpec, ...] = ()
    whole: bool = False

    @cached_property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)

    @cached_property
    def pieces(self) -> tuple[ArraySpec, ...]:
        """All arrays of a row, in the order of its bytes."""
        return (*self.ids, *(piece for entry in self.entries for piece in entry.pieces))

    @cached_property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs, in order."""
        return tuple(dict.fromkeys(entry.output for entry in self.entries))

    @cached_property
    def text(self) -> str:
        """The layout as JSON; the inverse of `from_text`."""
        entries = [
            [
                entry.output,
                None if entry.form is None else [str(entry.form), entry.form.temperature],
                entry.classes,
                entry.pieces,
            ]
            for entry in self.entries
        ]
        return json.dumps([self.model_id, entries, self.ids, self.whole], separators=(",", ":"))

    @classmethod
    @lru_cache(maxsize=4096)
    def from_text(cls, text: str) -> Self:
        model_id, entries, ids, whole = json.loads(text)
        return cls(
            ModelId(*model_id),
            tuple(
                StoredOutput(
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
class LabelRow:
    """The labels of one sample.

    Attributes:
        layout: layout of `data`.
        data: `layout.nbytes` bytes.
        makers: the teachers that made the labels; `==` ignores them.
    """

    layout: Layout
    data: bytes
    makers: frozenset[str] = field(default=frozenset(), compare=False)


def pack(layout: Layout, arrays: Sequence[Array], maker: str = "") -> list[LabelRow]:
    """Make n rows from arrays [n, ...], one array for each of `layout.pieces`, in that order."""
    makers = frozenset([maker] if maker else [])
    count = len(arrays[0])
    packed = np.empty((count, layout.nbytes), np.uint8)
    at = 0
    for piece, array in zip(layout.pieces, arrays, strict=True):
        dtype = dtype_of(piece.datatype)
        raw = np.ascontiguousarray(array, dtype).reshape(-1).view(np.uint8)
        packed[:, at : at + piece.nbytes] = raw.reshape(count, piece.nbytes)
        at += piece.nbytes
    return [LabelRow(layout, row.tobytes(), makers) for row in packed]


def unpack(rows: Sequence[LabelRow]) -> list[Array]:
    """Invert `pack`: return the arrays of rows of one layout."""
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


def _pieces(value: Sequence[Any]) -> tuple[ArraySpec, ...]:
    return tuple(ArraySpec(datatype, tuple(shape)) for datatype, shape in value)


def covers(entry: StoredOutput, form: LabelForm | None) -> bool:
    """Whether `form` of the output can be derived from `entry`; see the module's docstring."""
    stored = entry.form
    if stored == form:
        return True
    if form is None or entry.pieces[0].datatype not in FLOATS:
        return False
    if stored is None:
        return True
    return stored.dtype == "float32" and stored.temperature in (None, form.temperature)


def derived(
    entry: StoredOutput, arrays: Sequence[Array], form: LabelForm | None
) -> dict[str, Array]:
    """Derive `form` from a stored form; return its arrays [n, ...] by their names on the wire.

    Args:
        entry: covers `form`.
        arrays: arrays [n, ...] of `entry`, one for each piece.
        form: the requested form.

    Raises:
        RequestRefused: the output cannot have this form.
    """
    if entry.form == form or form is None:
        return dict(zip(entry.names, arrays, strict=True))
    if entry.form is not None and entry.form.temperature is not None:
        return encode_after_softmax(entry.output, arrays[0], form)
    return encode(entry.output, arrays[0], form)


def merged(old: LabelRow, new: LabelRow) -> LabelRow:
    """Merge two rows of one sample into one that covers both, without redundant forms.

    Of equal forms, the old one is kept.
    """
    # Drop each entry that another entry covers; of two that cover each other, keep the first.
    entries = _entries(old) + _entries(new)
    kept = [
        (entry, data)
        for index, (entry, data) in enumerate(entries)
        if not any(
            other.output == entry.output
            and covers(other, entry.form)
            and (other_index < index or not covers(entry, other.form))
            for other_index, (other, _) in enumerate(entries)
            if other_index != index
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
    return LabelRow(layout, ids + b"".join(data for _, data in kept), old.makers | new.makers)


def layout_of(
    model_id: ModelId,
    outputs: Mapping[str, tuple[LabelForm | None, int | None, Sequence[Array]]],
    *,
    whole: bool = False,
) -> Layout:
    """Return the layout of rows with these outputs: (form, classes, arrays [n, ...]) by name."""
    entries = tuple(
        StoredOutput(name, form, classes, tuple(map(ArraySpec.of, arrays)))
        for name, (form, classes, arrays) in outputs.items()
    )
    return Layout(model_id, entries, whole=whole)


def _entries(row: LabelRow) -> list[tuple[StoredOutput, bytes]]:
    at = sum(piece.nbytes for piece in row.layout.ids)
    entries = []
    for entry in row.layout.entries:
        entries.append((entry, row.data[at : at + entry.nbytes]))
        at += entry.nbytes
    return entries
