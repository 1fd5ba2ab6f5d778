"""The records of labels for the trainer: one for each batch, filled as answers arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...errors import BadAnswer
from ...proto.arena import Arena, Array, Record
from ...scheduler.ledger.events import Span
from ..ring import refused
from .answers import joined
from .outcomes import RequestDone, TeacherRequest
from .requests import Batch, Batches

_ALL: Final = slice(None)


class AssembledLabels(NamedTuple):
    """The record of one batch's labels; `names` are those of its arrays."""

    names: tuple[str, ...]
    record: Record


class LabelRecords:
    """The label records of one service in the arena. Used by the engine's thread alone.

    A record is allocated when the first rows of its batch arrive, and each row is copied into it
    once. A record offered to the trainer belongs to the trainer, which frees it, and is not written
    any more. If the trainer is offered mixtures, records stay the engine's until their batches are
    consumed.

    Teachers of one content may send floats of different precision. An output is delivered in the
    widest dtype that it has come in: narrower records are reallocated, so that no row loses a bit
    and no batch is narrower than one before it.

    Args:
        arena: holds the records.
        batches: known batches.
        mixed: the trainer is offered mixtures of these records and others.

    Attributes:
        discards: discarded answers: late, not the first, or of an old model.
        is_mixed: as given.
    """

    def __init__(self, arena: Arena, batches: Batches, *, mixed: bool = False) -> None:
        self.discards = 0
        self.is_mixed = mixed
        self._arena = arena
        self._batches = batches
        self._widest: dict[str, np.dtype[Any]] = {}  # that each label came in
        self._kept: dict[int, AssembledLabels] = {}
        self._offered: dict[int, AssembledLabels] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of labels not offered to the trainer yet."""
        return sum(one.record.nbytes for one in self._kept.values())

    def check(self, done: RequestDone) -> None:
        """Raise BadAnswer if the labels do not fit the other rows of their batches."""
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

    def write(self, done: RequestDone, wanted: Collection[Span]) -> None:
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

    def _is_written_whole(self, done: RequestDone, wanted: Collection[Span]) -> bool:
        """The fast path of `write`: one whole batch without a record, as nearly always."""
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
        """Copy cached labels into the rows `places` of a batch's record."""
        known = self._record_for(batch, labels)
        for label, array in zip(labels.values(), self.arrays(known).values(), strict=True):
            array[list(places)] = label

    def arrays(self, labels: AssembledLabels) -> dict[str, Array]:
        """The labels by name, as they lie in the arena."""
        refs = labels.record.arrays
        return {name: self._arena.get(ref) for name, ref in zip(labels.names, refs, strict=True)}

    def has(self, number: int) -> bool:
        """Whether there are labels of a batch, whole or not."""
        return number in self._kept or number in self._offered

    def offer(self, number: int) -> AssembledLabels | None:
        """The labels of a complete batch, for the trainer; None: it is delivered unlabelled."""
        if (labels := self._kept.pop(number, None)) is not None:
            self._offered[number] = labels
        return self._offered.get(number)

    def take_back(self, number: int, *, whole: bool) -> None:
        """Withdraw the offered labels of a batch: all, or (`whole` is False) those of some rows.

        No effect on a batch that an earlier engine offered.
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
        """Forget a batch that was consumed."""
        labels = self._offered.pop(number, None)
        if labels is not None and self.is_mixed:
            self._arena.free(labels.record.offset)

    def drop(self, number: int) -> None:
        """Free the labels of a batch that was not offered."""
        if (labels := self._kept.pop(number, None)) is not None:
            self._arena.free(labels.record.offset)

    def clear(self) -> None:
        """Free all labels that were not offered."""
        for number in list(self._kept):
            self.drop(number)

    def reset(self) -> None:
        """Forget every batch."""
        self.clear()
        for number in list(self._offered):
            self.let_go(number)

    def _record_for(self, batch: Batch, labels: Mapping[str, Array]) -> AssembledLabels:
        """The record of a batch, wide enough for these labels of some of its rows."""
        dtypes = [self._dtype_of(name, label.dtype) for name, label in labels.items()]
        if (known := self._kept.get(batch.number)) is None:
            known = self._kept[batch.number] = self._allocate(batch, labels, dtypes)
        return known

    def _dtype_of(self, name: str, dtype: np.dtype[Any]) -> np.dtype[Any]:
        """The dtype that a label in this dtype is stored in; widens existing records to it."""
        if (known := self._widest.get(name)) is dtype:  # as nearly always
            return dtype
        wider = dtype if known is None else joined(known, dtype) or dtype
        self._widest[name] = wider
        if known is not None and wider != known:
            for number in list(self._kept):
                self._widen(number)
        return wider

    def _widen(self, number: int) -> None:
        """Reallocate the record of a batch if a dtype is too narrow."""
        narrow = self._kept[number]
        arrays, dtypes = self.arrays(narrow).values(), self._dtypes_for(narrow)
        if any(array.dtype != dtype for array, dtype in zip(arrays, dtypes, strict=True)):
            wider = self._copy(number, narrow)
            self.drop(number)
            self._kept[number] = wider

    def _copy(self, number: int, labels: AssembledLabels) -> AssembledLabels:
        """The same labels in a new record, in the present dtypes."""
        arrays = self.arrays(labels)
        copy = self._allocate(self._batches[number], arrays, self._dtypes_for(labels))
        for array, rows in zip(self.arrays(copy).values(), arrays.values(), strict=True):
            np.copyto(array, rows)
        return copy

    def _dtypes_for(self, labels: AssembledLabels) -> list[np.dtype[Any]]:
        return [
            joined(array.dtype, self._widest[name]) or array.dtype
            for name, array in self.arrays(labels).items()
        ]

    def _allocate(
        self, batch: Batch, labels: Mapping[str, Array], dtypes: Sequence[np.dtype[Any]]
    ) -> AssembledLabels:
        layouts = [
            (dtype, (batch.rows, *label.shape[1:]) if batch.is_even else label.shape)
            for label, dtype in zip(labels.values(), dtypes, strict=True)
        ]
        try:
            return AssembledLabels(tuple(labels), self._arena.allocate(layouts))
        except OSError as error:
            raise refused(self._arena, error) from error

    def _places(self, job: TeacherRequest) -> Iterator[tuple[Span, Batch, slice]]:
        """The spans of known batches, each with its rows of the answer."""
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
    """Whether rows of both fit the same arrays."""
    return [*ours] == [*theirs] and all(
        one.shape[1:] == other.shape[1:] and joined(one.dtype, other.dtype) is not None
        for one, other in zip(ours.values(), theirs.values(), strict=True)
    )


def _shown(labels: Mapping[str, Array]) -> str:
    return ", ".join(
        f"{name} {label.dtype} {list(label.shape[1:])}" for name, label in labels.items()
    )
