"""The thread that reads and writes a label store, and the conversion of rows to labels and back."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ...proto.arena import Array
from ...proto.clients import LabelResponse
from ...proto.datatypes import Parameter
from ...proto.forms import CLASSES, LabelForm
from ...runtime.errors import EdlError, RequestRefused, UsageError
from ..label_forms import LabelForms
from ..store import LabelStore
from ..store.rows import (
    ArraySpec,
    LabelRow,
    Layout,
    ModelId,
    ServiceModel,
    covers,
    derived,
    keys_of,
    layout_of,
    pack,
    unpack,
)
from ..store.store import StoreStats
from .answers import (
    ExpectedResponse,
    checked_labels,
    common_dtype,
    concatenated,
    in_form,
    with_requested_names,
)
from .inbox import Inbox

if TYPE_CHECKING:
    from ..store.store import LabelDatabase

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LabelSelection:
    """The outputs (empty: all outputs of the model) and forms that a reader requests."""

    fetches: tuple[str, ...]
    forms: LabelForms

    def names(self, layout: Layout) -> tuple[str, ...] | None:
        """Return the outputs in order; None if rows of this layout lack an output or its form."""
        if not self.fetches and not layout.whole:
            return None
        names = self.fetches or layout.outputs
        forms = {name: self.forms.of(name) for name in names}
        entries = layout.entries
        if all(any(e.output == name and covers(e, forms[name]) for e in entries) for name in names):
            return names
        return None


@dataclass(frozen=True, slots=True)
class CachedLabels:
    """Labels of a batch from a store.

    Attributes:
        rows: numbers of the labelled rows of the batch, ascending.
        labels: labels of these rows by name, as the training loop gets them.
    """

    rows: tuple[int, ...]
    labels: Mapping[str, Array]

    @property
    def row_nbytes(self) -> int:
        """Bytes of the labels of one row."""
        return sum(label.nbytes for label in self.labels.values()) // max(1, len(self.rows))

    def missing(self, rows: int) -> tuple[tuple[int, int], ...]:
        """Return the spans (start, stop) without labels in a batch of `rows` rows."""
        ends = (-1, *self.rows, rows)
        return tuple((a + 1, b) for a, b in itertools.pairwise(ends) if a + 1 < b)


NO_LABELS = CachedLabels((), {})


def rows_of(
    response: LabelResponse, expected: ExpectedResponse, model_id: ModelId, maker: str = ""
) -> list[LabelRow]:
    """Convert a checked response to rows for a store, with outputs in their wire form."""
    response, names = with_requested_names(response, expected)
    outputs: dict[str, tuple[LabelForm | None, int | None, list[Array]]] = {}
    for name in names:
        form = expected.forms.of(name)
        arrays, parameters = in_form(response, name, form)
        classes = int(parameters[CLASSES]) if form is not None and form.k else None
        outputs[name] = form, classes, list(arrays.values())
    flat = [array for _, _, arrays in outputs.values() for array in arrays]
    return pack(layout_of(model_id, outputs, whole=expected.whole), flat, maker)


def cached_labels(rows: Sequence[LabelRow | None], requested: LabelSelection) -> CachedLabels:
    """Convert stored rows to labels.

    Args:
        rows: stored rows of a batch, in order; None: not stored.
        requested: outputs and forms.

    Returns:
        The labels of the rows that have all requested outputs. If shapes differ, only the labels of
        the largest group of rows with equal shapes.

    Raises:
        EdlError: the labels are invalid.
    """
    groups: dict[_Shape, list[_Group]] = {}
    for layout, numbers in _by_layout(rows).items():
        names = requested.names(layout)
        if names is None:
            continue
        try:
            group = _group([row for n in numbers if (row := rows[n])], numbers, names, requested)
        except RequestRefused:  # these outputs, or some of their values, cannot have the form
            continue
        groups.setdefault(group.shape, []).append(group)
    if not groups:
        return NO_LABELS
    largest = max(groups.values(), key=lambda same: sum(len(group.rows) for group in same))
    numbers = [number for group in largest for number in group.rows]
    order = sorted(range(len(numbers)), key=numbers.__getitem__)
    outputs = {
        part: concatenated([group.outputs[part] for group in largest])[order]
        for part in largest[0].outputs
    }
    response = LabelResponse(outputs, {}, largest[0].parameters)
    expected = ExpectedResponse("", 0, "", largest[0].names, requested.forms)
    return CachedLabels(tuple(sorted(numbers)), checked_labels(response, expected, len(numbers)))


_SINGLE: Final = np.dtype(np.float32)
_Shape = tuple[tuple[str, str, tuple[int, ...], int], ...]


@dataclass(frozen=True, slots=True)
class _Group:
    """The outputs of rows of one layout, as a teacher would send them.

    Attributes:
        rows: numbers of the rows in their batch.
        names: names of the model's outputs.
        outputs: arrays [n, ...] by name on the wire.
        parameters: parameters of the forms, by the name of the first array of an output.
    """

    rows: Sequence[int]
    names: tuple[str, ...]
    outputs: Mapping[str, Array]
    parameters: Mapping[str, Mapping[str, Parameter]]

    @property
    def shape(self) -> _Shape:
        """The properties that rows in one array share; floats may differ in precision."""
        classes = {name: int(form.get(CLASSES, 0)) for name, form in self.parameters.items()}
        return tuple(
            (
                part,
                "" if common_dtype(array.dtype, _SINGLE) is not None else array.dtype.str,
                array.shape[1:],
                classes.get(part, 0),
            )
            for part, array in self.outputs.items()
        )


def _group(
    rows: Sequence[LabelRow],
    numbers: Sequence[int],
    names: tuple[str, ...],
    requested: LabelSelection,
) -> _Group:
    layout, arrays = rows[0].layout, unpack(rows)
    outputs: dict[str, Array] = {}
    parameters: dict[str, Mapping[str, Parameter]] = {}
    at = len(layout.ids)
    stored = {}
    for entry in layout.entries:
        stored[entry] = arrays[at : at + len(entry.pieces)]
        at += len(entry.pieces)
    for name in names:
        form = requested.forms.of(name)
        entry = next(e for e in layout.entries if e.output == name and covers(e, form))
        parts = derived(entry, stored[entry], form)
        if form is not None:
            parameters[next(iter(parts))] = form.parameters(entry.class_count)
        outputs |= parts
    return _Group(numbers, names, outputs, parameters)


def _by_layout(rows: Sequence[LabelRow | None]) -> dict[Layout, list[int]]:
    """Return the numbers of the rows of each layout."""
    numbers: dict[Layout, list[int]] = {}
    for number, row in enumerate(rows):
        if row is not None:
            numbers.setdefault(row.layout, []).append(number)
    return numbers


#: Rows are written once `WRITE_ROWS` of them wait, or the first has waited for `WRITE_AFTER_S`.
WRITE_ROWS = 1024
WRITE_AFTER_S = 0.5
#: Seconds that `LabelCacheThread.close` waits.
CLOSE_TIMEOUT_S = 3.0


@dataclass(frozen=True, slots=True)
class BatchKeys:
    """The keys of the rows of a batch.

    Attributes:
        number: number of the batch.
        model_id: which model made the labels.
        keys: keys of its rows.
        ids: rows that hold only the user's own ids, if any.
    """

    number: int
    model_id: ModelId
    keys: Sequence[bytes]
    ids: Sequence[LabelRow] = ()

    def cut(self, start: int, stop: int) -> BatchKeys:
        """Return the keys of the rows [start, stop)."""
        return replace(self, keys=self.keys[start:stop], ids=self.ids[start:stop])


@dataclass(frozen=True, slots=True)
class Lookup:
    """A command to look up a batch.

    Attributes:
        number: number of the batch.
        rows: its number of rows.
        model_id: which model made the labels.
        inputs: the model's inputs from the batch, by name.
        is_current: returns whether the ring's memory still has the batch; if not, nothing waits for
            the result.
        ids: the user's own ids of its rows, if any.
    """

    number: int
    rows: int
    model_id: ModelId
    inputs: Mapping[str, Array]
    is_current: Callable[[], bool]
    ids: Sequence[Array] = ()


@dataclass(frozen=True, slots=True)
class StoreRows:
    batch: BatchKeys
    rows: Sequence[LabelRow]


@dataclass(frozen=True, slots=True)
class RemoveRows:
    teacher: str


@dataclass(frozen=True, slots=True)
class Flush:
    """A command to write all inserted rows."""


#: None: flush and end.
CacheCommand = Lookup | StoreRows | RemoveRows | ServiceModel | Flush | None


class LabelCacheListener(Protocol):
    """The thread's callbacks, called in the engine's thread."""

    def on_opened(self, remembered: ServiceModel | None) -> None: ...

    def on_failed(self, error: EdlError) -> None: ...

    def on_lookup(self, keys: BatchKeys, cached: CachedLabels) -> None: ...


def keys_of_batch(lookup: Lookup) -> BatchKeys | None:
    """Return the keys of a batch; None if its memory was reused meanwhile."""
    keys = keys_of(lookup.model_id, lookup.inputs, 0, lookup.rows, lookup.ids)
    ids: Sequence[LabelRow] = ()
    if lookup.ids:
        pieces = tuple(map(ArraySpec.of, lookup.ids))
        ids = pack(Layout(lookup.model_id, (), pieces), lookup.ids)
    return BatchKeys(lookup.number, lookup.model_id, keys, ids) if lookup.is_current() else None


class LabelCacheThread:
    """Executes commands in a thread until `close`, and posts results to the engine's inbox.

    Once the store has failed permanently, lookups find nothing and rows are dropped.

    Args:
        settings: settings of the store.
        service: name of the teachers' service.
        requested: outputs and forms.
        inbox: inbox of the engine's thread.
        listener: receives the results.

    Attributes:
        stats: counters of the store; replaced as a whole by the thread.
        disk_bytes: size of the store's files, as of the latest command that left no rows unsaved.
    """

    def __init__(
        self,
        settings: LabelStore,
        service: str,
        requested: LabelSelection,
        inbox: Inbox,
        listener: LabelCacheListener,
    ) -> None:
        self.stats = StoreStats()
        self.disk_bytes = 0
        self._settings = settings
        self._service = service
        self._requested = requested
        self._inbox = inbox
        self._listener = listener
        self._commands: SimpleQueue[CacheCommand] = SimpleQueue()
        self._unsaved: dict[bytes, LabelRow] = {}
        self._thread = threading.Thread(target=self._run, name="edl-store", daemon=True)
        self._thread.start()

    def submit(self, command: Lookup | StoreRows | RemoveRows | ServiceModel) -> None:
        """Queue a command; a `ServiceModel` replaces the model recorded for the service."""
        self._commands.put(command)

    def close(self) -> None:
        """Flush and end; bounded by a few seconds."""
        self._commands.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            log.warning("the label store %s is still being written", self._settings.path)

    def _run(self) -> None:
        try:
            from ..store.store import LabelDatabase  # loads SQLite

            store = LabelDatabase(self._settings)
        except UsageError as error:
            self._inbox.post(self._listener.on_failed, error)
            return
        except Exception as error:  # whatever failed, the engine must not wait for ever
            self._give_up(error)
        else:
            try:
                with store:
                    self._inbox.post(self._listener.on_opened, store.recall(self._service))
                    self._work(store)
                self.stats = store.stats
                return
            except Exception as error:
                self._give_up(error)
        self._inbox.post(self._listener.on_opened, None)  # a second call if the store was open
        self._run_without_store()

    def _work(self, store: LabelDatabase) -> None:
        due = 0.0
        command: CacheCommand = Flush()
        while command is not None:
            command = self._next(due if self._unsaved else inf)
            if not self._unsaved:
                due = time.monotonic() + WRITE_AFTER_S
            try:
                self._execute(store, command)
            except Exception:
                if not isinstance(command, StoreRows):  # rows to store are in `_unsaved` already
                    self._commands.put(command)  # for `_run_without_store`
                raise
            self.stats = store.stats
            if not self._unsaved:
                self.disk_bytes = store.disk_bytes
        self._commands.put(None)  # ends `_run_without_store`, if the store cannot be closed

    def _next(self, due: float) -> CacheCommand:
        """Wait for a command and return it; return `Flush` once rows are due."""
        left_s = due - time.monotonic()
        if left_s <= 0:  # even if commands have arrived
            return Flush()
        try:
            return self._commands.get(timeout=None if left_s == inf else left_s)
        except Empty:
            return Flush()

    def _execute(self, store: LabelDatabase, command: CacheCommand) -> None:
        match command:
            case Lookup():
                self._look_up(store, command)
            case StoreRows(batch, rows):
                self._unsaved |= zip(batch.keys, _with_ids(rows, batch.ids), strict=True)
                if len(self._unsaved) >= WRITE_ROWS:
                    self._write(store)
            case RemoveRows(teacher):
                self._write(store)
                store.disown(teacher)
            case ServiceModel():
                store.remember(self._service, command)
            case Flush() | None:
                self._write(store)

    def _write(self, store: LabelDatabase) -> None:
        store.put_many(list(self._unsaved), list(self._unsaved.values()))
        self._unsaved.clear()

    def _give_up(self, error: Exception) -> None:
        log.warning(
            "training goes on without its label store %s: %s",
            self._settings.path,
            error,
            exc_info=None if isinstance(error, EdlError) else error,
        )
        self.stats = replace(self.stats.plus(dropped=len(self._unsaved)), trouble=str(error))
        self._unsaved.clear()

    def _look_up(self, store: LabelDatabase, lookup: Lookup) -> None:
        batch, cached = BatchKeys(lookup.number, lookup.model_id, ()), NO_LABELS
        try:
            keys = keys_of_batch(lookup)
            if keys is None:
                return
            if not self._unsaved.keys().isdisjoint(keys.keys):
                self._write(store)
            batch, cached = keys, cached_labels(store.get_many(keys.keys), self._requested)
            self.stats = store.stats  # before the engine's thread gets the labels
        except EdlError as error:  # the batch cannot be sent to teachers, or labels are invalid
            log.warning("rows of the label store are not used: %s", error)
        self._inbox.post(self._listener.on_lookup, batch, cached)

    def _run_without_store(self) -> None:
        """Answer lookups without labels, and drop rows."""
        while (command := self._commands.get()) is not None:
            match command:
                case Lookup(number, rows, model_id):  # new labels will not be stored either
                    self.stats = self.stats.plus(misses=rows, dropped=rows)
                    batch = BatchKeys(number, model_id, ())
                    self._inbox.post(self._listener.on_lookup, batch, NO_LABELS)
                case StoreRows(_, inserted):  # of a batch that was not looked up since the failure
                    self.stats = self.stats.plus(dropped=len(inserted))


def _with_ids(rows: Sequence[LabelRow], ids: Sequence[LabelRow]) -> Sequence[LabelRow]:
    if not ids:
        return rows
    return [
        LabelRow(_layout_with_ids(row.layout, id_.layout.ids), id_.data + row.data, row.makers)
        for row, id_ in zip(rows, ids, strict=True)
    ]


@lru_cache(maxsize=256)
def _layout_with_ids(layout: Layout, ids: tuple[ArraySpec, ...]) -> Layout:
    return replace(layout, ids=ids)
