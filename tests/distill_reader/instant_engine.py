"""An engine that labels what it is told of at once, in the test's own process, for fast laws.

It stands where `EngineClient` stands in a pipeline; puller, stream, ring and source are real.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np

from edl.distill_reader.batch_stream import BatchLabels, BatchStream, RingBatch
from edl.distill_reader.config import ReaderConfig
from edl.distill_reader.ring import Ring
from edl.proto.arena import Record

#: So many batches are pulled ahead of the training loop.
AHEAD = 5
#: So many of them wait for their labels where they need not come in order.
HELD = 3


class InstantEngine:
    """Labels batches as they come; with `ordered=False`, a random one of those that wait."""

    pid = 0
    restarts = 0

    def __init__(self, config: ReaderConfig, stream: BatchStream, ring: Ring, *_: object) -> None:
        self.stats: dict[str, Any] = {}
        self._stream = stream
        self._held = 0 if config.ordered else HELD
        self._rng = random.Random(config.seed)
        self._lock = self.numbering = threading.RLock()
        self._announced: list[RingBatch] = []
        self._limit = AHEAD
        stream.allow(AHEAD)

    def announce(self, pulled: RingBatch, epoch: int) -> None:
        with self._lock:
            if self._stream.epoch == epoch:
                self._announced.append(pulled)
                self._label(self._held)

    def expect_no_announcement(self) -> None:
        pass

    def source_ended(self, epoch: int) -> None:
        with self._lock:
            if self._stream.epoch == epoch:
                self._label(0)

    def request_stats(self) -> None:
        pass

    def requested_stats(self) -> dict[str, Any]:
        return self.stats

    def waiting(self) -> None:
        pass

    def taken(self, number: int, samples: int, step_s: float | None) -> None:
        self._limit += 1
        self._stream.allow(self._limit)

    def reset(self, epoch: int, data_epoch: int, pulled: int) -> None:
        with self._lock:
            self._announced.clear()
        self._limit = pulled + AHEAD
        self._stream.allow(self._limit)

    def close(self) -> None:
        pass

    def _label(self, left: int) -> None:
        while len(self._announced) > left:
            pulled = self._announced.pop(self._rng.randrange(len(self._announced)))
            labels = BatchLabels({"soft": np.zeros(1, np.float32)}, Record(0, 0, ()))
            self._stream.set_outcome(pulled.number, labels)
            self._stream.release([pulled.number])
