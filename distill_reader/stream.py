"""What the puller, the receiver and the training loop share: the batches on their way, in order.

A batch enters when the source yields it, gets its outcome (labels, or an error that names it) when
the engine has one, and leaves when the training loop takes it. Batch numbers grow over the whole
life of a reader, so that whatever still arrives from an epoch that was left is recognised.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..errors import EdlError
from ..proto.arena import Arena, Record
from .structure import Parts


@dataclass(frozen=True, slots=True)
class Pulled:
    """A batch that lies in the ring; `source_s` is the time the source took to yield it."""

    number: int
    record: Record
    parts: Parts
    source_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Labels:
    """Where the labels of a batch lie; `arena` is the one of the engine that wrote them."""

    names: tuple[str, ...]
    record: Record
    arena: Arena


@dataclass(frozen=True, slots=True)
class Labelled:
    """A batch and its labels, ready for the training loop."""

    pulled: Pulled
    labels: Labels


@dataclass(frozen=True, slots=True)
class Held:
    """All that a stream holds at one moment.

    Attributes:
        epoch: the current one.
        data_epoch: epochs begun over the source, this one included.
        labelled: batches that have their outcome and are not taken yet: the first in line.
        unlabelled: the batches behind them.
        pulled: number of the next batch.
        ended: whether the source has no more.
        waiting: whether the training loop waits.
    """

    epoch: int
    data_epoch: int
    labelled: list[Pulled]
    unlabelled: list[Pulled]
    pulled: int
    ended: bool
    waiting: bool


class Stream:
    """The batches between source and training loop; every method may be called by any thread.

    Attributes:
        epoch: number of the current one, also of the nothing behind one that was left; changed by
            `begin` alone.
        data_epoch: how many of them were begun over the source.
        delivered: batches that were taken, over all epochs.
        samples_delivered: rows of those.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Pulled] = deque()  # in order, without their outcome or untaken
        self._outcomes: dict[int, Labels | EdlError] = {}
        self._next_number = 0
        self._limit = 0
        self.epoch = 0
        self.data_epoch = 0
        self.delivered = 0
        self.samples_delivered = 0
        self._ended = False
        self._loop_waits = False
        self._source_error: BaseException | None = None
        self._fatal: EdlError | None = None
        self._dead = False  # _fatal is for good

    # --- the epoch

    def begin(self, *, empty: bool = False) -> tuple[Held, list[Labels]]:
        """Leave the current epoch for a new one: what the old one held, the labels it had.

        Args:
            empty: nothing will be pulled in the new one.
        """
        with self._changed:
            held = self._held()
            self.epoch += 1
            self.data_epoch += not empty
            labels = [out for out in self._outcomes.values() if isinstance(out, Labels)]
            self._waiting.clear()
            self._outcomes.clear()
            self._ended = False
            self._source_error = None
            if not self._dead:
                self._fatal = None
            self._loop_waits = False
            self._changed.notify_all()
            return held, labels

    # --- the puller's side

    def may_pull(self, epoch: int) -> bool:
        """Wait until the engine allows another batch; False when none is wanted any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self.epoch != epoch or self._dead or self._next_number < self._limit
            )
            return self.epoch == epoch and not self._dead

    def add(self, epoch: int, record: Record, parts: Parts, source_s: float = 0.0) -> Pulled | None:
        """Enter a batch that lies in the ring now; None when the epoch was left meanwhile."""
        with self._changed:
            if self.epoch != epoch:
                return None
            pulled = Pulled(self._next_number, record, parts, source_s)
            self._next_number += 1
            self._waiting.append(pulled)
            self._changed.notify_all()
            return pulled

    def end(self, epoch: int, error: BaseException | None) -> bool:
        """The source has no more batches, or raised `error`, to be raised behind the last one.

        Returns:
            Whether the epoch is still the current one.
        """
        with self._changed:
            if self.epoch != epoch:
                return False
            self._ended = True
            self._source_error = error
            self._changed.notify_all()
            return True

    @property
    def pulled(self) -> int:
        """Batches that came from the source, over all epochs."""
        with self._changed:
            return self._next_number

    # --- the receiver's side

    def allow(self, limit: int) -> None:
        """Batches of a number below `limit` may be pulled."""
        with self._changed:
            self._limit = max(self._limit, limit)
            self._changed.notify_all()

    def settle(self, number: int, outcome: Labels | EdlError) -> bool:
        """Give batch `number` its outcome; False when it is not wanted (left, or settled)."""
        with self._changed:
            first = self._waiting[0].number if self._waiting else self._next_number
            if number in self._outcomes or not first <= number < self._next_number:
                return False
            self._outcomes[number] = outcome
            self._changed.notify_all()
            return True

    def fail(self, error: EdlError, epoch: int | None = None) -> None:
        """Nothing more will come, in `epoch` or for good: raise `error` in the training loop."""
        with self._changed:
            if not self._dead and epoch in (None, self.epoch):
                self._fatal, self._dead = error, epoch is None
            self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[Held]:
        """What it holds, while nothing can change that."""
        with self._changed:
            yield self._held()

    def _held(self) -> Held:
        labelled = [p for p in self._waiting if p.number in self._outcomes]
        unlabelled = [p for p in self._waiting if p.number not in self._outcomes]
        return Held(
            self.epoch,
            self.data_epoch,
            labelled,
            unlabelled,
            self._next_number,
            self._ended,
            self._loop_waits,
        )

    # --- the training loop's side

    def take(self, epoch: int, timeout_s: float | None) -> Labelled | None:
        """The next batch in order, waiting for it at most so long; None when it is not there yet.

        Raises:
            StopIteration: the source has ended and every batch was taken.
            BaseException: what the source raised, behind its last batch; once.
            EdlError: what the mesh cannot mend.
        """
        with self._changed:
            if self.epoch == epoch:
                self._loop_waits = not self._is_due(epoch)
            if not self._changed.wait_for(lambda: self._is_due(epoch), timeout_s):
                return None
            if self.epoch == epoch:
                self._loop_waits = False
            return self._due(epoch)

    def _is_due(self, epoch: int) -> bool:
        if self.epoch != epoch or self._fatal is not None:
            return True
        if not self._waiting:
            return self._ended
        return self._waiting[0].number in self._outcomes

    def _due(self, epoch: int) -> Labelled:
        if self.epoch == epoch and self._waiting and self._waiting[0].number in self._outcomes:
            return self._pop()
        if self._fatal is not None and (self._dead or self.epoch == epoch):
            raise _copy(self._fatal)
        if self.epoch != epoch or self._source_error is None:
            raise StopIteration
        error, self._source_error = self._source_error, None
        raise error

    def _pop(self) -> Labelled:
        pulled = self._waiting[0]
        outcome = self._outcomes[pulled.number]
        if isinstance(outcome, EdlError):
            raise _copy(outcome)
        del self._outcomes[pulled.number]
        self._waiting.popleft()
        self.delivered += 1
        self.samples_delivered += pulled.parts.samples
        return Labelled(pulled, outcome)


def _copy(error: EdlError) -> EdlError:
    """For raising: what was raised holds every frame that it went through, so it is not kept."""
    return type(error)(*error.args)
