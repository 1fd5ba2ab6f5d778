"""The thread that pulls the user's source and writes each batch into the ring."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

from .engine_client import EngineClient
from .ring import Ring
from .stream import Stream
from .structure import take_apart

log = logging.getLogger(__name__)


class Puller:
    """Draws from one iterator after another, each for an epoch of `stream`.

    It goes no faster than the engine allows. What an iterator raises is kept, as it is, for the
    training loop, behind the batches that came before it.

    Iterators are used and dropped in one thread, which lives as long as the reader. They are made
    in the caller's: Paddle's DataLoader sets signal handlers when it forks its workers, which only
    the main thread may. No thread must be ending at that moment: one that has used Paddle takes a
    lock of Paddle's when it ends, and a worker that is forked meanwhile waits for it for ever.
    """

    def __init__(self, stream: Stream, ring: Ring, engine: EngineClient) -> None:
        self._stream = stream
        self._ring = ring
        self._engine = engine
        self._epochs: SimpleQueue[tuple[Iterator[Any], int, threading.Event] | None] = SimpleQueue()
        self._done = threading.Event()  # with the epoch that was begun last
        self._done.set()
        self._thread = threading.Thread(target=self._run, name="edl-reader-puller", daemon=True)
        self._thread.start()

    def pull(self, iterator: Iterator[Any], epoch: int) -> None:
        """Begin with an epoch; the former one must have been left."""
        self._done = threading.Event()
        self._epochs.put((iterator, epoch, self._done))

    def settle(self, timeout_s: float) -> None:
        """Wait until the epoch that was left is done with; warn if the source holds it."""
        if not self._done.wait(timeout_s):
            log.warning("the source has not returned from its next() for %.0f s", timeout_s)

    def close(self) -> None:
        """End the thread, once the source lets it."""
        self._epochs.put(None)

    def _run(self) -> None:
        while (job := self._epochs.get()) is not None:
            iterator, epoch, done = job
            del job
            error = self._epoch_of(iterator, epoch)
            del iterator  # and with it a DataLoader's workers
            if self._stream.end(epoch, error):
                self._engine.source_ended(epoch)
            del error
            done.set()

    def _epoch_of(self, iterator: Iterator[Any], epoch: int) -> BaseException | None:
        """Pull one epoch to its end; what the source raised, if it did."""
        try:
            try:
                self._pull(iterator, epoch)
            finally:
                _close(iterator)
        except BaseException as error:  # the training loop's to handle, even a KeyboardInterrupt
            return error
        return None

    def _pull(self, iterator: Iterator[Any], epoch: int) -> None:
        while self._stream.may_pull(epoch):
            asked_at = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            source_s = time.monotonic() - asked_at
            parts = take_apart(batch)
            record = self._ring.put(parts.arrays)
            pulled = self._stream.add(epoch, record, parts.without_arrays(), source_s)
            if pulled is None:
                self._ring.drop(record)
                return
            self._engine.announce(pulled, epoch)


def _close(iterator: Iterator[Any]) -> None:
    """Let a source clean up behind an epoch that was left early: now, not some day.

    Generators have `close`, which runs their `finally`. The iterators of Paddle's DataLoader have
    only a private method for it; without it, the workers of an epoch left early live on for ever.
    """
    for name in ("close", "_try_shutdown_all"):
        if callable(close := getattr(iterator, name, None)):
            close()
            return
