"""The thread that pulls the user's source and writes each batch into the ring."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import closing
from queue import SimpleQueue

from .engine_client import EngineClient
from .ring import Ring
from .saved_state import StreamPosition
from .sources.source import Mark, Reading, Source
from .stream import Stream
from .structure import take_apart

log = logging.getLogger(__name__)


class Puller:
    """Pulls the epochs of the source into `stream`, no faster than the engine allows.

    The training loop gets what the source raises, unchanged, after the batches before it.

    Readings are used and dropped in one thread, which lives as long as the reader. They are made
    in the caller's: Paddle's DataLoader sets signal handlers when it forks its workers, which only
    the main thread may. No thread must end at that moment: one that has used Paddle takes a lock
    of Paddle's when it ends, and a worker forked meanwhile would wait for it forever.
    """

    def __init__(self, source: Source, stream: Stream, ring: Ring, engine: EngineClient) -> None:
        self._source = source
        self._stream = stream
        self._ring = ring
        self._engine = engine
        self._epochs: SimpleQueue[tuple[Reading, int, int, threading.Event] | None] = SimpleQueue()
        self._done = threading.Event()  # with the epoch that was begun last
        self._done.set()
        self._thread = threading.Thread(target=self._run, name="edl-reader-puller", daemon=True)
        self._thread.start()

    def pull(self, reading: Reading, epoch: int, first: int) -> None:
        """Begin an epoch at its batch `first`; the former one must have been left."""
        self._done = threading.Event()
        self._epochs.put((reading, epoch, first, self._done))

    def settle(self, timeout_s: float) -> None:
        """Wait until the pulling of the epoch that was left has ended; warn if it has not."""
        if not self._done.wait(timeout_s):
            log.warning("the source has not returned from its next() for %.0f s", timeout_s)

    def close(self) -> None:
        """End the thread and close the source, once its `next` has returned."""
        self._epochs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end: an interpreter may crash if it exits under a framework's code."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("the source has not returned from its next() for %g s", timeout_s)

    def _run(self) -> None:
        while (job := self._epochs.get()) is not None:
            reading, epoch, first, done = job
            del job
            mark, error = self._epoch_of(reading, epoch, first)
            del reading  # and with it a DataLoader's workers
            if self._stream.end(epoch, error, mark):
                self._engine.source_ended(epoch)
            del error
            done.set()
        self._source.close()

    def _epoch_of(
        self, reading: Reading, epoch: int, first: int
    ) -> tuple[Mark | None, BaseException | None]:
        """Pull one epoch; returns the source's position after it, and what it raised."""
        try:
            with closing(reading):
                return self._pull(reading, epoch, first), None
        except BaseException as error:  # the training loop's to handle, even a KeyboardInterrupt
            return None, error

    def _pull(self, reading: Reading, epoch: int, first: int) -> Mark | None:
        for ordinal in itertools.count(first):
            if not self._stream.has_room:
                self._engine.rests()  # what was taken makes room
            if not self._stream.may_pull(epoch):
                break
            asked_at = time.monotonic()
            try:
                batch = next(reading)
            except StopIteration:
                return reading.end()
            source_s = time.monotonic() - asked_at
            parts = take_apart(batch)
            position = StreamPosition(ordinal, reading.mark(parts.arrays))
            if self._stream.had_before(epoch, position):
                continue
            record, views = self._ring.put(parts.arrays)
            pulled = self._stream.add(
                epoch, record, views, parts.without_arrays(), position, source_s
            )
            if pulled is None:
                break
            self._engine.announce(pulled, epoch)
            # While the buffer is full, the source's own memory need not be held, the ring's not for
            # longer than the training loop has a use for it.
            del batch, parts, views, pulled
        return None  # the epoch was left
