"""A batcher over devices that a test holds, in a time of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np

from edl.errors import (
    EdlError,
)
from edl.proto.arena import Array
from edl.scheduler.batching import BatchRule
from edl.teacher.batcher import Batcher
from edl.teacher.parts import Labelled, Part, label_parts
from edl.teacher.predictor_session import Answer, Ready, Results
from edl.teacher.request import Request
from edl.teacher.wanted import Wanted
from edl.tests.ground.programs import wait_for
from edl.tests.teacher.fakes import SPEC, FakeBackend

WAIT_S = 20.0
DOUBLE = [Wanted("double")]


class FakePool:
    """Devices that label when they are let; `runs` are the (lane, samples of each request)."""

    def __init__(self, *t_ts_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.t_ts_s = t_ts_s
        self.clock = clock
        self.alive = [True] * len(t_ts_s)
        self.backend = FakeBackend()
        self.runs: list[tuple[int, list[int]]] = []
        self.at_device = 0
        self.released = 0
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(64, "device")

    @property
    def ready(self) -> bool:
        return any(self.alive)

    @property
    def lanes(self) -> int:
        return len(self.t_ts_s)

    @property
    def t_t_s(self) -> float:
        return self.t_ts_s[0]

    def require_loaded(self) -> Ready:
        return Ready(SPEC, self.t_t_s, 8)

    def lane_t_t_s(self, index: int) -> float:
        return self.t_ts_s[index]

    def ready_lanes(self) -> list[bool]:
        return self.alive

    def submit(self, index: int, requests: Sequence[Request]) -> Results:
        return self._threads.submit(self._run, index, requests)

    def _run(self, index: int, requests: Sequence[Request]) -> list[Answer | EdlError]:
        with self._lock:
            self.at_device += 1
            self.runs.append((index, [request.samples for request in requests]))
        assert self.go.acquire(timeout=WAIT_S)
        with self._lock:
            self.at_device -= 1
        if self.error is not None:
            raise self.error
        parts = [Part(r.samples, tuple(r.outputs), r.deadline_s) for r in requests]
        rows = {"x": np.concatenate([request.inputs["x"] for request in requests])}
        results = label_parts(self.backend.run, rows, parts, self.clock)
        return [
            Answer(one.outputs, one.device_seconds, self._release)
            if isinstance(one, Labelled)
            else one
            for one in results
        ]

    def _release(self) -> None:
        with self._lock:
            self.released += 1

    def close(self) -> None:
        self._threads.shutdown()


class Meter:
    def __init__(self) -> None:
        self.batches: list[int] = []
        self.waits_s: list[float] = []
        self.expired_count = 0

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        self.batches.append(samples)
        self.waits_s.extend(queue_s)

    def expired(self) -> None:
        self.expired_count += 1


class Bench:
    def __init__(self, pool: FakePool, slots: int, rule: BatchRule) -> None:
        self.pool, self.meter = pool, Meter()
        self.batcher = Batcher(pool, slots, rule, self.meter, pool.clock)  # type: ignore[arg-type]
        self.batcher.start()
        self._threads = ThreadPoolExecutor(64)
        self.asked: list[Future[Array]] = []

    def label(self, x: Array, deadline_s: float | None = None) -> Array:
        answer = self.batcher.submit({"x": x}, DOUBLE, deadline_s).result()
        try:
            return answer.outputs["double"].copy()
        finally:
            answer.release()

    def ask(self, x: Array, deadline_s: float | None = None) -> Future[Array]:
        """Ask on another thread; returns when the request stands in line, or is further."""
        numbers = self.batcher._numbers
        before = repr(numbers)
        future = self._threads.submit(self.label, x, deadline_s)
        wait_for(lambda: repr(numbers) != before or future.done())
        self.asked.append(future)
        return future

    def close(self) -> None:
        for _ in self.asked:
            self.pool.go.release()
        self._threads.shutdown()
        self.batcher.stop()
        self.pool.close()


@contextmanager
def bench(
    *t_ts_s: float,
    slots: int = 16,
    rule: BatchRule | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Bench]:
    made = Bench(FakePool(*(t_ts_s or (0.01,)), clock=clock), slots, rule or BatchRule())
    try:
        yield made
    finally:
        made.close()
