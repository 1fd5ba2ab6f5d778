"""The inputs of one request, out of the batches that its rows lie in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...proto.arena import Array
from ...proto.lent_arena import Lent, LentArena
from ...proto.places import GENERATION_BYTES
from ...proto.stacked import Input, Stacked, pieces_of
from ...scheduler.ledger.instructions import Span
from ..config import FieldKey
from .batches import Batch
from .feeding import model_inputs

#: How the names of dtypes begin whose arrays do not travel, nor are read, as they lie.
_BIG_ENDIAN: Final = ">"


class Cut(NamedTuple):
    """What a teacher is sent.

    Attributes:
        inputs: by the inputs of its model: views of the ring's memory, no copy.
        lent: where they lie, if each lies in one piece that may be read there; else empty.
        stamps: of the arrays that they are views of: where each lies, and its generation.
    """

    inputs: dict[str, Input]
    lent: dict[str, Lent]
    stamps: tuple[tuple[int, int], ...]


class Cutter:
    """Cuts requests out of the batches of a reader. Used by the engine's thread alone.

    Args:
        batches: all that may be named, by number.
        ring: where they lie.
        feeds: which field goes to which input; see `feeding.model_inputs`.
    """

    def __init__(
        self,
        batches: Mapping[int, Batch],
        ring: LentArena,
        feeds: Sequence[tuple[str | None, FieldKey]],
    ) -> None:
        self._batches = batches
        self._ring = ring
        self._feeds = feeds
        self._fed: dict[tuple[object, ...], Mapping[str, FieldKey]] = {}

    def cut(self, spans: Sequence[Span], inputs: tuple[str, ...]) -> Cut:
        """The inputs of one request.

        Args:
            spans: the rows that are to be labelled, of batches of one kind.
            inputs: names of the model's inputs.

        Raises:
            UsageError: what the model takes is not in the batch.
        """
        if len(spans) == 1:
            return self._in_one_piece(spans[0], inputs)
        pieces: dict[str, list[Array]] = {}
        stamps: list[tuple[int, int]] = []
        for span in spans:
            cut = self._in_one_piece(span, inputs)
            stamps += cut.stamps
            for name, value in cut.inputs.items():
                pieces.setdefault(name, []).extend(pieces_of(value))
        stacked: dict[str, Input] = {name: Stacked(tuple(each)) for name, each in pieces.items()}
        return Cut(stacked, {}, tuple(stamps))

    def _in_one_piece(self, span: Span, inputs: tuple[str, ...]) -> Cut:
        number, start, stop = span
        batch, ring = self._batches[number], self._ring
        whole = batch.is_all_of(span)
        found, lent = dict[str, Input](), dict[str, Lent]()
        stamps = []
        for name, key in self._fed_with(batch, inputs).items():
            ref = batch.fields[key]
            array = ring.get(ref)
            offset = ref.offset
            if not whole:
                offset += start * array.nbytes // max(len(array), 1)
                array = array[start:stop]
            found[name] = array
            stamp = ring.generation(ref)
            stamps.append((ref.offset, stamp))
            if array.nbytes and ref.dtype[0] != _BIG_ENDIAN and stamp:
                lent[name] = Lent(offset, stamp, ref.offset - GENERATION_BYTES)
        return Cut(found, lent if len(lent) == len(found) else {}, tuple(stamps))

    def _fed_with(self, batch: Batch, inputs: tuple[str, ...]) -> Mapping[str, FieldKey]:
        """By which field each input is fed, of batches that have these."""
        kind = (inputs, *batch.fields)
        if (fed := self._fed.get(kind)) is None:
            fields = {key: key for key in batch.fields}
            fed = self._fed[kind] = model_inputs(fields, inputs, self._feeds)
        return fed


def own_copies(inputs: Mapping[str, Input]) -> dict[str, Input]:
    """The same in memory of their own, which nobody writes over."""
    return {name: _own(pieces_of(value)) for name, value in inputs.items()}


def _own(pieces: tuple[Array, ...]) -> Array:
    return np.concatenate(pieces) if len(pieces) > 1 else pieces[0].copy()


def samples_of(inputs: Iterable[Input]) -> int:
    """The first dimension of the first input that has any; 1 where none has."""
    return next((value.shape[0] for value in inputs if value.ndim), 1)
