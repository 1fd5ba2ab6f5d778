"""Answers as rows of a label store, and rows as an answer, as if a teacher had just sent it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ...errors import RequestRefused
from ...proto.clients import Answer
from ...proto.datatypes import Array
from ...proto.forms import CLASSES, Form, Parameter
from ..label_forms import LabelForms
from ..store.richness import covers, derived, layout_of
from ..store.rows import Content, Layout, Row, pack, unpack
from .answers import Expected, named, soft_labels
from .label_parts import in_form
from .widening import concatenated, joined


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a reader wants of each sample: outputs (empty: all of the model), in these forms."""

    fetches: tuple[str, ...]
    forms: LabelForms

    def names(self, layout: Layout) -> tuple[str, ...] | None:
        """The outputs in their order; None where a row of this layout does not have them all."""
        if not self.fetches and not layout.whole:
            return None
        names = self.fetches or layout.outputs
        forms = {name: self.forms.of(name) for name in names}
        entries = layout.entries
        if all(any(e.output == name and covers(e, forms[name]) for e in entries) for name in names):
            return names
        return None


@dataclass(frozen=True, slots=True)
class Stocked:
    """What a store has for a batch.

    Attributes:
        places: rows of the batch, growing.
        labels: of those rows alone, as the training loop gets them.
    """

    places: tuple[int, ...]
    labels: Mapping[str, Array]

    @property
    def row_nbytes(self) -> int:
        """Bytes of the labels of one row."""
        return sum(label.nbytes for label in self.labels.values()) // max(1, len(self.places))

    def missing(self, rows: int) -> tuple[tuple[int, int], ...]:
        """The spans (start, stop) of a batch of so many rows for which there is nothing."""
        ends = (-1, *self.places, rows)
        return tuple((a + 1, b) for a, b in itertools.pairwise(ends) if a + 1 < b)


NOTHING = Stocked((), {})


def rows_of(answer: Answer, expected: Expected, content: Content, maker: str = "") -> list[Row]:
    """What a store keeps of a checked answer, row by row: outputs as they travel."""
    answer, names = named(answer, expected)
    outputs: dict[str, tuple[Form | None, int | None, list[Array]]] = {}
    for name in names:
        form = expected.forms.of(name)
        arrays, said = in_form(answer, name, form)
        classes = int(said[CLASSES]) if form is not None and form.k else None
        outputs[name] = form, classes, list(arrays.values())
    flat = [array for _, _, arrays in outputs.values() for array in arrays]
    return pack(layout_of(content, outputs, whole=expected.whole), flat, maker)


def stocked(rows: Sequence[Row | None], wanted: Wanted) -> Stocked:
    """The labels that these rows give: of those that have all that is wanted, in one shape.

    Raises:
        EdlError: they are not what labels can be.
    """
    groups: dict[_Shape, list[_Group]] = {}
    for layout, places in _by_layout(rows).items():
        names = wanted.names(layout)
        if names is None:
            continue
        try:
            group = _group([row for place in places if (row := rows[place])], places, names, wanted)
        except RequestRefused:  # no row of this layout can have that form
            continue
        groups.setdefault(group.shape, []).append(group)
    if not groups:
        return NOTHING
    chosen = max(groups.values(), key=lambda some: sum(len(one.places) for one in some))
    places = [place for one in chosen for place in one.places]
    order = sorted(range(len(places)), key=places.__getitem__)
    outputs = {
        part: concatenated([one.outputs[part] for one in chosen])[order]
        for part in chosen[0].outputs
    }
    answer = Answer(outputs, {}, chosen[0].parameters)
    expected = Expected("", 0, "", chosen[0].names, len(places), wanted.forms)
    return Stocked(tuple(sorted(places)), soft_labels(answer, expected))


_SINGLE: Final = np.dtype(np.float32)
_Shape = tuple[tuple[str, str, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows of one layout, as a teacher would have sent them."""

    places: Sequence[int]
    names: tuple[str, ...]
    outputs: Mapping[str, Array]
    parameters: Mapping[str, Mapping[str, Parameter]]

    @property
    def shape(self) -> _Shape:
        """What must be equal for rows to stand in one array: not which floats they are."""
        classes = {name: int(said.get(CLASSES, 0)) for name, said in self.parameters.items()}
        return tuple(
            (
                part,
                "" if joined(array.dtype, _SINGLE) is not None else array.dtype.str,
                array.shape[1:],
                classes.get(part, 0),
            )
            for part, array in self.outputs.items()
        )


def _group(
    rows: Sequence[Row], places: Sequence[int], names: tuple[str, ...], wanted: Wanted
) -> _Group:
    layout, arrays = rows[0].layout, unpack(rows)
    outputs: dict[str, Array] = {}
    parameters: dict[str, Mapping[str, Parameter]] = {}
    at = len(layout.ids)
    own = {}
    for entry in layout.entries:
        own[entry] = arrays[at : at + len(entry.pieces)]
        at += len(entry.pieces)
    for name in names:
        form = wanted.forms.of(name)
        entry = next(e for e in layout.entries if e.output == name and covers(e, form))
        made = derived(entry, own[entry], form)
        if form is not None:
            classes = entry.classes or next(iter(entry.pieces[0].shape[-1:]), None)
            parameters[next(iter(made))] = form.parameters(classes)
        outputs |= made
    return _Group(places, names, outputs, parameters)


def _by_layout(rows: Sequence[Row | None]) -> dict[Layout, list[int]]:
    places: dict[Layout, list[int]] = {}
    for place, row in enumerate(rows):
        if row is not None:
            places.setdefault(row.layout, []).append(place)
    return places
