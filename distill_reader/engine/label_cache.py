"""Looks batches up in a label store before teachers label them, and stores new labels.

Batches pass through the cache in order, before they enter the ledger. `LabelCacheThread` reads and
writes the store; `scheduler.label_cache` decides whether a batch waits.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ...proto.arena import Array
from ...proto.shared_buffer import SharedBuffer
from ...runtime.errors import EdlError, UsageError
from ...scheduler import label_cache
from ...scheduler.ledger.events import Span
from ...scheduler.reader_core.events import Peer
from ...scheduler.reader_core.model_switch import NumericsPin
from ..config import ReaderConfig
from ..store.rows import ModelId, ServiceModel
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
from .requests import BatchMetadata, model_inputs
from .teacher_requests import RequestDone

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _QueuedBatch:
    """A batch to look up.

    Attributes:
        batch: the batch.
        since: time of queueing, by the engine's clock.
        in_ledger: the ledger already has the batch, and withholds it until this lookup is done.
        in_lookup: the lookup was submitted to the thread, which has not answered yet.
        cached: the result; None: not known yet.
    """

    batch: BatchMetadata
    since: float
    in_ledger: bool = False
    in_lookup: bool = False
    cached: CachedLabels | None = None


class LabelCache:
    """The label store of one service. For the engine's thread.

    Args:
        config: settings of the service, with a store.
        inbox: inbox of the engine's thread.
        ring: holds the batches.
        numerics: the numerics_id to which a deterministic reader is pinned.
        on_ready: receives each batch with its cached labels, in order.
        on_failed: called with the error if the store cannot be used as configured.
        on_unfit: called with a batch that does not fit the settings, and an error.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        ring: SharedBuffer,
        numerics: NumericsPin,
        on_ready: Callable[[BatchMetadata, CachedLabels], None],
        on_failed: Callable[[EdlError], None],
        on_unfit: Callable[[BatchMetadata, UsageError], None],
    ) -> None:
        assert config.store is not None
        self._config = config
        self._ids = config.store.sample_ids
        self._ring = ring
        self._numerics = numerics
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._on_unfit = on_unfit
        self._queued: deque[_QueuedBatch] = deque()
        self._keys: dict[int, BatchKeys] = {}  # by batch
        self._model: ServiceModel | None = None
        self._remembered: ServiceModel | None = None
        self._opened = self._content_unpublished = False
        self._probing_batch: int | None = None  # batch sent to learn the model's content
        requested = LabelSelection(config.fetches, config.labels)
        self._worker = LabelCacheThread(config.store, config.service, requested, inbox, self)

    @property
    def stats(self) -> StoreStats:
        """Counters of this reader's use of the store."""
        return self._worker.stats

    @property
    def disk_bytes(self) -> int:
        """Size of the store's files."""
        return self._worker.disk_bytes

    def __len__(self) -> int:
        """Number of queued batches that are not in the ledger yet."""
        return sum(not queued.in_ledger for queued in self._queued)

    @property
    def calls(self) -> int:
        """Number of batches of `TeacherPool` calls that are queued and not in the ledger yet."""
        return sum(queued.batch.is_call for queued in self._queued if not queued.in_ledger)

    @property
    def content_id(self) -> str:
        """Content of the labels that are looked up; empty: unknown."""
        return "" if self._model is None else self._model.model_id.content_id

    # --- batches

    def queue(self, batch: BatchMetadata, now: float) -> None:
        """Add a batch of the source, or of a call of a `TeacherPool`."""
        self._queued.append(_QueuedBatch(batch, now))

    def holds(self, number: int) -> bool:
        """Whether a batch is queued and not in the ledger yet."""
        return any(
            queued.batch.number == number and not queued.in_ledger for queued in self._queued
        )

    def remove(self, number: int) -> bool:
        """Remove a batch; returns whether it was queued and not in the ledger yet."""
        for queued in self._queued:
            if queued.batch.number == number:
                self._queued.remove(queued)
                return not queued.in_ledger
        return False

    def requeue(self, batch: BatchMetadata, now: float) -> None:
        """Look up a batch again that has entered the ledger; later batches wait for the lookup.

        The lookup is for the current model.
        """
        if all(queued.batch.number != batch.number for queued in self._queued):
            queued = [*self._queued, _QueuedBatch(batch, now, in_ledger=True)]
            self._queued = deque(sorted(queued, key=lambda queued: queued.batch.number))

    def enter_ledger(self) -> list[BatchMetadata]:
        """Mark all queued batches as in the ledger; return those that were not.

        The caller adds them to the ledger, which withholds each until its lookup.
        """
        entering = [queued for queued in self._queued if not queued.in_ledger]
        for queued in entering:
            queued.in_ledger = True
        return [queued.batch for queued in entering]

    def use_content(self, content_id: str) -> None:
        """Switch to this content; lookups of another content are repeated."""
        if not content_id or content_id == self.content_id:
            return
        for queued in self._queued:
            queued.cached = None
        self._probing_batch = None
        remembered, numerics = self._remembered, self._numerics
        is_remembered = (
            remembered is not None
            and remembered.model_id.content_id == content_id
            and (
                not numerics.is_deterministic or remembered.model_id.numerics_id == numerics.pinned
            )
        )
        self._model = remembered if is_remembered else None

    def tick(self, content_id: str, usable: int, now: float) -> None:
        """Start lookups that are due, and pass on batches that are ready.

        Args:
            content_id: content that the teachers must serve; empty: unknown.
            usable: number of teachers that requests can be sent to.
            now: time of the engine's clock.
        """
        if not self._opened:
            return
        self.use_content(content_id)
        unfit: list[tuple[BatchMetadata, UsageError]] = []
        for queued in self._queued:
            if queued.in_lookup or queued.cached is not None:
                continue
            match label_cache.cache_step(self._cache_view(queued, content_id, usable, now)):
                case "wait":
                    break
                case "ask":
                    queued.cached = NO_LABELS
                    if self._probing_batch is None:
                        self._probing_batch = queued.batch.number
                case "recall" | "look" as step:
                    if step == "recall":
                        self._recall()
                    try:
                        self._start_lookup(queued)
                    except UsageError as error:
                        unfit.append((queued.batch, error))
                        queued.cached = NO_LABELS
        for batch, misfit in unfit:  # after the loop: the callback may remove the batch
            self._on_unfit(batch, misfit)
        self._deliver()

    def insert(
        self,
        done: RequestDone,
        accepted: Collection[Span],
        inputs: Sequence[str],
        batches: Mapping[int, BatchMetadata],
    ) -> None:
        """Store labels.

        Args:
            done: response with the rows of all its spans.
            accepted: spans with labels that are used.
            inputs: names of the model's inputs, in its order.
            batches: known batches by number.
        """
        if not done.content_id:
            if self._model is None and not self._content_unpublished:
                self._content_unpublished = True
                log.warning("teachers do not publish a content_id: their labels are not stored")
            return
        model_id = self._model_id(done.content_id, done.numerics_id)
        self._learn(ServiceModel(model_id, tuple(inputs)))
        at = 0
        for span in done.request.spans:
            rows, at = done.store_rows[at : at + span.rows], at + span.rows
            batch = batches.get(span.batch)
            if span in accepted and rows and batch is not None and batch.can_split:
                batch_keys = self._keys_of(batch, model_id)
                if batch_keys is not None and batch_keys.keys:
                    self._worker.submit(StoreRows(batch_keys.cut(span.start, span.stop), rows))

    def on_teacher_ready(self, peer: Peer, inputs: Sequence[str]) -> None:
        """Learn the model from a teacher that publishes its content.

        A deterministic reader also needs the teacher's numerics_id.
        """
        if peer.content_id and (peer.numerics_id or not self._numerics.is_deterministic):
            model_id = self._model_id(peer.content_id, peer.numerics_id)
            self._learn(ServiceModel(model_id, tuple(inputs)))

    def delete_rows_of(self, teacher: str) -> None:
        """Delete all stored labels of a teacher that is not trusted."""
        self._worker.submit(RemoveRows(teacher))

    def forget(self, number: int) -> None:
        """Forget the keys of a batch for which no more labels will arrive."""
        self._keys.pop(number, None)
        if self._probing_batch == number:
            self._probing_batch = None

    def reset(self) -> None:
        """Forget every batch."""
        self._queued.clear()
        self._keys.clear()
        self._probing_batch = None

    def close(self) -> None:
        """Flush and close the store."""
        self._worker.close()

    # --- the worker's events, in the engine's thread

    def on_opened(self, remembered: ServiceModel | None) -> None:
        """Start lookups: the store is open, or it has failed and lookups find nothing."""
        self._opened = True
        if remembered is not None and self._numerics.admits(remembered.model_id.numerics_id):
            self._remembered = remembered

    def on_failed(self, error: EdlError) -> None:
        """Report that the store cannot be opened because of a wrong setting."""
        self._on_failed(error)

    def on_lookup(self, keys: BatchKeys, cached: CachedLabels) -> None:
        """Use the result of a lookup."""
        for queued in self._queued:
            if queued.batch.number == keys.number:
                queued.in_lookup = False
                if self._model is not None and keys.model_id == self._model.model_id:
                    whole = not cached.missing(queued.batch.rows)
                    queued.cached = (
                        cached if whole or not self._numerics.is_deterministic else NO_LABELS
                    )
                    self._keys[keys.number] = keys
                break  # if the model has changed, the batch is looked up again
        self._deliver()

    # --- internal

    def _cache_view(
        self, queued: _QueuedBatch, content_id: str, usable: int, now: float
    ) -> label_cache.CacheView:
        model = self._remembered
        may_recall = (
            model is not None
            and content_id in ("", model.model_id.content_id)
            and self._numerics.admits(model.model_id.numerics_id)
        )
        return label_cache.CacheView(
            model_known=self._model is not None,
            model_unnamed=self._content_unpublished,
            remembered=may_recall,
            usable=usable,
            asked=self._probing_batch is not None,
            waited_s=now - queued.since,
        )

    def _recall(self) -> None:
        self._model = model = self._remembered
        if model is not None and self._numerics.is_deterministic:
            self._numerics.pinned = model.model_id.numerics_id
        log.warning(
            "no teacher of %s answers: labels of content %s come from the store alone",
            self._config.service,
            self.content_id,
        )

    def _model_id(self, content_id: str, numerics_id: str) -> ModelId:
        return ModelId(content_id, numerics_id if self._numerics.is_deterministic else "")

    def _learn(self, model: ServiceModel) -> None:
        if model != self._model:
            self._model = self._remembered = model
            self._worker.submit(model)

    def _keys_of(self, batch: BatchMetadata, model_id: ModelId) -> BatchKeys | None:
        """Return the keys of a batch; None if they cannot be made.

        The memory of the batch may have been reused, as after an epoch that the loop ended early.
        Or the batch does not fit the settings; this is reported.
        """
        keys = self._keys.get(batch.number)
        if keys is None or keys.model_id != model_id:
            assert self._model is not None
            try:
                keys = keys_of_batch(
                    self._lookup_of(batch, replace(self._model, model_id=model_id))
                )
            except UsageError as error:
                self._on_unfit(batch, error)
                return None
        return keys if keys is not None and self._is_current(batch) else None

    def _is_current(self, batch: BatchMetadata) -> bool:
        first = next(iter(batch.fields.values()), None)
        return first is not None and self._ring.generation(first.offset) == batch.generation

    def _start_lookup(self, queued: _QueuedBatch) -> None:
        assert self._model is not None
        if not queued.batch.can_split:  # the batch has no separate rows
            queued.cached = NO_LABELS
            return
        self._worker.submit(self._lookup_of(queued.batch, self._model))
        queued.in_lookup = True

    def _lookup_of(self, batch: BatchMetadata, model: ServiceModel) -> Lookup:
        refs = model_inputs(batch.fields, model.inputs, self._config.feeds)
        inputs = {name: self._ring.get(ref) for name, ref in refs.items()}
        is_current, ids = partial(self._is_current, batch), tuple(self._ids_of(batch))
        return Lookup(batch.number, batch.rows, model.model_id, inputs, is_current, ids)

    def _ids_of(self, batch: BatchMetadata) -> Iterator[Array]:
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
        while self._queued and (cached := self._queued[0].cached) is not None:
            self._on_ready(self._queued.popleft().batch, cached)
