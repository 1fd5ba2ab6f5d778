"""Labels on their way to the trainer: one record for each batch, filled as answers come."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import BadAnswer
from ...proto.arena import Arena, Array, Record
from ...scheduler.ledger.instructions import Span
from ..ring import refused
from .answers import joined
from .outcomes import Done, Job
from .requests import Batch, Batches

_ALL: Final = slice(None)


class Assembled(NamedTuple):
    """The record of one batch's labels; `names` are those of its arrays."""

    names: tuple[str, ...]
    record: Record


class Labels:
    """The engine's side of the label arena, for one service. Used by the engine's thread alone.

    A record is made when the first rows of its batch come, and each row is copied into it once. The
    trainer, once it has been offered a record, is its owner: it says when the memory is free, and
    nothing is written there any more. Where it is offered mixtures, records stay the engine's until
    their batches are consumed.

    Teachers of one content may answer floats of unlike precision: the richest form wins. An output
    is handed over in the widest dtype that it has come in by then: records in a narrower one are
    made anew, so that no row loses a bit and no batch is narrower than one before it.

    Args:
        arena: where the records lie.
        batches: that they are labels of.
        mixed: the trainer is offered mixtures of these records and others.

    Attributes:
        discards: answers whose labels nobody wanted: late, not the first, or of an old model.
        is_mixed: as given.
    """

    def __init__(self, arena: Arena, batches: Batches, *, mixed: bool = False) -> None:
        self.discards = 0
        self.is_mixed = mixed
        self._arena = arena
        self._batches = batches
        self._widest: dict[str, np.dtype[Any]] = {}  # that each label came in
        self._kept: dict[int, Assembled] = {}
        self._offered: dict[int, Assembled] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of labels that were not offered to the trainer."""
        return sum(one.record.nbytes for one in self._kept.values())

    def check(self, done: Done) -> None:
        """Raise BadAnswer where the labels cannot stand in one array with those that are here."""
        if not self._kept:  # as mostly where batches are not cut
            return
        for span, batch, rows in self._places(done.job):
            if (known := self._kept.get(span.batch)) is None or (batch.is_all_of(span)):
                continue
            there, here = self.arrays(known), _rows(done.labels, rows)
            if not _can_join(there, here):
                raise BadAnswer(
                    f"its labels are {_shown(here)}, those of other rows of the batch"
                    f" {_shown(there)}"
                )

    def write(self, done: Done, wanted: Collection[Span]) -> None:
        """Copy the labels of the spans that are `wanted` into their batches' records."""
        if self._is_written_whole(done, wanted):
            return
        for span, batch, rows in self._places(done.job):
            if span not in wanted:
                continue
            here = _rows(done.labels, rows)
            if batch.is_all_of(span):  # whatever was there is void
                self.drop(span.batch)
            known = self._record_for(batch, here)
            for label, ref in zip(here.values(), known.record.arrays, strict=True):
                array = self._arena.get(ref)
                np.copyto(array[span.start : span.stop] if batch.is_even else array, label)

    def _is_written_whole(self, done: Done, wanted: Collection[Span]) -> bool:
        """As `write`, where it is one whole batch, and nothing of it is here: as nearly always."""
        span, *others = done.job.spans
        batch = self._batches.get(span.batch)
        if others or batch is None or span not in wanted or span.batch in self._kept:
            return False
        if not batch.is_all_of(span):
            return False
        labels = done.labels
        record = self._record_for(batch, labels).record
        for label, ref in zip(labels.values(), record.arrays, strict=True):
            np.copyto(self._arena.get(ref), label)
        return True

    def fill(self, batch: Batch, places: Sequence[int], labels: Mapping[str, Array]) -> None:
        """Copy labels that were kept into the rows `places` of a batch's record."""
        known = self._record_for(batch, labels)
        for label, array in zip(labels.values(), self.arrays(known).values(), strict=True):
            array[list(places)] = label

    def arrays(self, labels: Assembled) -> dict[str, Array]:
        """The labels by name, as they lie in the arena."""
        refs = labels.record.arrays
        return {name: self._arena.get(ref) for name, ref in zip(labels.names, refs, strict=True)}

    def has(self, number: int) -> bool:
        """Whether there are labels of a batch, whole or not."""
        return number in self._kept or number in self._offered

    def offer(self, number: int) -> Assembled | None:
        """The labels of a batch that is whole, for the trainer; None: it goes without."""
        if (labels := self._kept.pop(number, None)) is not None:
            self._offered[number] = labels
        return self._offered.get(number)

    def take_back(self, number: int, *, whole: bool) -> None:
        """All labels of a batch are void, or (`whole` is False) those of some rows.

        Of one that an engine before this one has offered there is nothing here.
        """
        if (labels := self._offered.pop(number, None)) is not None:
            if self.is_mixed:
                self._kept[number] = labels
                self._widen(number)
            elif not whole:
                self._kept[number] = self._copy(number, labels)
        if whole:
            self.drop(number)

    def let_go(self, number: int) -> None:
        """A batch is consumed."""
        labels = self._offered.pop(number, None)
        if labels is not None and self.is_mixed:
            self._arena.free(labels.record.offset)

    def drop(self, number: int) -> None:
        """What there is of a batch's labels is void."""
        if (labels := self._kept.pop(number, None)) is not None:
            self._arena.free(labels.record.offset)

    def clear(self) -> None:
        """All labels that were not offered are void."""
        for number in list(self._kept):
            self.drop(number)

    def reset(self) -> None:
        """Every batch is forgotten."""
        self.clear()
        for number in list(self._offered):
            self.let_go(number)

    def _record_for(self, batch: Batch, labels: Mapping[str, Array]) -> Assembled:
        """The record of a batch, in which these labels of some of its rows have room."""
        dtypes = [self._dtype_of(name, label.dtype) for name, label in labels.items()]
        if (known := self._kept.get(batch.number)) is None:
            known = self._kept[batch.number] = self._allocate(batch, labels, dtypes)
        return known

    def _dtype_of(self, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """In which dtype a label is kept that came in this one; so are all that are here, then."""
        if (known := self._widest.get(name)) is dtype:  # as nearly always
            return dtype
        wider = dtype if known is None else joined(known, dtype) or dtype
        self._widest[name] = wider
        if known is not None and wider != known:
            for number in list(self._kept):
                self._widen(number)
        return wider

    def _widen(self, number: int) -> None:
        """Make the record of a batch anew where it is narrower than what labels are kept in."""
        narrow = self._kept[number]
        arrays, dtypes = self.arrays(narrow).values(), self._dtypes_for(narrow)
        if any(array.dtype != dtype for array, dtype in zip(arrays, dtypes, strict=True)):
            wider = self._copy(number, narrow)
            self.drop(number)
            self._kept[number] = wider

    def _copy(self, number: int, labels: Assembled) -> Assembled:
        """The same labels in a new record, in the dtypes that labels are kept in."""
        arrays = self.arrays(labels)
        copy = self._allocate(self._batches[number], arrays, self._dtypes_for(labels))
        for array, rows in zip(self.arrays(copy).values(), arrays.values(), strict=True):
            np.copyto(array, rows)
        return copy

    def _dtypes_for(self, labels: Assembled) -> list[np.dtype[Any]]:
        return [
            joined(array.dtype, self._widest[name]) or array.dtype
            for name, array in self.arrays(labels).items()
        ]

    def _allocate(
        self, batch: Batch, labels: Mapping[str, Array], dtypes: Sequence[np.dtype[Any]]
    ) -> Assembled:
        layouts = [
            (dtype, (batch.rows, *label.shape[1:]) if batch.is_even else label.shape)
            for label, dtype in zip(labels.values(), dtypes, strict=True)
        ]
        try:
            return Assembled(tuple(labels), self._arena.allocate(layouts))
        except OSError as error:
            raise refused(self._arena, error) from error

    def _places(self, job: Job) -> Iterator[tuple[Span, Batch, slice]]:
        """The spans of batches that are still known, and which rows of the answer are theirs."""
        at = 0
        for span in job.spans:
            if (batch := self._batches.get(span.batch)) is not None:
                whole = len(job.spans) == 1 or not batch.is_even
                yield span, batch, _ALL if whole else slice(at, at + span.rows)
            at += span.rows


def _rows(labels: Mapping[str, Array], rows: slice) -> Mapping[str, Array]:
    if rows is _ALL:
        return labels
    return {name: label[rows] for name, label in labels.items()}


def _can_join(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    """Whether rows of both can stand in the same arrays."""
    return [*ours] == [*theirs] and all(
        one.shape[1:] == other.shape[1:] and joined(one.dtype, other.dtype) is not None
        for one, other in zip(ours.values(), theirs.values(), strict=True)
    )


def _shown(labels: Mapping[str, Array]) -> str:
    return ", ".join(
        f"{name} {label.dtype} {list(label.shape[1:])}" for name, label in labels.items()
    )
