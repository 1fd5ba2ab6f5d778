"""The queue of batches that the puller, the receiver and the training loop share.

A batch enters when the source yields it, and gets its outcome (labels or an error) from the engine.
The training loop may take it once the engine has released it. Batch numbers grow over the whole
life of a reader, so that messages about batches of an earlier epoch are recognised. Batches of
`TeacherPool` calls get their numbers from the same sequence.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

from ..proto.arena import Array, Record
from ..runtime.errors import EdlError
from .saved_state import StreamPosition, StreamProgress
from .sources.source import Mark
from .structure import BatchParts, put_together


@dataclass(frozen=True, slots=True)
class RingBatch:
    """A batch in the ring; its memory is reused once `arrays` and all views of them are gone.

    Attributes:
        number: number of the batch over all epochs.
        record: where its arrays are in the ring.
        arrays: views of the ring's memory.
        parts: the structure of the batch, without its arrays.
        position: position of the batch in the source.
        source_s: seconds that the source took to yield it.
    """

    number: int
    record: Record
    arrays: tuple[Array, ...]
    parts: BatchParts
    position: StreamPosition
    source_s: float = 0.0


@dataclass(frozen=True, slots=True)
class BatchLabels:
    """The labels of a batch.

    Attributes:
        arrays: labels by name, views of the engine's arena; each is None for an unlabelled batch.
        record: where the labels are in the arena; None for an unlabelled batch.
        makers: the teachers that labelled the batch, by service. If this engine dies, the next one
            needs them to revoke labels of a teacher that proves wrong.
    """

    arrays: Mapping[str, Array | None]
    record: Record | None = None
    makers: Mapping[str, Sequence[str]] = field(default_factory=dict)


class LabelledBatch(NamedTuple):
    """A batch and its labels.

    Attributes:
        ring_batch: the batch in the ring.
        labels: its labels.
        prepared: the batch as the training loop gets it; None: `batch` makes it later.
    """

    ring_batch: RingBatch
    labels: BatchLabels
    prepared: Any

    @classmethod
    def of(cls, ring_batch: RingBatch, labels: BatchLabels) -> Self:
        """Combine a batch and its labels now if the batch contains only numpy arrays.

        Otherwise `batch` makes the tensors when the training loop takes the batch, so that batches
        that wait occupy no device memory.
        """
        prepared = None
        if ring_batch.parts.plain:
            with suppress(Exception):  # `batch` raises it in the training loop
                prepared = put_together(ring_batch.parts.skeleton, ring_batch.arrays, labels.arrays)
        return cls(ring_batch, labels, prepared)

    def batch(self) -> Any:
        """Return the batch as the training loop gets it.

        Raises:
            UsageError, BatchError: see `put_together`.
        """
        if self.prepared is not None:
            return self.prepared
        ring_batch = self.ring_batch
        return put_together(ring_batch.parts.skeleton, ring_batch.arrays, self.labels.arrays)


@dataclass(frozen=True, slots=True)
class StreamSnapshot:
    """The content of a stream at one moment.

    Attributes:
        batches: batches not taken yet, in order.
        outcomes: labels or error by number, of each batch that has one.
        released: numbers of the batches that may be taken.
        ended: whether the source has ended.
        waiting: whether the training loop waits.
    """

    batches: list[RingBatch]
    outcomes: Mapping[int, BatchLabels | EdlError]
    released: frozenset[int]
    ended: bool
    waiting: bool


class BatchStream:
    """The batches between source and training loop. Thread-safe.

    Attributes:
        undelivered: the batch that was taken last, and the object that the training loop gets for
            it. The training loop sets this to None once it has the object. It does so by an
            assignment, because Ctrl-C could interrupt a call.
        epoch: number of the current epoch; only `begin` changes it.
        data_epoch: number of epochs begun to read the source, or to send calls to teachers of a new
            content. An epoch that begins only to drop the batches of the previous one does not
            count.
        delivered: batches taken, over all epochs.
        samples_delivered: rows of the batches taken.
        unlabelled: batches taken without soft labels.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for the training loop
        self._room = threading.Condition(self._lock)  # for the puller, which is woken less often
        self._waiting: dict[int, RingBatch] = {}  # not taken; by number, in order
        self._outcomes: dict[int, LabelledBatch | EdlError] = {}
        self._released: dict[int, None] = {}  # numbers of batches that may be taken, in order
        self._numbers = itertools.count()
        self._pulled = 0
        self._limit = 0
        self._progress = StreamProgress()
        self._last_taken: tuple[StreamPosition, int] | None = None  # taken; not yet in `_progress`
        self.undelivered: tuple[RingBatch, Any] | None = None
        # The source ended the epoch without an error, and the training loop was not told yet.
        self._complete = False
        self._end_mark: Mark | None = None  # the source's position after the epoch
        self.epoch = 0
        self.data_epoch = 0
        self.delivered = 0
        self.samples_delivered = 0
        self.unlabelled = 0
        self._ended = False
        self._loop_waits = False
        self._source_error: BaseException | None = None
        self._fatal: EdlError | None = None
        self._dead = False  # `_fatal` is raised in every epoch

    # --- the epoch

    def begin(self, *, counts: bool = True) -> int:
        """Drop the current epoch and begin a new one; returns its number.

        Args:
            counts: whether `data_epoch` counts the new epoch.
        """
        with self._lock:
            self._progress = self.progress
            self._last_taken = self.undelivered = None
            self.epoch += 1
            self.data_epoch += counts
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

    def set_progress(self, progress: StreamProgress) -> None:
        """Set the position in the source where the epoch begins or resumes."""
        with self._lock:
            self._progress = progress

    @property
    def progress(self) -> StreamProgress:
        """The delivered part of the source, without the batch in `undelivered`."""
        with self._lock:
            if self._last_taken is None or self.undelivered is not None:
                return self._progress
            return self._progress.with_delivery(*self._last_taken)

    # --- the puller's side

    @property
    def has_room(self) -> bool:
        """Whether the engine allows another batch now."""
        return self._pulled < self._limit

    def may_pull(self, epoch: int) -> bool:
        """Wait until the engine allows another batch.

        Returns:
            False if the epoch was left, or if the stream has failed for every epoch.
        """
        with self._lock:
            while self._pulled >= self._limit and self.epoch == epoch and not self._dead:
                self._room.wait()
            return self.epoch == epoch and not self._dead

    def add(
        self,
        epoch: int,
        record: Record,
        arrays: Sequence[Array],
        parts: BatchParts,
        position: StreamPosition,
        source_s: float = 0.0,
    ) -> RingBatch | None:
        """Add and return a batch that is in the ring; None if the epoch was left meanwhile.

        Args:
            epoch: epoch of the batch.
            record: where its arrays are in the ring.
            arrays: views of these arrays.
            parts: the structure of the batch.
            position: position of the batch in the source.
            source_s: seconds that the source took to yield it.
        """
        with self._lock:
            if self.epoch != epoch:
                return None
            self._pulled += 1
            number = next(self._numbers)
            ring_batch = RingBatch(number, record, tuple(arrays), parts, position, source_s)
            self._waiting[number] = ring_batch
            return ring_batch

    def next_number(self) -> int:
        """Return a new number for a batch. Thread-safe; numbers grow."""
        return next(self._numbers)

    def count_if_delivered(self, epoch: int, position: StreamPosition) -> bool:
        """Count the batch at `position` in the progress if the loaded state says it was delivered.

        Returns:
            True if the state says so; the caller must then skip the batch.
        """
        with self._lock:
            if self.epoch != epoch or position.ordinal not in self._progress.ahead:
                return False
            self._progress = self._progress.with_delivery(position, samples=0)
            return True

    def end(self, epoch: int, error: BaseException | None, mark: Mark | None = None) -> bool:
        """End the epoch: the source has no more batches.

        Args:
            epoch: the epoch that has ended.
            error: what the source raised; the training loop gets it after the last batch.
            mark: the source's position after the epoch.

        Returns:
            Whether the epoch is still the current one.
        """
        with self._lock:
            if self.epoch != epoch:
                return False
            self._ended = True
            self._source_error = error
            self._complete, self._end_mark = error is None, mark
            self._changed.notify_all()
            return True

    @property
    def pulled(self) -> int:
        """Batches added from the source, over all epochs."""
        return self._pulled

    @property
    def ready(self) -> int:
        """Batches with an outcome that are not taken yet."""
        return len(self._outcomes)

    # --- the receiver's side

    def allow(self, limit: int) -> None:
        """Allow `limit` batches to be pulled, over all epochs."""
        with self._lock:
            self._limit = max(self._limit, limit)
            self._room.notify_all()

    def set_outcome(self, number: int, outcome: BatchLabels | EdlError) -> bool:
        """Set the outcome of batch `number`; no effect if it has one, or its epoch was left.

        The batch and its labels are combined in the caller's thread.

        Returns:
            False if the stream has no such batch: it belongs to a call, or to an epoch that was
            left.
        """
        if (ring_batch := self._waiting.get(number)) is None:
            return False
        result = (
            LabelledBatch.of(ring_batch, outcome) if isinstance(outcome, BatchLabels) else outcome
        )
        with self._lock:
            if number not in self._outcomes and self._waiting.get(number) is ring_batch:
                self._outcomes[number] = result
        return True

    def withdraw(self, number: int) -> None:
        """Forget the outcome of a batch that is not released; the engine will send a new one."""
        with self._lock:
            self._outcomes.pop(number, None)

    def release(self, numbers: Iterable[int]) -> None:
        """Allow these batches to be taken in this order; ignore those without an outcome."""
        with self._lock:
            for number in numbers:
                if number in self._outcomes:
                    self._released[number] = None
            self._changed.notify_all()

    def fail(self, error: EdlError, epoch: int | None = None) -> None:
        """Have the training loop raise `error` in `epoch`; None: in every epoch."""
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
                [*self._waiting.values()],
                outcomes,
                frozenset(self._released),
                self._ended,
                self._loop_waits,
            )

    # --- the training loop's side

    def next(self, epoch: int, timeout_s: float) -> LabelledBatch | None:
        """Wait for the next released batch, and leave it in the stream.

        Args:
            epoch: epoch of the batch.
            timeout_s: seconds to wait.

        Returns:
            The batch; None after the timeout.

        Raises:
            StopIteration: the source has ended and every batch was taken, or the epoch was left.
            BaseException: what the source raised; once, after the source's last batch.
            EdlError: the batch or the stream has failed.
        """
        deadline = time.monotonic() + timeout_s
        with self._lock:
            while self.epoch == epoch:
                if (number := next(iter(self._released), None)) is not None:
                    self._loop_waits = False
                    outcome = self._outcomes[number]
                    if isinstance(outcome, LabelledBatch):
                        return outcome
                    raise copy_error(outcome)
                is_over = self._ended and not self._waiting
                self._loop_waits = not is_over and self._fatal is None
                if not self._loop_waits:
                    break
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return None
                self._changed.wait(left_s)
            raise self._end_of(epoch)

    def take(self, epoch: int, labelled: LabelledBatch, batch: Any = None) -> bool:
        """Mark a batch that `next` has returned as taken.

        Args:
            epoch: epoch of the batch.
            labelled: the batch.
            batch: what the training loop gets; becomes `undelivered` unless it is None.

        Returns:
            False if the epoch was left or the batch taken meanwhile.
        """
        with self._lock:
            ring_batch = labelled.ring_batch
            if self.epoch != epoch or self._outcomes.get(ring_batch.number) is not labelled:
                return False
            number, samples = ring_batch.number, ring_batch.parts.samples
            progress, last_taken = self.progress, (ring_batch.position, samples)
            # The statements below call no function: a Ctrl-C cannot interrupt them halfway.
            self._progress, self._last_taken = progress, last_taken
            self.undelivered = None if batch is None else (ring_batch, batch)
            self.delivered += 1
            self.samples_delivered += samples
            self.unlabelled += labelled.labels.record is None
            del self._released[number], self._outcomes[number], self._waiting[number]
            return True

    def _end_of(self, epoch: int) -> BaseException:
        """Return the exception to raise because no batch follows."""
        if self._fatal is not None and (self._dead or self.epoch == epoch):
            return copy_error(self._fatal)
        if self.epoch != epoch:
            return StopIteration()
        if self._source_error is None:
            if self._complete:
                self._complete = False
                self._progress = StreamProgress(self._progress.epoch + 1, mark=self._end_mark)
                self._last_taken = None
            return StopIteration()
        error, self._source_error = self._source_error, None
        return error


def copy_error(error: EdlError) -> EdlError:
    """Copy an error to raise the copy: a raised error keeps every frame alive that it passed."""
    return type(error)(*error.args)
