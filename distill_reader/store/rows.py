"""One sample's soft labels as bytes: what lies where in them, and arrays put in and read again."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Self

import numpy as np

from ...proto.datatypes import Array, datatype_of, dtype_of
from ...proto.forms import Form


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
        pieces: its arrays, in the order of `Form.parts`.
    """

    output: str
    form: Form | None
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
                Entry(output, None if form is None else Form.parse(*form), classes, _pieces(pieces))
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
