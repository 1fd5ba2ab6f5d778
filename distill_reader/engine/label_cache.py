"""Looks batches up in a label store before teachers label them, and stores what teachers label.

Batches pass in the order of the stream, before they enter the ledger. A thread of its own reads
and writes the store (`LabelCacheThread`); `scheduler.label_cache` decides whether a batch waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...errors import EdlError, UsageError
from ...proto.arena import Array
from ...proto.shared_buffer import SharedBuffer
from ...scheduler import label_cache
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.events import Peer
from ...scheduler.reader_core.model_switch import NumericsPin
from ..config import ReaderConfig
from ..store.rows import Content, Model
from ..store.store import StoreStats
from .inbox import Inbox
from .label_cache_thread import (
    NO_LABELS,
    BatchKeys,
    CachedLabels,
    LabelCacheThread,
    LabelSelection,
    Lookup,
    RemoveRows,
    StoreRows,
    keys_of_batch,
)
from .outcomes import RequestDone
from .requests import Batch, model_inputs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Turn:
    """A batch on its way to the ledger, perhaps again; `cached` is None until that is known."""

    batch: Batch
    since: float
    again: bool = False
    in_lookup: bool = False
    cached: CachedLabels | None = None


class LabelCache:
    """The label store of one service. Used by the engine's thread alone.

    Args:
        config: of the service; it names a store.
        inbox: of the engine's thread.
        ring: holds the batches.
        numerics: whose labels are admitted, where bits matter.
        on_turn: receives each batch with its cached labels, in order.
        on_failed: the store cannot be used as configured, in this epoch or (True) ever.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        ring: SharedBuffer,
        numerics: NumericsPin,
        on_turn: Callable[[Batch, CachedLabels], None],
        on_failed: Callable[[EdlError, bool], None],
    ) -> None:
        assert config.store is not None
        self._config = config
        self._ids = config.store.sample_ids
        self._ring = ring
        self._numerics = numerics
        self._on_turn = on_turn
        self._on_failed = on_failed
        self._turns: deque[_Turn] = deque()
        self._again = 0  # how many of them the ledger knows
        self._known: dict[int, BatchKeys] = {}
        self._model: Model | None = None
        self._remembered: Model | None = None
        self._opened = self._mute = False
        self._asked: int | None = None  # the batch that was sent to learn of the model
        requested = LabelSelection(config.fetches, config.labels)
        self._worker = LabelCacheThread(config.store, config.service, requested, inbox, self)

    @property
    def stats(self) -> StoreStats:
        """Counters of this reader's use of the store."""
        return self._worker.stats

    @property
    def disk_bytes(self) -> int:
        """Disk space of the store."""
        return self._worker.disk_bytes

    def __len__(self) -> int:
        """Batches that are not in the ledger yet."""
        return len(self._turns) - self._again

    def has(self, number: int) -> bool:
        """Whether a batch is being looked up, or waits for that."""
        return any(turn.batch.number == number for turn in self._turns)

    @property
    def content_id(self) -> str:
        """Content of the model whose labels are looked up; empty while unknown."""
        return "" if self._model is None else self._model.content.content_id

    # --- batches

    def queue(self, batch: Batch, now: float) -> None:
        """Add a batch of the source."""
        self._turns.append(_Turn(batch, now))

    def requeue(self, batch: Batch, now: float) -> None:
        """Look up a batch of the ledger again, by the present model; later batches wait for it."""
        if not self.has(batch.number):
            self._again += 1
            turns = [*self._turns, _Turn(batch, now, again=True)]
            self._turns = deque(sorted(turns, key=lambda turn: turn.batch.number))

    def use_content(self, content_id: str) -> None:
        """Switch to this content; lookups of another content are repeated."""
        if not content_id or content_id == self.content_id:
            return
        for turn in self._turns:
            turn.cached = None
        self._asked = None
        remembered, numerics = self._remembered, self._numerics
        same = (
            remembered is not None
            and remembered.content.content_id == content_id
            and (not numerics.matter or remembered.content.numerics_id == numerics.pinned)
        )
        self._model = remembered if same else None

    def look(self, content_id: str, usable: int, now: float) -> None:
        """Start due lookups and pass on batches that are done.

        Args:
            content_id: the content that the coordinator names; empty: none.
            usable: teachers that can be sent to.
            now: the engine's time.
        """
        if not self._opened:
            return
        self.use_content(content_id)
        for turn in self._turns:
            if turn.in_lookup or turn.cached is not None:
                continue
            match label_cache.cache_step(self._standing(turn, content_id, usable, now)):
                case "wait":
                    break
                case "ask":
                    turn.cached = NO_LABELS
                    if self._asked is None:
                        self._asked = turn.batch.number
                case "recall":
                    self._recall()
                    self._start_lookup(turn)
                case "look":
                    self._start_lookup(turn)
        self._deliver()

    def insert(
        self,
        done: RequestDone,
        accepted: Collection[Span],
        inputs: Sequence[str],
        batches: Mapping[int, Batch],
    ) -> None:
        """Store labels.

        Args:
            done: with the rows of all its spans.
            accepted: the spans to store.
            inputs: of the model, in its order.
            batches: of the spans, by number.
        """
        if not done.content_id:
            if self._model is None and not self._mute:
                self._mute = True
                log.warning("teachers do not say of which model they are: no label is kept")
            return
        content = self._content(done.content_id, done.numerics_id)
        self._learn(Model(content, tuple(inputs)))
        at = 0
        for span in done.job.spans:
            rows, at = done.rows[at : at + span.rows], at + span.rows
            batch = batches.get(span.batch)
            if span in accepted and rows and batch is not None and batch.is_even:
                known = self._keys_of(batch, content)
                if known is not None and known.keys:
                    self._worker.submit(StoreRows(known.cut(span.start, span.stop), rows))

    def on_teacher_ready(self, peer: Peer, inputs: Sequence[str]) -> None:
        """Learn the model from a teacher, if it publishes its content."""
        if peer.content_id and (peer.numerics_id or not self._numerics.matter):
            content = self._content(peer.content_id, peer.numerics_id)
            self._learn(Model(content, tuple(inputs)))

    def delete_rows_of(self, teacher: str) -> None:
        """Delete all labels of this teacher: it is not trusted."""
        self._worker.submit(RemoveRows(teacher))

    def forget(self, number: int) -> None:
        """Drop a batch that no more labels will come for."""
        self._known.pop(number, None)
        if self._asked == number:
            self._asked = None

    def reset(self) -> None:
        """Forget every batch."""
        self._turns.clear()
        self._again = 0
        self._known.clear()
        self._asked = None

    def close(self) -> None:
        """Flush and close the store."""
        self._worker.close()

    # --- the worker's events, in the engine's thread

    def on_opened(self, remembered: Model | None) -> None:
        """The store is open, or given up."""
        self._opened = True
        if remembered is not None and self._numerics.admits(remembered.content.numerics_id):
            self._remembered = remembered

    def on_failed(self, error: EdlError) -> None:
        """The store cannot be opened, by a mistake of the user."""
        self._on_failed(error, True)

    def on_lookup(self, found: BatchKeys, cached: CachedLabels) -> None:
        """A lookup is done."""
        for turn in self._turns:
            if turn.batch.number == found.number:
                turn.in_lookup = False
                if self._model is not None and found.content == self._model.content:
                    whole = not cached.missing(turn.batch.rows)
                    turn.cached = cached if whole or not self._numerics.matter else NO_LABELS
                    self._known[found.number] = found
                break  # if the model changed meanwhile: the batch is looked up again
        self._deliver()

    # --- within

    def _standing(
        self, turn: _Turn, content_id: str, usable: int, now: float
    ) -> label_cache.CacheView:
        last = self._remembered
        remembered = (
            last is not None
            and content_id in ("", last.content.content_id)
            and self._numerics.admits(last.content.numerics_id)
        )
        return label_cache.CacheView(
            known=self._model is not None,
            mute=self._mute,
            remembered=remembered,
            usable=usable,
            asked=self._asked is not None,
            waited_s=now - turn.since,
        )

    def _recall(self) -> None:
        self._model = model = self._remembered
        if model is not None and self._numerics.matter:
            self._numerics.pinned = model.content.numerics_id
        log.warning(
            "no teacher of %s answers: labels come from the store alone, of content %s",
            self._config.service,
            self.content_id,
        )

    def _content(self, content_id: str, numerics_id: str) -> Content:
        return Content(content_id, numerics_id if self._numerics.matter else "")

    def _learn(self, model: Model) -> None:
        if model != self._model:
            self._model = self._remembered = model
            self._worker.submit(model)

    def _keys_of(self, batch: Batch, content: Content) -> BatchKeys | None:
        """The keys of a batch; None if its memory was reused, as after an epoch that was left.

        Keys are of the very bytes that were labelled.
        """
        known = self._known.get(batch.number)
        if known is None or known.content != content:
            assert self._model is not None
            try:
                known = keys_of_batch(self._lookup_of(batch, replace(self._model, content=content)))
            except UsageError as error:
                self._on_failed(error, False)
                return None
        return known if known is not None and self._stays(batch) else None

    def _stays(self, batch: Batch) -> bool:
        first = next(iter(batch.fields.values()), None)
        return first is not None and self._ring.generation(first.offset) == batch.generation

    def _start_lookup(self, turn: _Turn) -> None:
        assert self._model is not None
        if not turn.batch.is_even:  # its rows cannot be separated
            turn.cached = NO_LABELS
            return
        try:
            self._worker.submit(self._lookup_of(turn.batch, self._model))
        except UsageError as error:
            self._on_failed(error, False)
            turn.cached = NO_LABELS
        else:
            turn.in_lookup = True

    def _lookup_of(self, batch: Batch, model: Model) -> Lookup:
        refs = model_inputs(batch.fields, model.inputs, self._config.feeds)
        inputs = {name: self._ring.get(ref) for name, ref in refs.items()}
        stays, ids = partial(self._stays, batch), tuple(self._ids_of(batch))
        return Lookup(batch.number, batch.rows, model.content, inputs, stays, ids)

    def _ids_of(self, batch: Batch) -> Iterator[Array]:
        for key in self._ids:
            if key not in batch.fields:
                raise UsageError(
                    f"sample_ids of the store names field {key!r}, a batch has the arrays"
                    f" {list(batch.fields)}"
                )
            array = self._ring.get(batch.fields[key])
            if not array.ndim or len(array) != batch.rows:
                raise UsageError(
                    f"sample_ids of the store names field {key!r} of shape {list(array.shape)}, for"
                    f" a batch of {batch.rows}"
                )
            if array.dtype.kind not in "biuf":
                raise UsageError(
                    f"sample_ids of the store names field {key!r} of dtype {array.dtype}: ids are"
                    " numbers; give a number for each sample"
                )
            yield array

    def _deliver(self) -> None:
        while self._turns and (cached := self._turns[0].cached) is not None:
            turn = self._turns.popleft()
            self._again -= turn.again
            self._on_turn(turn.batch, cached)
