"""Rows of a label store as a batch needs them, and the thread that reads and writes the store."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from ...errors import EdlError, RequestRefused, UsageError
from ...proto.arena import Array
from ...proto.clients import Answer
from ...proto.forms import CLASSES, Form
from ...proto.wire import Parameter
from ..label_forms import LabelForms
from ..store import LabelStore
from ..store.rows import (
    Content,
    Layout,
    Model,
    Piece,
    Row,
    covers,
    derived,
    keys_of,
    layout_of,
    pack,
    unpack,
)
from ..store.store import StoreStats
from .answers import Expected, concatenated, in_form, joined, named, soft_labels
from .inbox import Inbox

if TYPE_CHECKING:
    from ..store.store import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LabelSelection:
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
class CachedLabels:
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


NOTHING = CachedLabels((), {})


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


def cached_labels(rows: Sequence[Row | None], wanted: LabelSelection) -> CachedLabels:
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
    return CachedLabels(tuple(sorted(places)), soft_labels(answer, expected))


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
    rows: Sequence[Row], places: Sequence[int], names: tuple[str, ...], wanted: LabelSelection
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


#: Rows that have come are written in lots of so many, or when none has come for so long.
WRITE_ROWS = 1024
WRITE_AFTER_S = 0.5
_END_S = 3.0


@dataclass(frozen=True, slots=True)
class Identity:
    """Which samples a batch has.

    Attributes:
        number: of the batch.
        content: whose labels are meant.
        keys: of its rows.
        ids: the user's own ids of its rows, where there are any.
    """

    number: int
    content: Content
    keys: Sequence[bytes]
    ids: Sequence[Row] = ()

    def cut(self, start: int, stop: int) -> Identity:
        """Of the rows [start, stop)."""
        return replace(self, keys=self.keys[start:stop], ids=self.ids[start:stop])


@dataclass(frozen=True, slots=True)
class Lookup:
    """Lookup a batch up.

    Attributes:
        number: of the batch.
        rows: how many it has.
        content: whose labels are meant.
        inputs: what teachers get of it.
        stays: whether that still is what it was: its memory may be used again at any time, and then
            the batch is one that nobody waits for.
        ids: the user's own ids of its rows, where there are any.
    """

    number: int
    rows: int
    content: Content
    inputs: Mapping[str, Array]
    stays: Callable[[], bool]
    ids: Sequence[Array] = ()


@dataclass(frozen=True, slots=True)
class StoreRows:
    """StoreRows these rows of labels."""

    identity: Identity
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class RemoveRows:
    """Take out what this teacher has labelled."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Flush:
    """Flush what was kept until now."""


#: None: there is nothing more to do.
Command = Lookup | StoreRows | RemoveRows | Model | Flush | None


class LabelCacheListener(Protocol):
    """Who is told, in the engine's thread."""

    def opened(self, remembered: Model | None) -> None: ...

    def failed(self, error: EdlError) -> None: ...

    def looked(self, identity: Identity, cached_labels: CachedLabels) -> None: ...


def identity_of(look: Lookup) -> Identity | None:
    """Which samples they are; None where their memory is another batch's by now."""
    keys = keys_of(look.content, look.inputs, 0, look.rows, look.ids)
    ids: Sequence[Row] = ()
    if look.ids:
        pieces = tuple(map(Piece.of, look.ids))
        ids = pack(Layout(look.content, (), pieces), look.ids)
    return Identity(look.number, look.content, keys, ids) if look.stays() else None


class LabelCacheThread:
    """Runs from when it is made until `close`. What it finds it posts to the engine's inbox.

    Attributes:
        figures: what the store has done; replaced as a whole by the thread.
        disk_bytes: what it takes of the disk, as of its latest work.
    """

    def __init__(
        self,
        settings: LabelStore,
        service: str,
        wanted: LabelSelection,
        inbox: Inbox,
        hears: LabelCacheListener,
    ) -> None:
        self.figures = StoreStats()
        self.disk_bytes = 0
        self._settings = settings
        self._service = service
        self._wanted = wanted
        self._inbox = inbox
        self._hears = hears
        self._told: SimpleQueue[Command] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="edl-store", daemon=True)
        self._thread.start()

    def tell(self, what: Lookup | StoreRows | RemoveRows) -> None:
        """Have this done, behind all that was told before."""
        self._told.put(what)

    def remember(self, model: Model) -> None:
        """This model is at work for the service."""
        self._told.put(model)

    def close(self) -> None:
        """Flush what is still to be written; bounded by a few seconds."""
        self._told.put(None)
        self._thread.join(_END_S)
        if self._thread.is_alive():
            log.warning("the label store %s is still being written", self._settings.path)

    def _run(self) -> None:
        from ..store.store import Store  # loads SQLite

        try:
            store = Store(self._settings)
        except UsageError as error:
            self._inbox.post(self._hears.failed, error)
            return
        except EdlError as error:
            self._give_up(error)
        else:
            try:
                with store:
                    self._inbox.post(self._hears.opened, store.recall(self._service))
                    self._work(store)
                self.figures = store.figures
                return
            except Exception as error:  # whatever it is, the engine must not wait for ever
                log.exception("the label store %s is left alone", self._settings.path)
                self._give_up(error)
        self._inbox.post(self._hears.opened, None)  # if nothing was said of that
        self._do_without()

    def _work(self, store: Store) -> None:
        unsaved: dict[bytes, Row] = {}
        due = 0.0
        what: Command = Flush()
        while what is not None:
            try:
                what = self._told.get(timeout=max(0.0, due - time.monotonic()) if unsaved else None)
            except Empty:
                what = Flush()
            if not unsaved:
                due = time.monotonic() + WRITE_AFTER_S
            try:
                self._do(store, what, unsaved)
            except Exception:
                self._told.put(what)  # who looks it up is told that there is nothing
                raise
            self.figures = store.figures
            if not unsaved:
                self.disk_bytes = store.disk_bytes

    def _do(self, store: Store, what: Command, unsaved: dict[bytes, Row]) -> None:
        match what:
            case Lookup():
                self._look_up(store, what, unsaved)
            case StoreRows(identity, rows):
                unsaved |= zip(identity.keys, _with_ids(rows, identity.ids), strict=True)
                if len(unsaved) >= WRITE_ROWS:
                    _write(store, unsaved)
            case RemoveRows(teacher):
                _write(store, unsaved)
                store.disown(teacher)
            case Model():
                store.remember(self._service, what)
            case Flush() | None:
                _write(store, unsaved)

    def _give_up(self, error: Exception) -> None:
        log.warning("training goes on without its label store: %s", error)
        self.figures = replace(self.figures, trouble=str(error))

    def _look_up(self, store: Store, look: Lookup, unsaved: dict[bytes, Row]) -> None:
        identity, found = Identity(look.number, look.content, ()), NOTHING
        try:
            known = identity_of(look)
            if known is None:
                return
            if not unsaved.keys().isdisjoint(known.keys):
                _write(store, unsaved)
            identity, found = known, cached_labels(store.get_many(known.keys), self._wanted)
            self.figures = store.figures  # before anybody has the labels, and counts them
        except EdlError as error:  # no teacher could be asked for it; or its rows are no labels
            log.warning("rows of the label store are not used: %s", error)
        self._inbox.post(self._hears.looked, identity, found)

    def _do_without(self) -> None:
        """Nothing is found and nothing kept."""
        while (what := self._told.get()) is not None:
            if isinstance(what, Lookup):
                # Of a batch without keys nothing else is told: this is all there is to count.
                self.figures = self.figures.plus(misses=what.rows, dropped=what.rows)
                identity = Identity(what.number, what.content, ())
                self._inbox.post(self._hears.looked, identity, NOTHING)


def _write(store: Store, unsaved: dict[bytes, Row]) -> None:
    store.put_many(list(unsaved), list(unsaved.values()))
    unsaved.clear()


def _with_ids(rows: Sequence[Row], ids: Sequence[Row]) -> Sequence[Row]:
    if not ids:
        return rows
    return [
        Row(_layout_with_ids(row.layout, own.layout.ids), own.data + row.data, row.makers)
        for row, own in zip(rows, ids, strict=True)
    ]


@lru_cache(maxsize=256)
def _layout_with_ids(layout: Layout, ids: tuple[Piece, ...]) -> Layout:
    return replace(layout, ids=ids)
