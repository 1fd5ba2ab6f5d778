"""The thread that pulls the user's source, one epoch long, and writes each batch into the ring."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from .engine_client import EngineClient
from .ring import Ring
from .stream import Stream
from .structure import take_apart

log = logging.getLogger(__name__)


class Puller:
    """Draws from `iterator` for one epoch of `stream`, no faster than the engine allows.

    The iterator is used and dropped in this one thread. (It is made in the caller's: Paddle's
    DataLoader sets signal handlers when it starts its workers, which only the main thread may.)
    What it raises is kept, as it is, for the training loop, behind the batches that came before it.
    """

    def __init__(
        self, iterator: Iterator[Any], epoch: int, stream: Stream, ring: Ring, engine: EngineClient
    ) -> None:
        self._epoch = epoch
        self._stream = stream
        self._ring = ring
        self._engine = engine
        # Not an attribute: the iterator is to be gone, with its worker processes, when this ends.
        self._thread = threading.Thread(
            target=self._run, args=(iterator,), name="edl-reader-puller", daemon=True
        )
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, which ends when its epoch is left; warn if the source holds it."""
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("the source has not returned from its next() for %.0f s", timeout_s)

    def _run(self, iterator: Iterator[Any]) -> None:
        error: BaseException | None = None
        try:
            self._pull(iterator)
            close = getattr(iterator, "close", None)
            if callable(close):  # a generator: let its `finally` run now, not some day
                close()
        except BaseException as raised:  # the training loop's to handle, even a KeyboardInterrupt
            error = raised
        del iterator
        if self._stream.end(self._epoch, error):
            self._engine.source_ended()

    def _pull(self, iterator: Iterator[Any]) -> None:
        while self._stream.may_pull(self._epoch):
            asked_at = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            source_s = time.monotonic() - asked_at
            parts = take_apart(batch)
            record = self._ring.put(parts.arrays)
            pulled = self._stream.add(self._epoch, record, parts.without_arrays(), source_s)
            if pulled is None:
                self._ring.drop(record)
                return
            self._engine.announce(pulled)
