"""The thread that pulls the user's source and writes each batch into the ring."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from contextlib import closing
from queue import SimpleQueue

from .batch_stream import BatchStream
from .engine_client import EngineClient
from .ring import Ring
from .saved_state import StreamPosition
from .sources.source import Mark, ResumableSource, SourceIterator
from .structure import check_rows, take_apart

log = logging.getLogger(__name__)


class Puller:
    """Pulls the epochs of the source into `stream`, as far ahead as the engine allows.

    The training loop gets an exception of the source unchanged, after the source's earlier batches.

    One thread, which lives as long as the reader, uses and drops the source's iterators. The caller
    creates them: Paddle's DataLoader sets signal handlers when it forks its workers, and only the
    main thread may do that. No thread may end during that fork: a thread that has used Paddle
    takes one of Paddle's locks as it ends, and the forked worker would wait for that lock forever.
    """

    def __init__(
        self, source: ResumableSource, stream: BatchStream, ring: Ring, engine: EngineClient
    ) -> None:
        self._source = source
        self._stream = stream
        self._ring = ring
        self._engine = engine
        self._epochs: SimpleQueue[tuple[SourceIterator, int, int, threading.Event] | None] = (
            SimpleQueue()
        )
        self._closed = False
        self._lock = threading.RLock()  # after `_closed` is set, no epoch enters the queue
        self._done = threading.Event()  # the thread has finished the latest epoch
        self._done.set()
        self._thread = threading.Thread(target=self._run, name="edl-reader-puller", daemon=True)
        self._thread.start()

    def pull(self, reading: SourceIterator, epoch: int, first: int) -> None:
        """Pull an epoch; after `close`, only close its iterator.

        Args:
            reading: iterator over the epoch; the thread closes it.
            epoch: number of the epoch in the stream; the previous one must have been left.
            first: ordinal in the epoch of the first batch that `reading` yields.
        """
        with self._lock:
            if not self._closed:
                self._done = threading.Event()
                self._epochs.put((reading, epoch, first, self._done))
                return
        reading.close()

    def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until the thread has finished the epoch that was left.

        Args:
            timeout_s: seconds to wait; a warning is logged after that.
        """
        if not self._done.wait(timeout_s):
            log.warning("the source has not returned from its next() for %.0f s", timeout_s)

    def close(self) -> None:
        """Have the thread close the source and end, once the source's `next` has returned."""
        with self._lock:
            self._closed = True
            self._epochs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end: an interpreter that exits during its work may crash.

        Args:
            timeout_s: seconds to wait; a warning is logged after that.
        """
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                log.warning("the source has not returned from its next() for %g s", timeout_s)

    def _run(self) -> None:
        while (job := self._epochs.get()) is not None:
            reading, epoch, first, done = job
            del job
            mark, error = self._pull_epoch(reading, epoch, first)
            del reading  # ends a DataLoader's workers
            if self._stream.end(epoch, error, mark):
                self._engine.source_ended(epoch)
            del error
            done.set()
        self._source.close()

    def _pull_epoch(
        self, reading: SourceIterator, epoch: int, first: int
    ) -> tuple[Mark | None, BaseException | None]:
        """Pull one epoch; returns the source's position after it, and the exception it raised."""
        try:
            with closing(reading):
                return self._pull(reading, epoch, first), None
        except BaseException as error:  # also a KeyboardInterrupt: the training loop handles it
            return None, error

    def _pull(self, reading: SourceIterator, epoch: int, first: int) -> Mark | None:
        for ordinal in itertools.count(first):
            if not self._stream.has_room:
                # Send the messages about taken batches, so that the engine allows more.
                self._engine.expect_no_announcement()
            if not self._stream.may_pull(epoch):
                break
            called_at = time.monotonic()
            try:
                batch = next(reading)
            except StopIteration:
                return reading.end()
            source_s = time.monotonic() - called_at
            parts = take_apart(batch)
            check_rows(parts)
            position = StreamPosition(ordinal, reading.mark(parts.arrays))
            if self._stream.count_if_delivered(epoch, position):
                continue
            record, views = self._ring.put(parts.arrays)
            parts = parts._replace(arrays=())  # do not keep the user's arrays alive
            with self._engine.numbering:
                ring_batch = self._stream.add(epoch, record, views, parts, position, source_s)
                if ring_batch is None:
                    break
                self._engine.announce(ring_batch, epoch)
            # Do not keep the user's arrays or the ring's memory while the buffer is full.
            del batch, parts, views, ring_batch
        return None  # the epoch was left
