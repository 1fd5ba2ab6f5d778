"""The threads and buffers behind a `DistilReader`: source, ring, engine, stream.

Nothing here refers to the reader, so that it can be garbage-collected while the threads work.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from ..runtime.errors import ProcessFailed, UsageError
from ..runtime.standard_streams import open_standard_fds
from .batch_stream import BatchStream, LabelledBatch
from .calls import Labels, PendingCall
from .config import ReaderConfig
from .engine_client import EngineClient
from .puller import Puller
from .ring import Ring
from .saved_state import StreamProgress
from .sources.source import ResumableSource
from .stats import Callback, Callbacks, ReaderStats
from .structure import check_rows, take_apart
from .trace_file import create_trace

log = logging.getLogger(__name__)

#: Interval of log messages that explain why the training loop waits.
EXPLAIN_EVERY_S = 5.0
#: Seconds that a new epoch waits until the source returns from the previous epoch; after that, a
#: warning is logged.
NEW_EPOCH_GRACE_S = 5.0
#: Shorter waits of the training loop are not reported to the engine.
MOMENT_S = 0.001
#: Seconds that `Pipeline.close` waits for a source that does not return.
CLOSE_GRACE_S = 2.0

#: Converts a batch for the training loop.
Convert = Callable[[Any], Any]


class TaskThread:
    """Runs tasks of callers that must not block, such as finalizers and the training loop.

    Python runs finalizers during any call, in any thread, with any lock held. So a finalizer only
    queues a task, without taking a lock. The tasks run in order.
    """

    def __init__(self) -> None:
        # SimpleQueue.put is made for finalizers: it is reentrant.
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._work, name="edl-reader-tasks", daemon=True).start()

    def submit(self, task: Callable[[], None]) -> None:
        """Queue `task`. Never blocks; safe in a finalizer."""
        self._tasks.put(task)

    def close(self) -> None:
        """End the thread after the queued tasks, without waiting for them."""
        self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            try:
                task()
            except Exception:
                log.exception("a background task of a reader failed")
            del task


class Pipeline:
    """Puller, ring, stream and engine of one reader.

    One thread, the training loop's, calls `next`; the other methods are thread-safe. Finalizers may
    call only `abandon_soon` and `close_soon`.

    Args:
        config: settings of the reader.
        source: source of the batches.
        callbacks: callbacks of the user.

    Attributes:
        stream: the batches that were pulled and not taken.
        engine: the client of the engine process.
        ring: memory for the batches; the engine reads it.

    Raises:
        ProcessFailed: the system refuses memory, descriptors, a process or a thread.
        UsageError: the trace cannot be written, or an item of `callbacks` is not a `Callback`.
    """

    def __init__(
        self, config: ReaderConfig, source: ResumableSource, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.stream = BatchStream()
        self._config = config
        self._callbacks = Callbacks(callbacks, self._latest_stats)
        if config.trace is not None:
            create_trace(Path(config.trace.path))
        self._closed = self._is_released = False
        self._pid = os.getpid()
        self._source = source
        self._begun: int | None = None  # the source's latest epoch; None: none since `resume`
        self._epoch_lock = threading.Lock()  # held to begin or leave an epoch, except in `close`
        open_standard_fds()
        with ExitStack() as undo:  # also after a Ctrl-C while the engine starts
            try:
                self.ring = undo.enter_context(closing(Ring()))
                self._tasks = undo.enter_context(closing(TaskThread()))
                engine = EngineClient(
                    config, self.stream, self.ring, self._callbacks.notify, self._tasks.submit
                )
                self.engine = undo.enter_context(closing(engine))
                self._puller = Puller(source, self.stream, self.ring, self.engine)
                undo.callback(self._puller.close)
                undo.callback(self._callbacks.close)
                self._callbacks.start()
            except (OSError, RuntimeError) as error:  # memory, descriptors, threads
                raise ProcessFailed(
                    f"the system does not let the reader start its engine ({error}): raise the"
                    " limits of the training process, as with `ulimit -n`"
                ) from error
            atexit.register(self.close)
            undo.pop_all()

    def begin(self) -> int:
        """Leave the current epoch and begin the next one; returns its number in the stream.

        The new epoch is the source's next epoch. Right after `resume`, it starts at the position
        given there.

        Raises:
            UsageError: the reader is closed, or was made in another process.
            Exception: what `iter(source)` raises.
        """
        self._check_usable()
        with self._epoch_lock:
            epoch = self._begin_stream_epoch(counts=True)
            self._puller.wait_until_idle(NEW_EPOCH_GRACE_S)
            start = self._next_start()
            reading = self._source.begin(start.epoch, start.batches, start.mark)
            self._begun = start.epoch
            self.stream.set_progress(start._replace(mark=reading.start))
            self._puller.pull(reading, epoch, start.batches)
            return epoch

    def resume(self, progress: StreamProgress) -> None:
        """Leave the current epoch; the next one begins at `progress`."""
        self._check_usable()
        with self._epoch_lock:
            self._begin_stream_epoch(counts=False)
            self._begun = None
            self.stream.set_progress(progress)

    def abandon(self, epoch: int) -> None:
        """Leave `epoch` and drop its batches; no effect if it is not the current one."""
        with self._epoch_lock:
            if self.stream.epoch == epoch and not self._closed:
                self._begin_stream_epoch(counts=False)

    def next(self, epoch: int, step_s: float | None, convert: Convert | None = None) -> Any:
        """Return the next batch with its labels.

        Until the caller sets `stream.undelivered` to None, further calls return the same batch.

        Args:
            epoch: epoch of the batch.
            step_s: seconds that the training loop worked on the previous batch; None: unknown.
            convert: applied to the batch. If it raises, the batch counts as not taken.

        Raises:
            StopIteration: the epoch has ended, or another one has begun.
            UsageError: the reader was made in another process, or `convert` raised StopIteration.
            BaseException: what the source, `convert`, a callback or the engine raised.
        """
        self._check_process()
        undelivered = self.stream.undelivered
        if undelivered is not None and self.stream.epoch == epoch:  # interrupted after `take`
            ring_batch, batch = undelivered
            self.engine.taken(ring_batch.number, ring_batch.parts.samples, step_s)
            return batch
        waited_s = 0.0
        while True:
            called_at = time.monotonic()
            try:
                labelled = self.stream.next(epoch, MOMENT_S) or self._wait(epoch)
            except StopIteration:
                self.engine.request_stats()  # `stats` then includes the whole epoch
                raise
            waited_s += time.monotonic() - called_at
            # Make the batch before `take`: if that fails, the next call makes the same batch again.
            batch, ring_batch = labelled.batch(), labelled.ring_batch
            if convert is not None:
                try:
                    batch = convert(batch)
                except StopIteration as error:  # would end the epoch
                    raise UsageError("the conversion of a batch raised StopIteration") from error
            if self.stream.take(epoch, labelled, batch):
                break
        self.engine.taken(ring_batch.number, ring_batch.parts.samples, step_s)
        self._callbacks.batch(ring_batch.parts.samples, waited_s)  # which may raise a SystemExit
        return batch

    def call(self, batch: Any, timeout_s: float, deadline: float) -> Future[Labels]:
        """Have a batch labelled outside the training loop; waits while too many other calls wait.

        Args:
            batch: as a source would yield it. A batch without rows is answered at once, but raises
                BatchError until another batch was labelled, because the shapes of labels are
                unknown.
            timeout_s: seconds that the call may take, for the text of the error.
            deadline: end of that time, by the monotonic clock; the future then gets a
                `LabelTimeout`.

        Raises:
            UsageError: the reader is closed, or was made in another process.
            BatchError: the batch cannot be sent.
            LabelTimeout: there was no room until the deadline.
            MemoryRefused, ProcessFailed: the system refuses shared memory, or a thread.
            EdlError: the engine labels nothing any more; the error says why.
        """
        self._check_usable()
        parts = take_apart(batch)
        if not parts.samples and self.engine.calls.latest_labels:
            return self.engine.calls.answer_without_rows(parts)
        check_rows(parts)
        calls, nbytes = self.engine.calls, sum(array.nbytes for array in parts.arrays)
        future, call = Future[Labels](), None
        calls.reserve(nbytes, timeout_s, deadline)
        try:
            record, arrays = self.ring.put(parts.arrays)
            parts = parts._replace(arrays=())  # do not keep the user's arrays alive
            call = PendingCall(future, record, arrays, parts, nbytes, timeout_s, deadline)
            self.engine.call(call)
        except BaseException:  # also a Ctrl-C
            if call is None:
                calls.release(nbytes)
            else:
                calls.forget(call)
            raise
        return future

    def begin_epochs_when_due(self) -> None:
        """From now on, begin an epoch whenever teachers of a new model content wait for one.

        For a pipeline without a training loop, which would begin epochs. In a new epoch, waiting
        calls are sent again, so that each gets labels of one content.
        """
        self.engine.on_epoch_due = partial(self._tasks.submit, self._begin_without_batches)

    def _begin_without_batches(self) -> None:
        with self._epoch_lock:
            if not self._closed:
                self._begin_stream_epoch(counts=True)

    def stats(self) -> ReaderStats:
        """Return the statistics: complete at the end of an epoch, else at most 0.2 s old."""
        if os.getpid() == self._pid:  # a forked copy has no engine
            self.engine.requested_stats()
        return self._latest_stats()

    def _latest_stats(self) -> ReaderStats:
        return ReaderStats.of(
            self.engine.stats,
            yielded=self.stream.pulled,
            delivered=self.stream.delivered,
            samples_delivered=self.stream.samples_delivered,
            unlabelled=self.stream.unlabelled,
            ready=self.stream.ready,
            upper_bytes=self._config.upper_bytes,
            lower_bytes=self._config.lower_bytes,
            engine_restarts=self.engine.restarts,
            calls=self.engine.calls.answered,
            calls_failed=self.engine.calls.failed,
        )

    def close(self) -> None:
        """End the engine and the threads, and free the buffers. Idempotent."""
        if self._is_released or os.getpid() != self._pid:  # a forked copy owns nothing
            return
        self._closed = True  # a Ctrl-C may interrupt what follows: the next call repeats it all
        self.stream.fail(UsageError("this reader is closed"))
        self.stream.begin(counts=False)
        self._puller.close()
        self.engine.close()
        self._puller.join(CLOSE_GRACE_S)
        self.ring.close()
        self._tasks.close()
        self._callbacks.close()
        self._is_released = True
        atexit.unregister(self.close)

    def abandon_soon(self, epoch: int) -> None:
        """Call `abandon` in another thread; for finalizers."""
        if self.stream.epoch == epoch:
            self._tasks.submit(partial(self.abandon, epoch))

    def close_soon(self) -> None:
        """Call `close` in another thread; for finalizers."""
        self._tasks.submit(self.close)

    def _begin_stream_epoch(self, *, counts: bool) -> int:
        """Leave the current epoch and begin a new one, as `BatchStream.begin` does."""
        epoch = self.stream.begin(counts=counts)
        self.engine.reset(epoch, self.stream.data_epoch, self.stream.pulled)
        if not counts:
            self.engine.request_stats()
        return epoch

    def _next_start(self) -> StreamProgress:
        """Return where the next epoch starts in the source."""
        progress = self.stream.progress
        if self._begun is None:
            return progress
        # An epoch that was left early is not read again.
        return StreamProgress(progress.epoch + (progress.epoch == self._begun))

    def _wait(self, epoch: int) -> LabelledBatch:
        """Wait for the next batch, and log the reason for the wait."""
        self.engine.waiting()
        since = time.monotonic()
        while (labelled := self.stream.next(epoch, EXPLAIN_EVERY_S)) is None:
            why = self.engine.stats.get("waiting_for") or "the engine has not reported a reason"
            log.warning("waiting %.0f s: %s", time.monotonic() - since, why)
        return labelled

    def _check_usable(self) -> None:
        self._check_process()
        if self._closed:
            raise UsageError("this reader is closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this reader was made in another process, which has its threads; make one reader in"
                " each process"
            )
