"""The way of batches from source to training loop: all that works behind a `DistilReader`.

Nothing here refers to the reader, so that the reader can be collected while this works.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Any

from ..errors import UsageError
from .config import ReaderConfig
from .engine_client import EngineClient
from .janitor import Janitor
from .puller import Puller
from .ring import Ring
from .stream import Labelled, Stream
from .structure import put_together

log = logging.getLogger(__name__)

#: A wait for labels is explained in the log each time it has lasted so long.
EXPLAIN_EVERY_S = 10.0
PULLER_GRACE_S = 5.0


class Pipeline:
    """Puller, ring, stream and engine of one reader.

    Attributes:
        stream: the batches on their way.
        engine: what labels them.
        closed: whether `close` was called.
    """

    def __init__(self, config: ReaderConfig) -> None:
        self.stream = Stream()
        self.closed = False
        self._pid = os.getpid()
        self._ring = Ring()
        try:
            self.engine = EngineClient(config, self.stream, self._ring)
        except BaseException:
            self._ring.close()
            raise
        self._puller = Puller(self.stream, self._ring, self.engine)
        self._janitor = Janitor()
        self._epochs = threading.Lock()  # one epoch begins or ends at a time; never in a finalizer
        atexit.register(self.close)

    def begin(self, source: Iterable[Any]) -> int:
        """Leave the current epoch, begin another one over `source`; returns its number.

        Raises:
            UsageError: it is closed, or of another process. Besides, what `iter(source)` raises.
        """
        self._check_usable()
        with self._epochs:
            epoch = self._leave(empty=False)
            self._puller.settle(PULLER_GRACE_S)
            self._puller.pull(iter(source), epoch)
            return epoch

    def leave(self, epoch: int) -> None:
        """End `epoch`, whatever it still holds; without effect if it has ended."""
        with self._epochs:
            if self.stream.epoch == epoch and not self.closed:
                self._leave(empty=True)

    def next(self, epoch: int, step_s: float | None) -> Any:
        """The next batch with its labels; `step_s` is the time that was worked on the last one."""
        self._check_process()
        labelled = self.stream.take(epoch, timeout_s=0.0)
        if labelled is None:
            self.engine.waiting()
            labelled = self._wait(epoch)
        pulled = labelled.pulled
        self.engine.taken(pulled.number, pulled.parts.samples, step_s)
        return put_together(
            pulled.parts.skeleton,
            self._ring.views(pulled.record),
            self.engine.label_views(labelled.labels),
        )

    def close(self) -> None:
        """End the engine and the threads, give the buffer back; again without effect."""
        if self.closed or os.getpid() != self._pid:  # a forked copy has nothing of its own
            return
        self.closed = True
        self.stream.fail(UsageError("this reader is closed"))
        self.stream.begin(empty=True)
        self._puller.close()
        self.engine.close()
        self._ring.close()
        self._janitor.close()
        atexit.unregister(self.close)

    def leave_soon(self, epoch: int) -> None:
        """`leave`, for a finalizer."""
        if self.stream.epoch == epoch:
            self._janitor.ask(partial(self.leave, epoch))

    def close_soon(self) -> None:
        """`close`, for a finalizer."""
        self._janitor.ask(self.close)

    def _leave(self, *, empty: bool) -> int:
        held, labels = self.stream.begin(empty=empty)
        for pulled in (*held.labelled, *held.unlabelled):
            self._ring.drop(pulled.record)
        for label in labels:
            self.engine.drop_labels(label)
        self.engine.reset(held.epoch + 1, held.data_epoch + (not empty), held.pulled)
        return held.epoch + 1

    def _wait(self, epoch: int) -> Labelled:
        since = time.monotonic()
        while (labelled := self.stream.take(epoch, EXPLAIN_EVERY_S)) is None:
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
