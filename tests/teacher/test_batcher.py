"""Requests at devices that a test holds: merged, bounded, expired, answered."""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from edl.proto.arena import Array
from edl.runtime.errors import (
    DeadlineExceeded,
    EdlError,
    PredictorCrashed,
    RequestRefused,
    RetryableError,
)
from edl.scheduler.batching import BatchRule
from edl.teacher.backends import blocking_submit
from edl.teacher.batcher import READ_AHEAD, UNMERGED_S, Batcher
from edl.teacher.predictor_jobs import (
    JobRequest,
    PredictorReady,
    RequestLabels,
    Results,
    submit_parts,
)
from edl.teacher.recorder import Recorder
from edl.teacher.request import BatchRequest, RequestedOutput, TeacherOverloaded
from edl.tests.teacher.fakes import SPEC, FakeBackend, array
from edl.tests.waiting import DEADLINE_S as WAIT_S
from edl.tests.waiting import wait_until

DOUBLE = [RequestedOutput("double")]


@dataclass
class FakeDevice:
    bench: Bench
    index: int
    t_t_s: float
    ready: bool = True

    def submit(self, requests: Sequence[BatchRequest]) -> Results:
        return self.bench.submit(self.index, requests)


class Bench(AbstractContextManager["Bench"]):
    """A batcher before a pool of devices that label a job each time the test lets it `go`.

    `runs` are the (lane, samples of each request) of the jobs, in the order in which they came.
    """

    def __init__(
        self,
        *t_ts_s: float,
        slots: int = 16,
        rule: BatchRule | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.predictors = [FakeDevice(self, *each) for each in enumerate(t_ts_s or (0.01,))]
        self.device_count, self.t_t_s = len(self.predictors), self.predictors[0].t_t_s
        self.backend, self.recorder = FakeBackend(), Recorder()
        self.runs: list[tuple[int, list[int]]] = []
        self.at_device = self.released = 0
        self.go = threading.Semaphore(0)
        self.error: Exception | None = None
        self._clock, self._lock = clock, threading.Lock()
        self._device = ThreadPoolExecutor(1, "device")
        pool: Any = self
        self.batcher = Batcher(pool, slots, rule or BatchRule(), self.recorder, clock)
        self.batcher.start()

    @property
    def ready(self) -> bool:
        return any(device.ready for device in self.predictors)

    def submit(self, index: int, requests: Sequence[BatchRequest]) -> Results:
        with self._lock:
            self.at_device += 1
            self.runs.append((index, [request.samples for request in requests]))
            return self._device.submit(self._run, requests)

    def _run(self, requests: Sequence[BatchRequest]) -> list[RequestLabels | EdlError]:
        assert self.go.acquire(timeout=WAIT_S)
        with self._lock:
            self.at_device -= 1
        if self.error is not None:
            raise self.error
        parts = [JobRequest(r.samples, tuple(r.outputs), r.deadline_s) for r in requests]
        rows = {"x": np.concatenate([request.inputs["x"] for request in requests])}
        results = submit_parts(blocking_submit(self.backend.run), rows, parts, self._clock)()
        return [
            replace(one, release=self._release) if isinstance(one, RequestLabels) else one
            for one in results
        ]

    def _release(self) -> None:
        with self._lock:
            self.released += 1

    def ask(self, x: Array, deadline_s: float = math.inf) -> Future[Array]:
        """Put a request in line; its labels are copied and released as they come."""
        labels = Future[Array]()

        def copy(answered: Future[RequestLabels]) -> None:
            if (error := answered.exception()) is not None:
                labels.set_exception(error)
                return
            answer = answered.result()
            copied = answer.outputs["double"].copy()
            answer.release()  # before the test goes on, which counts releases and free slots
            labels.set_result(copied)

        self.batcher.submit(BatchRequest({"x": x}, DOUBLE, deadline_s)).add_done_callback(copy)
        return labels

    def label(self, x: Array, deadline_s: float = math.inf) -> Array:
        return self.ask(x, deadline_s).result(WAIT_S)

    def count(self, name: str) -> float:
        value = self.recorder.metric_registry.get_sample_value(f"edl_teacher_{name}")
        assert value is not None
        return value

    def __exit__(self, *_: object) -> None:
        self.go.release(1000)
        self.batcher.stop()
        self._device.shutdown()


def test_a_device_has_one_job_ahead_and_no_more() -> None:
    """Requests are not merged by default."""
    with Bench() as b:
        asked = [b.ask(array(2, 4) + i) for i in range(5)]
        wait_until(lambda: b.at_device == READ_AHEAD == 2)
        b.go.release()
        wait_until(lambda: len(b.runs) == 3)
        assert b.at_device == READ_AHEAD
        b.go.release(4)
        for i, future in enumerate(asked):
            np.testing.assert_array_equal(future.result(WAIT_S), (array(2, 4) + i) * 2)
        assert b.runs == [(0, [2])] * 5
        assert b.released == 5


def test_requests_are_labelled_if_no_more_threads_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As at the limit of processes of a container; no slot or device is lost, either."""
    with Bench(slots=READ_AHEAD) as b:
        start = threading.Thread.start

        def start_others(thread: threading.Thread) -> None:
            if thread.name.startswith("batch_"):
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_others)
        b.go.release(4 * READ_AHEAD)
        for _ in range(4):
            for future in [b.ask(array(2, 4)) for _ in range(READ_AHEAD)]:
                np.testing.assert_array_equal(future.result(WAIT_S), array(2, 4) * 2)


def test_merged_requests_get_their_own_rows() -> None:
    with Bench(rule=BatchRule(8)) as b:
        first = [b.ask(array(1, 4)) for _ in range(2)]  # these go at once, and fill the device
        sizes = [3, 2, 3, 1]
        merged = [b.ask(array(rows, 4) + rows) for rows in sizes]
        b.go.release(6)
        for future, rows in zip(merged, sizes, strict=True):
            np.testing.assert_array_equal(future.result(WAIT_S), (array(rows, 4) + rows) * 2)
        for future in first:
            future.result(WAIT_S)
        assert sorted(sizes for _, sizes in b.runs) == [[1], [1], [1], [3, 2, 3]]
        assert (b.count("batch_samples_count"), b.count("batch_samples_sum")) == (4, 11)
        assert b.count("queue_seconds_count") == 6
        assert b.released == 6


def test_a_request_beyond_the_slots_is_refused_with_a_time_to_retry() -> None:
    now = [0.0]
    with Bench(0.01, slots=3, clock=lambda: now[0]) as b:
        for _ in range(2):
            asked = [b.ask(array(8, 4)) for _ in range(3)]
            hints = []
            for _ in range(3):
                with pytest.raises(TeacherOverloaded, match="all 3 slots") as caught:
                    b.label(array(8, 4))
                assert caught.value.retry_after_s is not None
                hints.append(caught.value.retry_after_s)
            # 8 samples of 10 ms free a slot each 80 ms; each of the refused is given one of them.
            assert hints == pytest.approx([0.08, 0.16, 0.24])
            b.go.release(3)
            for future in asked:
                future.result(WAIT_S)
            now[0] += 60.0
        b.go.release()
        b.label(array(8, 4))


def test_an_expired_or_cancelled_request_is_not_computed_and_frees_its_slot() -> None:
    with Bench(slots=3) as b:
        asked = [b.ask(array(1, 4)) for _ in range(2)]
        with pytest.raises(DeadlineExceeded):
            b.label(array(5, 4), time.monotonic() + 0.05)
        given_up = b.batcher.submit(BatchRequest({"x": array(5, 4)}, DOUBLE))
        with pytest.raises(TeacherOverloaded):
            b.label(array(1, 4))
        assert given_up.cancel()
        asked.append(b.ask(array(1, 4)))
        b.go.release(3)
        for future in asked:
            future.result(WAIT_S)
        assert b.backend.runs == [1] * 3
        assert b.count("expired_total") == 2


def test_a_request_at_a_device_keeps_its_slot() -> None:
    with Bench(slots=1) as b:
        labels = b.batcher.submit(BatchRequest({"x": array(1, 4)}, DOUBLE))
        assert not labels.cancel()
        with pytest.raises(TeacherOverloaded):
            b.label(array(1, 4))
        b.go.release()
        labels.result(WAIT_S)
        with pytest.raises(TeacherOverloaded):  # they lie in memory that is the slot's
            b.label(array(1, 4))
        labels.result().release()
        b.go.release()
        b.label(array(1, 4))


@pytest.mark.parametrize("error", [RetryableError("it ended"), MemoryError("no memory")])
def test_a_failed_job_fails_its_requests_only(error: Exception) -> None:
    with Bench(rule=BatchRule(4, 30.0)) as b:
        b.error = error
        lost = [b.ask(array(2, 4)), b.ask(array(2, 4))]
        b.go.release()
        for future in lost:
            with pytest.raises(RetryableError, match=str(error)):
                future.result(WAIT_S)
        b.error = None
        b.go.release()
        b.label(array(4, 4))


def test_a_crash_is_blamed_on_a_request_that_was_alone() -> None:
    now_s = 0.0
    with Bench(rule=BatchRule(4, 0.0), clock=lambda: now_s) as b:

        def pairs() -> list[Future[Array]]:
            """Two pairs of requests behind jobs that keep the device busy."""
            before = [b.ask(array(4, 4)) for _ in range(READ_AHEAD)]
            wait_until(lambda: b.at_device == READ_AHEAD)
            asked = [b.ask(array(2, 4)) for _ in range(4)]
            b.go.release(READ_AHEAD)
            for one in before:
                one.exception(WAIT_S)
            wait_until(lambda: b.at_device == READ_AHEAD)
            return asked

        innocent = pairs()
        b.error = PredictorCrashed("it ended")
        b.go.release(2)
        for one in innocent:
            error = one.exception(WAIT_S)
            assert isinstance(error, RetryableError)
            assert not isinstance(error, PredictorCrashed)
        alone = b.ask(array(2, 4)), b.ask(array(2, 4))
        b.go.release(2)
        for one in alone:
            assert isinstance(one.exception(WAIT_S), PredictorCrashed)
        b.error = None
        now_s = UNMERGED_S
        merged = pairs()
        b.go.release(2)
        for one in merged:
            one.result(WAIT_S)
        assert [samples for _, samples in b.runs[-2:]] == [[2, 2], [2, 2]]


def test_a_restarting_device_gets_no_jobs() -> None:
    with Bench(0.01, 0.01) as b:
        b.predictors[0].ready = False
        b.batcher.devices_changed()
        for _ in range(3):
            b.ask(array(1, 4))
        wait_until(lambda: b.at_device == 2)
        assert [lane for lane, _ in b.runs] == [1, 1]
        b.predictors[0].ready = True
        b.batcher.devices_changed()
        wait_until(lambda: [lane for lane, _ in b.runs] == [1, 1, 0])


def test_without_a_device_requests_fail_at_once() -> None:
    with Bench() as b, Bench() as stopped:
        held, others = ([each.ask(array(1, 4)) for _ in range(3)] for each in (b, stopped))
        b.predictors[0].ready = False
        b.batcher.devices_changed()
        with pytest.raises(RetryableError, match="restarting"):
            held[2].result(WAIT_S)
        with pytest.raises(RetryableError, match="restarting"):
            b.label(array(1, 4))
        stopped.batcher.stop()
        with pytest.raises(RetryableError, match="has stopped"):
            others[2].result(WAIT_S)


def test_merging_has_a_numerics_id_of_its_own() -> None:
    report = PredictorReady(SPEC, 0.01, 8)
    ids = [PredictorReady.combined([report], n).spec.numerics_id for n in (0, 8, 9)]
    assert ids[0] == SPEC.numerics_id
    assert ids[1].startswith("merged-")
    assert len(set(ids)) == 3


@pytest.mark.parametrize("end", ["labels", "joint error", "own error", "expired", "restarting"])
def test_inputs_are_freed_with_the_answer(end: str, no_garbage_collector: None) -> None:
    with Bench(rule=BatchRule(8)) as b:
        x = array(2, 4)
        gone = weakref.ref(x)
        deadline_s = time.monotonic() - 1 if end == "expired" else math.inf
        if end == "joint error":
            b.error = RequestRefused("no such word")
        if end == "own error":
            b.backend.function = _refusing
        b.predictors[0].ready = end != "restarting"
        b.go.release()
        try:
            b.label(x, deadline_s)
        except EdlError:
            assert end != "labels"
        b.error = None  # the test's own hold on it
        del x
        wait_until(lambda: gone() is None)  # the device's thread lets go a moment later


def _refusing(_: object) -> dict[str, Array]:
    raise RequestRefused("no such word")


def test_many_threads_get_their_own_labels() -> None:
    """Random sizes and shapes at two devices that answer at once."""
    with Bench(0.001, 0.002, slots=64, rule=BatchRule(16, 0.002, frozenset({8}))) as b:
        b.go.release(10_000)

        def work(seed: int) -> int:
            rng = np.random.default_rng(seed)
            for _ in range(25):
                x = rng.random((rng.integers(1, 12), rng.integers(4, 6)), dtype=np.float32)
                np.testing.assert_array_equal(b.label(x), x * 2)
            return 25

        with ThreadPoolExecutor(32) as threads:
            assert sum(threads.map(work, range(32))) == 800
        assert b.released == 800
        assert all(sum(samples) <= 16 for _, samples in b.runs)
        assert len(b.runs) < 800, "some were merged"
