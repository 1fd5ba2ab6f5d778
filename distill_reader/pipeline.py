"""The way of batches from source to training loop: all that works behind a `DistilReader`.

Nothing here refers to the reader, so that the reader can be collected while this works.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ProcessFailed, UsageError
from ..standard_streams import hold_standard_fds
from .batches import LabelledBatch
from .config import ReaderConfig
from .engine_client import EngineClient
from .janitor import Janitor
from .puller import Puller
from .ring import Ring
from .saved_state import Progress
from .sources.source import Source
from .stats import Callback, Callbacks, ReaderStats
from .stream import Stream
from .trace_file import begin as begin_trace

log = logging.getLogger(__name__)

#: A wait for labels is explained in the log each time it has lasted so long.
EXPLAIN_EVERY_S = 5.0
PULLER_GRACE_S = 5.0
#: A wait as short as this is none that the engine has to be told of.
MOMENT_S = 0.001
#: A source that does not return is left alone then, so that a reader's end is bounded.
SOURCE_GRACE_S = 2.0

#: What the training loop gets in place of a batch.
Convert = Callable[[Any], Any]


class Pipeline:
    """Puller, ring, stream and engine of one reader.

    Attributes:
        stream: the batches on their way.
        engine: what labels them.
        closed: whether `close` was called.
    """

    def __init__(
        self, config: ReaderConfig, source: Source, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.stream = Stream()
        self._config = config
        self._callbacks = Callbacks(callbacks, self._latest_stats)
        if config.trace:
            begin_trace(Path(config.trace))
        self.closed = self._all_given_back = False
        self._pid = os.getpid()
        self._source = source
        self._begun: int | None = None  # the epoch of the source that was begun last
        self._epochs = threading.Lock()  # one epoch begins or ends at a time; never in a finalizer
        hold_standard_fds()
        with ExitStack() as undo:  # also by a Ctrl-C while the engine is being started
            try:
                self._ring = undo.enter_context(closing(Ring()))
                self._janitor = undo.enter_context(closing(Janitor()))
                engine = EngineClient(
                    config, self.stream, self._ring, self._callbacks.notify, self._janitor.ask
                )
                self.engine = undo.enter_context(closing(engine))
                self._puller = Puller(source, self.stream, self._ring, self.engine)
                undo.callback(self._puller.close)
                undo.callback(self._callbacks.close)
                self._callbacks.start()
            except (OSError, RuntimeError) as error:  # memory, descriptors, threads
                raise ProcessFailed(
                    f"the system does not let the reader start its engine ({error}): raise its"
                    " limits, as with `ulimit -n`"
                ) from error
            atexit.register(self.close)
            undo.pop_all()

    def begin(self) -> int:
        """Leave the current epoch, begin another one over the source; returns the stream's number.

        The source goes on where a state that was loaded says, the first time after that, and else
        with its next epoch.

        Raises:
            UsageError: it is closed, or of another process. Besides, what `iter(source)` raises.
        """
        self._check_usable()
        with self._epochs:
            epoch = self._leave(empty=False)
            self._puller.settle(PULLER_GRACE_S)
            start = self._start()
            reading = self._source.begin(start.epoch, start.batches, start.mark)
            self._begun = start.epoch
            self.stream.stand(start._replace(mark=reading.start))
            self._puller.pull(reading, epoch, start.batches)
            return epoch

    def resume(self, progress: Progress) -> None:
        """Leave the current epoch; the next one to begin is the one of `progress`, behind it."""
        self._check_usable()
        with self._epochs:
            self._leave(empty=True)
            self._begun = None
            self.stream.stand(progress)

    def leave(self, epoch: int) -> None:
        """End `epoch`, whatever it still holds; without effect if it has ended."""
        with self._epochs:
            if self.stream.epoch == epoch and not self.closed:
                self._leave(empty=True)

    def next(self, epoch: int, step_s: float | None, convert: Convert | None = None) -> Any:
        """The next batch with its labels: the same one again until `stream.undelivered` is None.

        Args:
            epoch: of which it is.
            step_s: the time that was worked on the last one.
            convert: what is made of the batch.
        """
        self._check_process()
        undelivered = self.stream.undelivered
        if undelivered is not None and self.stream.epoch == epoch:  # the last call has raised
            pulled, batch = undelivered
            self.engine.taken(pulled.number, pulled.parts.samples, step_s)
            return batch
        waited_s = 0.0
        while True:
            called_at = time.monotonic()
            labelled = self._next_labelled(epoch)
            waited_s += time.monotonic() - called_at
            # Before it counts as taken: where this raises, the same batch is the next one again.
            batch, pulled = labelled.batch(), labelled.pulled
            if convert is not None:
                batch = convert(batch)
            if self.stream.take(epoch, labelled, batch):
                break
        self.engine.taken(pulled.number, pulled.parts.samples, step_s)
        self._callbacks.batch(pulled.parts.samples, waited_s)  # which may raise a SystemExit
        return batch

    def stats(self) -> ReaderStats:
        """Its figures: at the end of an epoch of all of it, within one not older than 0.2 s."""
        if os.getpid() == self._pid:  # a forked copy hears nothing
            self.engine.figures()
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
        )

    def close(self) -> None:
        """End the engine and the threads, give the buffer back; again without effect."""
        if self._all_given_back or os.getpid() != self._pid:  # a forked copy has nothing of its own
            return
        self.closed = True  # a Ctrl-C may end what follows anywhere: then it begins again
        self.stream.fail(UsageError("this reader is closed"))
        self.stream.begin(empty=True)
        self._puller.close()
        self.engine.close()
        self._puller.join(SOURCE_GRACE_S)
        self._ring.close()
        self._janitor.close()
        self._callbacks.close()
        self._all_given_back = True
        atexit.unregister(self.close)

    def leave_soon(self, epoch: int) -> None:
        """`leave`, for a finalizer."""
        if self.stream.epoch == epoch:
            self._janitor.ask(partial(self.leave, epoch))

    def close_soon(self) -> None:
        """`close`, for a finalizer."""
        self._janitor.ask(self.close)

    def _leave(self, *, empty: bool) -> int:
        epoch = self.stream.begin(empty=empty)
        self.engine.reset(epoch, self.stream.data_epoch, self.stream.pulled)
        if empty:
            self.engine.ask_for_figures()
        return epoch

    def _start(self) -> Progress:
        told = self.stream.progress
        if self._begun is None:
            return told
        # An epoch that was left early is not read again; the source itself knows what comes next.
        return Progress(told.epoch + (told.epoch == self._begun))

    def _next_labelled(self, epoch: int) -> LabelledBatch:
        try:
            labelled = self.stream.next(epoch, MOMENT_S)
            if labelled is None:
                self.engine.waiting()
                labelled = self._wait(epoch)
        except StopIteration:
            self.engine.ask_for_figures()  # whoever looks now sees the whole epoch
            raise
        return labelled

    def _wait(self, epoch: int) -> LabelledBatch:
        since = time.monotonic()
        while (labelled := self.stream.next(epoch, EXPLAIN_EVERY_S)) is None:
            why = self.engine.stats.get("waiting_for") or "the engine has not said for what"
            log.warning("waiting %.0f s: %s", time.monotonic() - since, why)
        return labelled

    def _check_usable(self) -> None:
        self._check_process()
        if self.closed:
            raise UsageError("this reader is closed")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise UsageError(
                "this reader was made in another process, where its threads are; make one in each"
            )
