"""The queue of batches that puller, receiver and training loop share.

A batch enters when the source yields it, gets its outcome (labels or an error) from the engine,
may be taken once the engine releases it, and leaves when the training loop takes it. Batch numbers
grow over the whole life of a reader, so that messages about an epoch that was left are recognised.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..errors import EdlError
from ..proto.arena import Array, Record
from .batches import BatchLabels, LabelledBatch, RingBatch
from .saved_state import Progress, StreamPosition
from .sources.source import Mark
from .structure import Parts


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The content of a stream at one moment.

    Attributes:
        epoch: the current one.
        data_epoch: epochs begun over the source, this one included.
        batches: all that are not taken, in order.
        outcomes: labels or error by number, as far as they arrived.
        released: numbers of the batches that may be taken.
        pulled: number of the next batch.
        ended: whether the source has ended.
        waiting: whether the training loop waits.
    """

    epoch: int
    data_epoch: int
    batches: list[RingBatch]
    outcomes: Mapping[int, BatchLabels | EdlError]
    released: frozenset[int]
    pulled: int
    ended: bool
    waiting: bool


class Stream:
    """The batches between source and training loop; every method may be called by any thread.

    Attributes:
        undelivered: the batch that was taken last and what is made of it. The training loop sets
            it to None once it has the batch; not by a call, which a Ctrl-C could interrupt.
        epoch: number of the current one, or of the empty one after one that was left; changed by
            `begin` alone.
        data_epoch: how many epochs were begun over the source.
        delivered: batches that were taken, over all epochs.
        samples_delivered: their rows.
        unlabelled: batches among them without soft labels.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for the training loop
        self._room = threading.Condition(self._lock)  # for the puller, which is woken less often
        self._waiting: dict[int, RingBatch] = {}  # by number, in order: not taken
        self._outcomes: dict[int, LabelledBatch | EdlError] = {}
        self._released: dict[int, None] = {}  # numbers of those that may be taken, the next first
        self._next_number = 0
        self._limit = 0
        self._progress = Progress()
        self._last: tuple[StreamPosition, int] | None = None  # taken, and not in `_progress` yet
        self.undelivered: tuple[RingBatch, Any] | None = None
        self._complete = False  # the source has ended the epoch, and the training loop not yet
        self._end: Mark | None = None  # where the source stands behind it
        self.epoch = 0
        self.data_epoch = 0
        self.delivered = 0
        self.samples_delivered = 0
        self.unlabelled = 0
        self._ended = False
        self._loop_waits = False
        self._source_error: BaseException | None = None
        self._fatal: EdlError | None = None
        self._dead = False  # _fatal is for good

    # --- the epoch

    def begin(self, *, empty: bool = False) -> int:
        """Drop the current epoch and begin a new one; returns its number.

        Args:
            empty: nothing will be pulled in the new one.
        """
        with self._lock:
            self._progress = self.progress
            self._last = self.undelivered = None
            self.epoch += 1
            self.data_epoch += not empty
            self._waiting.clear()
            self._outcomes.clear()
            self._released.clear()
            self._ended = self._complete = False
            self._source_error = None
            if not self._dead:
                self._fatal = None
            self._loop_waits = False
            self._changed.notify_all()
            self._room.notify_all()
            return self.epoch

    def stand(self, progress: Progress) -> None:
        """Set the position in the source that the epoch begins or resumes at."""
        with self._lock:
            self._progress = progress

    @property
    def progress(self) -> Progress:
        """What of the source was delivered."""
        with self._lock:
            if self._last is None or self.undelivered is not None:
                return self._progress
            return self._progress.delivered(*self._last)

    # --- the puller's side

    @property
    def has_room(self) -> bool:
        """Whether the engine allows another batch now."""
        return self._next_number < self._limit

    def may_pull(self, epoch: int) -> bool:
        """Wait until the engine allows another batch; False once the epoch is over."""
        with self._lock:
            while self.epoch == epoch and not self._dead and not self.has_room:
                self._room.wait()
            return self.epoch == epoch and not self._dead

    def add(
        self,
        epoch: int,
        record: Record,
        arrays: Sequence[Array],
        parts: Parts,
        position: StreamPosition,
        source_s: float = 0.0,
    ) -> RingBatch | None:
        """Enter a batch in the ring; None when the epoch was left meanwhile."""
        with self._lock:
            if self.epoch != epoch:
                return None
            number = self._next_number
            self._next_number += 1
            pulled = RingBatch(number, record, tuple(arrays), parts, position, source_s)
            self._waiting[number] = pulled
            return pulled

    def had_before(self, epoch: int, position: StreamPosition) -> bool:
        """Whether the batch at `position` was delivered before; it does not enter again."""
        with self._lock:
            if self.epoch != epoch or position.ordinal not in self._progress.ahead:
                return False
            self._progress = self._progress.delivered(position, samples=0)
            return True

    def end(self, epoch: int, error: BaseException | None, mark: Mark | None = None) -> bool:
        """The source has no more batches, or raised `error`, which is raised after the last one.

        Args:
            epoch: the one that has ended.
            error: what the source raised.
            mark: the source's position after the epoch.

        Returns:
            Whether the epoch is still the current one.
        """
        with self._lock:
            if self.epoch != epoch:
                return False
            self._ended = True
            self._source_error = error
            self._complete, self._end = error is None, mark
            self._changed.notify_all()
            return True

    @property
    def pulled(self) -> int:
        """Batches that came from the source, over all epochs."""
        with self._lock:
            return self._next_number

    @property
    def ready(self) -> int:
        """Batches that have their outcome and are not taken yet."""
        return len(self._outcomes)

    # --- the receiver's side

    def allow(self, limit: int) -> None:
        """Batches of a number below `limit` may be pulled."""
        with self._lock:
            self._limit = max(self._limit, limit)
            self._room.notify_all()

    def settle(self, number: int, outcome: BatchLabels | EdlError) -> None:
        """Set the outcome of batch `number`; no effect if it was left or has one.

        What the training loop gets is made here, in the caller's thread.
        """
        if (pulled := self._waiting.get(number)) is None:
            return
        made = LabelledBatch.of(pulled, outcome) if isinstance(outcome, BatchLabels) else outcome
        with self._lock:
            if number in self._outcomes or self._waiting.get(number) is not pulled:
                return
            self._outcomes[number] = made

    def withdraw(self, number: int) -> None:
        """Forget the outcome of a batch that is not released: it gets another."""
        with self._lock:
            self._outcomes.pop(number, None)

    def release(self, numbers: Iterable[int]) -> None:
        """Allow these batches to be taken in this order, as far as they have their outcome."""
        with self._lock:
            self._released |= {n: None for n in numbers if n in self._outcomes}
            self._changed.notify_all()

    def fail(self, error: EdlError, epoch: int | None = None) -> None:
        """Raise `error` in the training loop, in `epoch` or from now on."""
        with self._lock:
            if not self._dead and epoch in (None, self.epoch):
                self._fatal, self._dead = error, epoch is None
            self._changed.notify_all()
            self._room.notify_all()

    @contextmanager
    def snapshot(self) -> Iterator[StreamSnapshot]:
        """Hold the lock and yield the content of the stream."""
        with self._lock:
            outcomes = {
                number: outcome.labels if isinstance(outcome, LabelledBatch) else outcome
                for number, outcome in self._outcomes.items()
            }
            yield StreamSnapshot(
                self.epoch,
                self.data_epoch,
                [*self._waiting.values()],
                outcomes,
                frozenset(self._released),
                self._next_number,
                self._ended,
                self._loop_waits,
            )

    # --- the training loop's side

    def next(self, epoch: int, timeout_s: float | None) -> LabelledBatch | None:
        """Wait for the next batch in order, and leave it in the stream; None after the timeout.

        Raises:
            StopIteration: the source has ended and every batch was taken.
            BaseException: what the source raised, after its last batch; once.
            EdlError: the batch or the stream has failed.
        """
        with self._lock:
            if self.epoch == epoch and (labelled := self._next()) is not None:
                return labelled
            if self.epoch == epoch:
                self._loop_waits = not self._is_due(epoch)
            if not self._changed.wait_for(partial(self._is_due, epoch), timeout_s):
                return None
            if self.epoch == epoch:
                self._loop_waits = False
                if (labelled := self._next()) is not None:
                    return labelled
            raise self._end_of(epoch)

    def take(self, epoch: int, labelled: LabelledBatch, batch: Any = None) -> bool:
        """Deliver a batch that `next` has returned; False if it was left or taken.

        Args:
            epoch: of the batch.
            labelled: the batch.
            batch: becomes `undelivered`, with the batch, unless it is None.
        """
        with self._lock:
            pulled = labelled.pulled
            if self.epoch != epoch or self._outcomes.get(pulled.number) is not labelled:
                return False
            number, last = pulled.number, (pulled.position, pulled.parts.samples)
            progress = self.progress
            # No calls until it is done: a Ctrl-C must not interrupt it halfway.
            self._progress, self._last = progress, last
            self.undelivered = None if batch is None else (pulled, batch)
            self.delivered += 1
            self.samples_delivered += last[1]
            self.unlabelled += labelled.labels.record is None
            del self._released[number], self._outcomes[number], self._waiting[number]
            return True

    def _is_due(self, epoch: int) -> bool:
        if self.epoch != epoch or self._fatal is not None:
            return True
        return bool(self._released) if self._waiting else self._ended

    def _next(self) -> LabelledBatch | None:
        if (number := next(iter(self._released), None)) is None:
            return None
        self._loop_waits = False
        outcome = self._outcomes[number]
        if not isinstance(outcome, LabelledBatch):
            raise _copy(outcome)
        return outcome

    def _end_of(self, epoch: int) -> BaseException:
        """The exception to raise when no batch follows."""
        if self._fatal is not None and (self._dead or self.epoch == epoch):
            return _copy(self._fatal)
        if self.epoch != epoch:
            return StopIteration()
        if self._source_error is None:
            if self._complete:
                self._complete = False
                self._progress = Progress(self._progress.epoch + 1, mark=self._end)
                self._last = None
            return StopIteration()
        error, self._source_error = self._source_error, None
        return error


def _copy(error: EdlError) -> EdlError:
    """A copy for raising: a raised error holds every frame that it passed, so it is not kept."""
    return type(error)(*error.args)
