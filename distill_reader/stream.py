"""What the puller, the receiver and the training loop share: the batches on their way, in order.

A batch enters when the source yields it, gets its outcome (labels, or an error that names it) when
the engine has one, may be taken once the engine releases it, and leaves when the training loop
takes it. Batch numbers grow over the whole life of a reader, so that whatever still arrives from an
epoch that was left is recognised.
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
from .labelled import Labelled, Labels, Pulled
from .saved_state import Progress, StreamPosition
from .sources.source import Mark
from .structure import Parts


@dataclass(frozen=True, slots=True)
class Held:
    """All that a stream holds at one moment.

    Attributes:
        epoch: the current one.
        data_epoch: epochs begun over the source, this one included.
        batches: all that are not taken, in order.
        outcomes: of those that have one, by number: their labels, or the error that they are.
        released: numbers of those that may be taken.
        pulled: number of the next batch.
        ended: whether the source has no more.
        waiting: whether the training loop waits.
    """

    epoch: int
    data_epoch: int
    batches: list[Pulled]
    outcomes: Mapping[int, Labels | EdlError]
    released: frozenset[int]
    pulled: int
    ended: bool
    waiting: bool


class Stream:
    """The batches between source and training loop; every method may be called by any thread.

    Attributes:
        undelivered: the batch that was taken last and what is made of it, until the training loop
            has it, which it says by None: without a call, so that no Ctrl-C comes in between.
        epoch: number of the current one, also of the nothing behind one that was left; changed by
            `begin` alone.
        data_epoch: how many of them were begun over the source.
        delivered: batches that were taken, over all epochs.
        samples_delivered: rows of those.
        unlabelled: those of the batches that had no soft labels.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)  # for the training loop
        self._room = threading.Condition(self._lock)  # for the puller: it is woken less often
        self._waiting: dict[int, Pulled] = {}  # by number, in order: not taken
        self._outcomes: dict[int, Labelled | EdlError] = {}
        self._released: dict[int, None] = {}  # numbers of those that may be taken, the next first
        self._next_number = 0
        self._limit = 0
        self._progress = Progress()
        self._last: tuple[StreamPosition, int] | None = None  # taken, and not in `_progress` yet
        self.undelivered: tuple[Pulled, Any] | None = None
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
        """Leave the current epoch for a new one, whose number is returned; what it held is gone.

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
        """The epoch begins, or what is loaded goes on, at this place of the source."""
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
        """Wait until the engine allows another batch; False when none is wanted any more."""
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
        place: StreamPosition,
        source_s: float = 0.0,
    ) -> Pulled | None:
        """Enter a batch that lies in the ring now; None when the epoch was left meanwhile."""
        with self._lock:
            if self.epoch != epoch:
                return None
            number = self._next_number
            self._next_number += 1
            pulled = Pulled(number, record, tuple(arrays), parts, place, source_s)
            self._waiting[number] = pulled
            return pulled

    def had_before(self, epoch: int, place: StreamPosition) -> bool:
        """Whether the batch at `place` was delivered before, so that it does not enter again."""
        with self._lock:
            if self.epoch != epoch or place.ordinal not in self._progress.ahead:
                return False
            self._progress = self._progress.delivered(place, samples=0)
            return True

    def end(self, epoch: int, error: BaseException | None, mark: Mark | None = None) -> bool:
        """The source has no more batches, or raised `error`, to be raised behind the last one.

        Args:
            epoch: the one that has ended.
            error: what the source raised.
            mark: where the source stands behind the epoch.

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

    def settle(self, number: int, outcome: Labels | EdlError) -> None:
        """Give batch `number` its outcome; without effect when none is wanted (left, or settled).

        What the training loop is to get is made here, in the thread of whoever calls this.
        """
        if (pulled := self._waiting.get(number)) is None:
            return
        made = Labelled.of(pulled, outcome) if isinstance(outcome, Labels) else outcome
        with self._lock:
            if number in self._outcomes or self._waiting.get(number) is not pulled:
                return
            self._outcomes[number] = made

    def withdraw(self, number: int) -> None:
        """Forget the outcome of a batch that is not released: it gets another."""
        with self._lock:
            self._outcomes.pop(number, None)

    def release(self, numbers: Iterable[int]) -> None:
        """These batches may be taken, one after the other; without effect on those that were left.

        Each has its outcome, or the stream fails.
        """
        with self._lock:
            self._released |= {n: None for n in numbers if n in self._outcomes}
            self._changed.notify_all()

    def fail(self, error: EdlError, epoch: int | None = None) -> None:
        """Nothing more will come, in `epoch` or for good: raise `error` in the training loop."""
        with self._lock:
            if not self._dead and epoch in (None, self.epoch):
                self._fatal, self._dead = error, epoch is None
            self._changed.notify_all()
            self._room.notify_all()

    @contextmanager
    def held(self) -> Iterator[Held]:
        """What it holds, while nothing can change that."""
        with self._lock:
            outcomes = {
                number: outcome.labels if isinstance(outcome, Labelled) else outcome
                for number, outcome in self._outcomes.items()
            }
            yield Held(
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

    def next(self, epoch: int, timeout_s: float | None) -> Labelled | None:
        """The next batch in order, waiting for it at most so long; None when it is not there yet.

        It stays the next one until it is taken.

        Raises:
            StopIteration: the source has ended and every batch was taken.
            BaseException: what the source raised, behind its last batch; once.
            EdlError: what the mesh cannot mend.
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

    def take(self, epoch: int, labelled: Labelled, batch: Any = None) -> bool:
        """Deliver a batch that `next` has returned; False if that was left or taken.

        Args:
            epoch: of which it is.
            labelled: the batch.
            batch: what is made of it, if it is `undelivered` from now on.
        """
        with self._lock:
            pulled = labelled.pulled
            if self.epoch != epoch or self._outcomes.get(pulled.number) is not labelled:
                return False
            number, last = pulled.number, (pulled.place, pulled.parts.samples)
            progress = self.progress
            # All or nothing, also where there is a Ctrl-C: no calls until it is done.
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

    def _next(self) -> Labelled | None:
        if (number := next(iter(self._released), None)) is None:
            return None
        self._loop_waits = False
        outcome = self._outcomes[number]
        if not isinstance(outcome, Labelled):
            raise _copy(outcome)
        return outcome

    def _end_of(self, epoch: int) -> BaseException:
        """What there is to be raised where no batch is to come."""
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
    """For raising: what was raised holds every frame that it went through, so it is not kept."""
    return type(error)(*error.args)
