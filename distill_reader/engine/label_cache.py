"""A label store in the engine: what lies there is not asked for, and what comes is kept there.

Batches go through here in the order of the stream, before the ledger hears of them. The store
itself is read and written by a thread of its own (`shelf_keeper.py`); what is to be done with a
batch meanwhile says `scheduler.label_cache`.
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
from ...scheduler.ledger.instructions import Span
from ...scheduler.reader_core.contents import Numerics
from ...scheduler.reader_core.events import Peer
from ..config import ReaderConfig
from ..store.rows import Content, Model
from ..store.store import StoreStats
from .inbox import Inbox
from .label_cache_thread import (
    NOTHING,
    CachedLabels,
    Identity,
    LabelCacheThread,
    LabelSelection,
    Lookup,
    RemoveRows,
    StoreRows,
    identity_of,
)
from .outcomes import Done
from .requests import Batch, model_inputs

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Turn:
    """A batch on its way to the ledger, perhaps again; `cached_labels` None: not known yet."""

    batch: Batch
    since: float
    again: bool = False
    looking: bool = False
    cached_labels: CachedLabels | None = None


class LabelCache:
    """The label store of one service. Used by the engine's thread alone.

    Args:
        config: of the service; it names a store.
        inbox: of the engine's thread.
        ring: where batches lie.
        numerics: whose labels count, where bits matter.
        on_turn: it is a batch's turn at the ledger, and this is what the store has for it.
        on_failed: the store cannot be used as it was meant to be: in this epoch, or (True) ever.
    """

    def __init__(
        self,
        config: ReaderConfig,
        inbox: Inbox,
        ring: SharedBuffer,
        numerics: Numerics,
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
        self._known: dict[int, Identity] = {}
        self._model: Model | None = None
        self._remembered: Model | None = None
        self._opened = self._mute = False
        self._asked: int | None = None  # the batch that was sent to learn of the model
        wanted = LabelSelection(config.fetches, config.labels)
        self._keeper = LabelCacheThread(config.store, config.service, wanted, inbox, self)

    @property
    def figures(self) -> StoreStats:
        """What the store has done for this reader."""
        return self._keeper.figures

    @property
    def disk_bytes(self) -> int:
        """What the store takes of the disk."""
        return self._keeper.disk_bytes

    def __len__(self) -> int:
        """Batches that the ledger has not heard of."""
        return len(self._turns) - self._again

    def has(self, number: int) -> bool:
        """Whether a batch is being looked up, or waits for that."""
        return any(turn.batch.number == number for turn in self._turns)

    @property
    def content_id(self) -> str:
        """Of the model whose labels are looked up; empty while that is not known."""
        return "" if self._model is None else self._model.content.content_id

    # --- batches

    def queue(self, batch: Batch, now: float) -> None:
        """A batch has come; it will be its turn."""
        self._turns.append(_Turn(batch, now))

    def look_again(self, batch: Batch, now: float) -> None:
        """A batch that the ledger knows is to be labelled anew, by the model that there is now.

        Those behind it have their turns behind it. What was found of another model is forgotten.
        """
        if not self.has(batch.number):
            self._again += 1
            turns = [*self._turns, _Turn(batch, now, again=True)]
            self._turns = deque(sorted(turns, key=lambda turn: turn.batch.number))

    def follow(self, content_id: str) -> None:
        """The coordinator has moved the service, or names the model that the store remembers.

        What is found, or was, for batches that have not had their turn is of another one.
        """
        if not content_id or content_id == self.content_id:
            return
        for turn in self._turns:
            turn.cached_labels = None
        self._asked = None
        remembered, numerics = self._remembered, self._numerics
        same = (
            remembered is not None
            and remembered.content.content_id == content_id
            and (not numerics.matter or remembered.content.numerics_id == numerics.pinned)
        )
        self._model = remembered if same else None

    def look(self, content_id: str, usable: int, now: float) -> None:
        """Have every batch whose turn it is go on.

        Args:
            content_id: what the coordinator says of the model; empty: nothing.
            usable: teachers that can be sent to.
            now: the engine's time.
        """
        if not self._opened:
            return
        self.follow(content_id)
        for turn in self._turns:
            if turn.looking or turn.cached_labels is not None:
                continue
            match label_cache.cache_step(self._standing(turn, content_id, usable, now)):
                case "wait":
                    break
                case "ask":
                    turn.cached_labels = NOTHING
                    if self._asked is None:
                        self._asked = turn.batch.number
                case "recall":
                    self._recall()
                    self._begin(turn)
                case "look":
                    self._begin(turn)
        self._hand_on()

    def keep(
        self,
        done: Done,
        accepted: Collection[Span],
        inputs: Sequence[str],
        batches: Mapping[int, Batch],
    ) -> None:
        """Have labels kept.

        Args:
            done: with the rows of all its spans.
            accepted: the spans that count.
            inputs: of the model, in its order.
            batches: those of the spans.
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
                identity = self._identity_of(batch, content)
                if identity is not None and identity.keys:
                    self._keeper.tell(StoreRows(identity.cut(span.start, span.stop), rows))

    def meet(self, peer: Peer, inputs: Sequence[str]) -> None:
        """A teacher has come, whose model has these inputs; of which content, says who knows it."""
        if peer.content_id and (peer.numerics_id or not self._numerics.matter):
            content = self._content(peer.content_id, peer.numerics_id)
            self._learn(Model(content, tuple(inputs)))

    def disown(self, teacher: str) -> None:
        """StoreRows nothing that this teacher has labelled, today or before: it is not believed."""
        self._keeper.tell(RemoveRows(teacher))

    def forget(self, number: int) -> None:
        """Nothing more will come for this batch."""
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
        """Flush what is to be kept, and let go of the store."""
        self._keeper.close()

    # --- what the keeper says, in the engine's thread

    def opened(self, remembered: Model | None) -> None:
        """The store is open, or will do without."""
        self._opened = True
        if remembered is not None and self._numerics.admits(remembered.content.numerics_id):
            self._remembered = remembered

    def failed(self, error: EdlError) -> None:
        """It cannot be opened, for a reason that the user has to know."""
        self._on_failed(error, True)

    def looked(self, identity: Identity, cached_labels: CachedLabels) -> None:
        """This is what there is for a batch."""
        for turn in self._turns:
            if turn.batch.number == identity.number:
                turn.looking = False
                if self._model is not None and identity.content == self._model.content:
                    whole = not cached_labels.missing(turn.batch.rows)
                    turn.cached_labels = (
                        cached_labels if whole or not self._numerics.matter else NOTHING
                    )
                    self._known[identity.number] = identity
                break  # else the model has changed meanwhile: it is looked up again
        self._hand_on()

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
            self._keeper.remember(model)

    def _identity_of(self, batch: Batch, content: Content) -> Identity | None:
        """Which samples a batch has; None where its memory is another one's by now.

        Labels are kept under keys of the very bytes that were labelled: those of a batch of an
        epoch that was left may have been written over before anybody here heard of it.
        """
        known = self._known.get(batch.number)
        if known is None or known.content != content:
            assert self._model is not None
            try:
                known = identity_of(self._look_of(batch, replace(self._model, content=content)))
            except UsageError as error:
                self._on_failed(error, False)
                return None
        return known if known is not None and self._stays(batch) else None

    def _stays(self, batch: Batch) -> bool:
        first = next(iter(batch.fields.values()), None)
        return first is not None and self._ring.generation(first.offset) == batch.generation

    def _begin(self, turn: _Turn) -> None:
        assert self._model is not None
        if not turn.batch.is_even:  # its rows cannot be told apart
            turn.cached_labels = NOTHING
            return
        try:
            self._keeper.tell(self._look_of(turn.batch, self._model))
        except UsageError as error:
            self._on_failed(error, False)
            turn.cached_labels = NOTHING
        else:
            turn.looking = True

    def _look_of(self, batch: Batch, model: Model) -> Lookup:
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

    def _hand_on(self) -> None:
        while self._turns and (cached_labels := self._turns[0].cached_labels) is not None:
            turn = self._turns.popleft()
            self._again -= turn.again
            self._on_turn(turn.batch, cached_labels)
