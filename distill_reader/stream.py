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


class Stream:
    """The batches between source and training loop; every method may be called by any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Pulled] = deque()  # in order, without their outcome or untaken
        self._outcomes: dict[int, Labels | EdlError] = {}
        self._next_number = 0
        self._limit = 0
        self.epoch = 0  # read by any thread; changed by begin() alone
        self._ended = False
        self._source_error: BaseException | None = None
        self._fatal: EdlError | None = None
        self._dead = False  # _fatal is for good

    # --- the epoch

    def begin(self) -> tuple[int, list[Pulled], list[Labels]]:
        """Leave the current epoch for a new one: its number, and what the old one still held."""
        with self._changed:
            self.epoch += 1
            left = list(self._waiting)
            labels = [out for out in self._outcomes.values() if isinstance(out, Labels)]
            self._waiting.clear()
            self._outcomes.clear()
            self._ended = False
            self._source_error = None
            if not self._dead:
                self._fatal = None
            self._changed.notify_all()
            return self.epoch, left, labels

    # --- the puller's side

    def may_pull(self, epoch: int) -> bool:
        """Wait until the engine allows another batch; False when the epoch was left."""
        with self._changed:
            self._changed.wait_for(lambda: self.epoch != epoch or self._next_number < self._limit)
            return self.epoch == epoch

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

    def fail(self, error: EdlError, *, for_good: bool) -> None:
        """Nothing more will come, in this epoch or for good: raise `error` in the training loop."""
        with self._changed:
            if not self._dead:
                self._fatal, self._dead = error, for_good
            self._changed.notify_all()

    @contextmanager
    def held(self) -> Iterator[tuple[list[Pulled], list[Pulled], bool]]:
        """All batches as (labelled, unlabelled, source ended), while nothing can change them."""
        with self._changed:
            done = [p for p in self._waiting if p.number in self._outcomes]
            open_ = [p for p in self._waiting if p.number not in self._outcomes]
            yield done, open_, self._ended

    # --- the training loop's side

    def take(self, epoch: int, timeout_s: float | None) -> Labelled | None:
        """The next batch in order, waiting for it at most so long; None when it is not there yet.

        Raises:
            StopIteration: the source has ended and every batch was taken.
            BaseException: what the source raised, behind its last batch.
            EdlError: what the mesh cannot mend.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_due(epoch), timeout_s):
                return None
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
        if self._fatal is not None:
            raise self._fatal
        if self.epoch != epoch:
            raise StopIteration
        if self._source_error is not None:
            raise self._source_error
        raise StopIteration

    def _pop(self) -> Labelled:
        pulled = self._waiting[0]
        outcome = self._outcomes[pulled.number]
        if isinstance(outcome, EdlError):
            raise outcome
        del self._outcomes[pulled.number]
        self._waiting.popleft()
        return Labelled(pulled, outcome)
