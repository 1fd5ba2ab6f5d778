"""The thread that reads and writes a label store, so that no disk holds the engine up."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from ...errors import EdlError, UsageError
from ...proto.arena import Array
from ..store.figures import Figures
from ..store.keys import keys_of
from ..store.rows import Content, Layout, Model, Piece, Row, pack
from ..store.settings import LabelStore
from .inbox import Inbox
from .stored import NOTHING, Stocked, Wanted, stocked

if TYPE_CHECKING:
    from ..store.store import Store

log = logging.getLogger(__name__)

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
class Look:
    """Look a batch up.

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
class Keep:
    """Keep these rows of labels."""

    identity: Identity
    rows: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Disown:
    """Take out what this teacher has labelled."""

    teacher: str


@dataclass(frozen=True, slots=True)
class Write:
    """Write what was kept until now."""


#: None: there is nothing more to do.
Told = Look | Keep | Disown | Model | Write | None


class Hears(Protocol):
    """Who is told, in the engine's thread."""

    def opened(self, remembered: Model | None) -> None: ...

    def failed(self, error: EdlError) -> None: ...

    def looked(self, identity: Identity, stocked: Stocked) -> None: ...


def identity_of(look: Look) -> Identity | None:
    """Which samples they are; None where their memory is another batch's by now."""
    keys = keys_of(look.content, look.inputs, 0, look.rows, look.ids)
    ids: Sequence[Row] = ()
    if look.ids:
        pieces = tuple(map(Piece.of, look.ids))
        ids = pack(Layout(look.content, (), pieces), look.ids)
    return Identity(look.number, look.content, keys, ids) if look.stays() else None


class Keeper:
    """Runs from when it is made until `close`. What it finds it posts to the engine's inbox.

    Attributes:
        figures: what the store has done; replaced as a whole by the thread.
        disk_bytes: what it takes of the disk, as of its latest work.
    """

    def __init__(
        self, settings: LabelStore, service: str, wanted: Wanted, inbox: Inbox, hears: Hears
    ) -> None:
        self.figures = Figures()
        self.disk_bytes = 0
        self._settings = settings
        self._service = service
        self._wanted = wanted
        self._inbox = inbox
        self._hears = hears
        self._told: SimpleQueue[Told] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="edl-store", daemon=True)
        self._thread.start()

    def tell(self, what: Look | Keep | Disown) -> None:
        """Have this done, behind all that was told before."""
        self._told.put(what)

    def remember(self, model: Model) -> None:
        """This model is at work for the service."""
        self._told.put(model)

    def close(self) -> None:
        """Write what is still to be written; bounded by a few seconds."""
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
        what: Told = Write()
        while what is not None:
            try:
                what = self._told.get(timeout=max(0.0, due - time.monotonic()) if unsaved else None)
            except Empty:
                what = Write()
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

    def _do(self, store: Store, what: Told, unsaved: dict[bytes, Row]) -> None:
        match what:
            case Look():
                self._look_up(store, what, unsaved)
            case Keep(identity, rows):
                unsaved |= zip(identity.keys, _with_ids(rows, identity.ids), strict=True)
                if len(unsaved) >= WRITE_ROWS:
                    _write(store, unsaved)
            case Disown(teacher):
                _write(store, unsaved)
                store.disown(teacher)
            case Model():
                store.remember(self._service, what)
            case Write() | None:
                _write(store, unsaved)

    def _give_up(self, error: Exception) -> None:
        log.warning("training goes on without its label store: %s", error)
        self.figures = replace(self.figures, trouble=str(error))

    def _look_up(self, store: Store, look: Look, unsaved: dict[bytes, Row]) -> None:
        identity, found = Identity(look.number, look.content, ()), NOTHING
        try:
            known = identity_of(look)
            if known is None:
                return
            if not unsaved.keys().isdisjoint(known.keys):
                _write(store, unsaved)
            identity, found = known, stocked(store.get_many(known.keys), self._wanted)
            self.figures = store.figures  # before anybody has the labels, and counts them
        except EdlError as error:  # no teacher could be asked for it; or its rows are no labels
            log.warning("rows of the label store are not used: %s", error)
        self._inbox.post(self._hears.looked, identity, found)

    def _do_without(self) -> None:
        """Nothing is found and nothing kept."""
        while (what := self._told.get()) is not None:
            if isinstance(what, Look):
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
