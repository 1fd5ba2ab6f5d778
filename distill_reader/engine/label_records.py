"""The records of labels in shared memory: one for each batch, filled as responses arrive."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from ...proto.arena import Arena, Array, Record
from ...runtime.errors import BadAnswer
from ...scheduler.ledger.events import Span
from ..ring import memory_refused
from .answers import common_dtype
from .requests import BatchMetadata, KnownBatches
from .teacher_requests import RequestDone, TeacherRequest

_ALL: Final = slice(None)


class AssembledLabels(NamedTuple):
    """The record of one batch's labels, and the names of its arrays."""

    names: tuple[str, ...]
    record: Record


class LabelRecords:
    """The label records of one service in the arena. For the engine's thread.

    A record is allocated when the first rows of its batch arrive. Once a record is offered to the
    trainer, the engine writes it no more, and frees it when the trainer says so. If the trainer
    gets averages of several services instead, the engine keeps the records of a batch until the
    batch is taken.

    Teachers of one content may send floats of different precision. Each output is delivered in the
    widest dtype that was received so far: narrower records are reallocated, so that no row loses a
    bit, and no batch is narrower than an earlier one.

    Args:
        arena: holds the records.
        batches: known batches by number.
        mixed: the trainer gets averages of these labels and those of other services instead.

    Attributes:
        discarded_responses: number of responses that were not used; see the instruction `Discard`.
        is_mixed: the argument `mixed`.
    """

    def __init__(self, arena: Arena, batches: KnownBatches, *, mixed: bool = False) -> None:
        self.discarded_responses = 0
        self.is_mixed = mixed
        self._arena = arena
        self._batches = batches
        self._widest: dict[str, np.dtype[Any]] = {}  # widest dtype of each label so far
        self._kept: dict[int, AssembledLabels] = {}
        self._offered: dict[int, AssembledLabels] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of the labels that were not offered to the trainer yet."""
        return sum(labels.record.nbytes for labels in self._kept.values())

    def check(self, done: RequestDone) -> None:
        """Raise BadAnswer if the labels cannot be joined with those of other rows of a batch."""
        if not self._kept:  # the usual case if batches are not split
            return
        for span, batch, rows in self._parts(done.request):
            if (kept := self._kept.get(span.batch)) is None or batch.is_all_of(span):
                continue
            earlier, new = self.arrays(kept), _rows(done.labels, rows)
            if not _can_join(earlier, new):
                raise BadAnswer(
                    f"its labels are {_shown(new)}, those of other rows of the batch are"
                    f" {_shown(earlier)}"
                )

    def write(self, done: RequestDone, wanted: Collection[Span]) -> None:
        """Copy the labels of the spans `wanted` into their batches' records."""
        spans = done.request.spans
        if len(spans) == 1 and (batch := self._batches.get(spans[0].batch)) is not None:
            if spans[0] in wanted:  # the usual case
                self._write_span(spans[0], batch, done.labels)
            return
        for span, batch, rows in self._parts(done.request):
            if span in wanted:
                self._write_span(span, batch, _rows(done.labels, rows))

    def _write_span(self, span: Span, batch: BatchMetadata, labels: Mapping[str, Array]) -> None:
        whole = batch.is_all_of(span)
        if whole and span.batch in self._kept:  # these labels replace all earlier ones
            self.drop(span.batch)
        record = self._record_for(batch, labels).record
        for label, ref in zip(labels.values(), record.arrays, strict=True):
            array = self._arena.get(ref)
            np.copyto(array if whole else array[span.start : span.stop], label)

    def fill(self, batch: BatchMetadata, rows: Sequence[int], labels: Mapping[str, Array]) -> None:
        """Copy cached labels of the given rows into a batch's record."""
        kept = self._record_for(batch, labels)
        for label, array in zip(labels.values(), self.arrays(kept).values(), strict=True):
            array[list(rows)] = label

    def arrays(self, labels: AssembledLabels) -> dict[str, Array]:
        """Return the labels by name, as views of the arena."""
        refs = labels.record.arrays
        return {name: self._arena.get(ref) for name, ref in zip(labels.names, refs, strict=True)}

    def offer(self, number: int) -> AssembledLabels | None:
        """Mark the labels of a complete batch as offered, and return them; None: it has none."""
        if (labels := self._kept.pop(number, None)) is not None:
            self._offered[number] = labels
        return self._offered.get(number)

    def withdraw(self, number: int, *, whole: bool) -> None:
        """Withdraw offered labels. No effect on a batch that an earlier engine offered.

        Args:
            number: number of the batch.
            whole: drop the labels; False: keep them, because only some rows will be overwritten.
        """
        if (labels := self._offered.pop(number, None)) is not None:
            if self.is_mixed:
                self._kept[number] = labels
                self._widen(number)
            elif not whole:
                self._kept[number] = self._copy(number, labels)
        if whole:
            self.drop(number)

    def forget(self, number: int) -> None:
        """Forget an offered batch that was taken or is no longer needed."""
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
            self.forget(number)

    def _record_for(self, batch: BatchMetadata, labels: Mapping[str, Array]) -> AssembledLabels:
        """Return the record of a batch, wide enough for these labels of some of its rows."""
        for name, label in labels.items():
            if self._widest.get(name) is not label.dtype:
                self._learn_dtype(name, label.dtype)
        if (kept := self._kept.get(batch.number)) is None:
            kept = self._kept[batch.number] = self._allocate(batch, labels)
        return kept

    def _learn_dtype(self, name: str, dtype: np.dtype[Any]) -> None:
        """Widen the dtype of a label, and the existing records, if values of `dtype` need it."""
        widest = self._widest.get(name)
        wider = dtype if widest is None else common_dtype(widest, dtype) or dtype
        self._widest[name] = wider
        if widest is not None and wider != widest:
            for number in list(self._kept):
                self._widen(number)

    def _widen(self, number: int) -> None:
        """Reallocate the record of a batch if a dtype is too narrow."""
        narrow = self._kept[number]
        if any(a.dtype != self._wide(name, a) for name, a in self.arrays(narrow).items()):
            wider = self._copy(number, narrow)
            self.drop(number)
            self._kept[number] = wider

    def _copy(self, number: int, labels: AssembledLabels) -> AssembledLabels:
        """Copy labels to a new record, in the widest dtypes."""
        arrays = self.arrays(labels)
        copy = self._allocate(self._batches[number], arrays)
        for array, rows in zip(self.arrays(copy).values(), arrays.values(), strict=True):
            np.copyto(array, rows)
        return copy

    def _wide(self, name: str, label: Array) -> np.dtype[Any]:
        """Return the dtype that a label is stored in."""
        return common_dtype(label.dtype, self._widest[name]) or label.dtype

    def _allocate(self, batch: BatchMetadata, labels: Mapping[str, Array]) -> AssembledLabels:
        layouts = []
        for name, label in labels.items():
            shape = (batch.rows, *label.shape[1:]) if batch.can_split else label.shape
            layouts.append((self._wide(name, label), shape))
        try:
            return AssembledLabels(tuple(labels), self._arena.allocate(layouts))
        except OSError as error:
            raise memory_refused(self._arena, error) from error

    def _parts(self, request: TeacherRequest) -> Iterator[tuple[Span, BatchMetadata, slice]]:
        """Yield the spans of known batches, each with its rows of the response."""
        at = 0
        for span in request.spans:
            if (batch := self._batches.get(span.batch)) is not None:
                whole = len(request.spans) == 1 or not batch.can_split
                yield span, batch, _ALL if whole else slice(at, at + span.rows)
            at += span.rows


def _rows(labels: Mapping[str, Array], rows: slice) -> Mapping[str, Array]:
    if rows is _ALL:
        return labels
    return {name: label[rows] for name, label in labels.items()}


def _can_join(ours: Mapping[str, Array], theirs: Mapping[str, Array]) -> bool:
    """Whether rows of both fit into the same arrays."""
    return [*ours] == [*theirs] and all(
        one.shape[1:] == other.shape[1:] and common_dtype(one.dtype, other.dtype) is not None
        for one, other in zip(ours.values(), theirs.values(), strict=True)
    )


def _shown(labels: Mapping[str, Array]) -> str:
    return ", ".join(
        f"{name} {label.dtype} {list(label.shape[1:])}" for name, label in labels.items()
    )
