"""Queues the requests of all callers, merges them into batches, and sends these to the devices."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Protocol

from ..errors import DeadlineExceeded, EdlError, PredictorCrashed, RetryableError
from ..proto.arena import Arena
from ..scheduler.batching import BatchRule, DeviceLane, WaitingRequest, decide, promise_s
from .jobs import PredictorReady, RequestLabels, Result, Results
from .pool import PredictorPool
from .recorder import Recorder
from .request import BatchRequest, TeacherOverloaded


class Labeller(Protocol):
    """Labels batches; `Batcher` implements it."""

    @property
    def ready(self) -> bool:
        """Whether it accepts batches now."""
        ...

    @property
    def memory(self) -> Arena:
        """Memory where inputs may lie, so that they need not be copied."""
        ...

    def require_loaded(self) -> PredictorReady:
        """The model; raises RetryableError while it is not loaded."""
        ...

    def submit(self, request: BatchRequest) -> Future[RequestLabels]:
        """Have one batch labelled before its deadline; does not block.

        Inputs in `memory` must not be freed before the end.

        Returns:
            Its labels, which the receiver must release, or an error of `TeacherError`'s family.
            Cancelling it before the batch is at a device prevents its computation.

        Raises:
            EdlError: it is not accepted.
        """
        ...


#: Jobs at one predictor: the running one, and the next one with its inputs in place.
READ_AHEAD: Final = 2
#: Seconds without merging after merged requests crashed a predictor, so that the guilty request,
#: which is sent again, crashes it alone.
UNMERGED_S: Final = 60.0
_LEFT: Final = "this teacher has left: ask another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedRequest(WaitingRequest):
    """A request in the queue or at a device."""

    request: BatchRequest
    outcome: Future[RequestLabels] = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class _DeviceJob:
    lane: int
    requests: tuple[_QueuedRequest, ...]

    @property
    def samples(self) -> int:
        return sum(queued.samples for queued in self.requests)

    @property
    def is_in_memory(self) -> bool:
        """Whether its inputs are where the predictors read them."""
        return len(self.requests) == 1 and self.requests[0].request.refs is not None


class RequestSlots:
    """Limits the requests that wait or are labelled. Any thread may use it.

    Args:
        count: the number of slots.
        sample_s: returns the seconds per sample of all devices together.
        clock: seconds, monotonic.
    """

    def __init__(
        self, count: int, sample_s: Callable[[], float], clock: Callable[[], float]
    ) -> None:
        self._count = count
        self._sample_s = sample_s
        self._clock = clock
        self._lock = threading.Lock()
        self._taken = 0
        self._samples = 0
        self._promised_s = 0.0

    def take(self, samples: int) -> None:
        """Take a slot for a request of `samples`; `give_back` returns it.

        Raises:
            TeacherOverloaded: every slot is taken; the error says when to try again.
        """
        with self._lock:
            if self._taken >= self._count:
                raise self._overloaded()
            self._taken += 1
            self._samples += samples

    def give_back(self, samples: int) -> None:
        """Return the slot of a request of `samples`."""
        with self._lock:
            self._taken -= 1
            self._samples -= samples

    def _overloaded(self) -> TeacherOverloaded:
        now = self._clock()
        interval_s = self._samples / self._taken * self._sample_s()
        self._promised_s = promise_s(now, self._promised_s, interval_s, self._count)
        after_s = self._promised_s - now
        return TeacherOverloaded(
            f"all {self._count} slots of this teacher are taken: try again in {after_s:.3g} s",
            after_s,
        )


class Batcher:
    """Labels requests with a pool of predictors. Any thread may call it, including an event loop's.

    Args:
        pool: the predictors.
        slots: requests that may wait or be labelled; one more is refused.
        rule: how requests are merged.
        recorder: counts what becomes of requests.
        clock: seconds, monotonic; also that of the deadlines.
    """

    def __init__(
        self,
        pool: PredictorPool,
        slots: int,
        rule: BatchRule,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pool = pool
        self._slots = RequestSlots(slots, lambda: pool.t_t_s / max(pool.lanes, 1), clock)
        self._rule = rule
        self._recorder = recorder
        self._clock = clock
        self._condition = threading.Condition()
        self._numbers = itertools.count()
        self._queue: dict[int, _QueuedRequest] = {}  # in the order of arrival
        self._at_lane: list[list[_DeviceJob]] = [[] for _ in pool.predictors]
        self._next_check_s = math.inf
        self._unmerged_until_s = -math.inf
        self._closed = False
        self._workers = ThreadPoolExecutor(READ_AHEAD * len(self._at_lane), "batch")
        self._thread = threading.Thread(target=self._run_timer, name="batcher", daemon=True)

    @property
    def ready(self) -> bool:
        """Whether requests are accepted now."""
        return self._pool.ready

    @property
    def memory(self) -> Arena:
        """Memory where inputs may lie, so that they need not be copied."""
        return self._pool.inputs

    def require_loaded(self) -> PredictorReady:
        """The model as it answers here; raises RetryableError while it is not loaded."""
        ready, most = self._pool.require_loaded(), self._rule.max_samples
        return replace(ready, spec=ready.spec.merging(most)) if most else ready

    def start(self) -> None:
        """Start accepting requests."""
        self._thread.start()

    def stop(self) -> None:
        """Fail the requests in the queue with RetryableError."""
        with self._condition:
            self._closed = True
            self._fail_queue(RetryableError(_LEFT))
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._workers.shutdown(wait=False)  # jobs at a device end with the device

    def devices_changed(self) -> None:
        """A predictor has become ready, or has ended."""
        self._dispatch_now()

    def submit(self, request: BatchRequest) -> Future[RequestLabels]:
        """Have one request labelled; does not block.

        Args:
            request: validated; its inputs must not be changed or freed before the end.

        Returns:
            Its labels, which keep the slot until they are released. Or an error: DeadlineExceeded
                before it was computed, RetryableError if its predictor ended or none is left,
                RequestRefused for inputs that the model cannot take, BadAnswer for labels that are
                not finite. Cancelling it before it is at a device removes it from the queue.

        Raises:
            TeacherOverloaded: all slots are taken.
            RetryableError: the batcher has been stopped.
        """
        samples = request.samples
        self._slots.take(samples)
        try:
            queued, jobs = self._enqueue(request)
        except BaseException:
            self._slots.give_back(samples)
            raise
        # It refers to the request by number only: a reference cycle would keep the large request
        # until the next garbage collection.
        queued.outcome.add_done_callback(partial(self._done, queued.number, samples))
        outcome = queued.outcome
        del queued
        self._submit_jobs(*jobs)
        return outcome

    def _enqueue(self, request: BatchRequest) -> tuple[_QueuedRequest, list[_DeviceJob]]:
        with self._condition:
            if self._closed:
                raise RetryableError(_LEFT)
            queued = _QueuedRequest(
                number=next(self._numbers),
                shape=request.shape if self._rule.max_samples else None,  # else none are merged
                samples=request.samples,
                arrived_s=self._clock(),
                deadline_s=request.deadline_s,
                request=request,
            )
            self._queue[queued.number] = queued
            return queued, self._dispatch()

    def _done(self, number: int, samples: int, outcome: Future[RequestLabels]) -> None:
        """A request has ended; one with labels keeps its slot until they are released."""
        if outcome.cancelled():
            with self._condition:
                self._queue.pop(number, None)
            self._recorder.expired()
        elif (error := outcome.exception()) is None:
            return
        elif isinstance(error, DeadlineExceeded):
            self._recorder.expired()
        self._slots.give_back(samples)

    def _release(self, samples: int, release: Callable[[], object]) -> None:
        release()
        self._slots.give_back(samples)

    def _dispatch_now(self) -> None:
        """Something has changed: send what can be sent now."""
        with self._condition:
            jobs = self._dispatch()
        self._submit_jobs(*jobs)

    def _submit_jobs(self, *jobs: _DeviceJob) -> None:
        """Send jobs to their devices, and continue when they are labelled."""
        for job in jobs:
            requests = [queued.request for queued in job.requests]
            results = self._pool.predictors[job.lane].submit(requests)
            results.add_done_callback(partial(self._finish, job))

    def _finish(self, job: _DeviceJob, done: Results) -> None:
        """Deliver the results of a job to its requests."""
        merged_crash = len(job.requests) > 1 and isinstance(done.exception(), PredictorCrashed)
        with self._condition:
            self._at_lane[job.lane].remove(job)
            if merged_crash:
                self._unmerged_until_s = self._clock() + UNMERGED_S
            jobs = self._dispatch()
        self._submit_jobs(*jobs)
        for queued, result in zip(job.requests, _each(done, len(job.requests)), strict=True):
            if isinstance(result, RequestLabels):
                release = partial(self._release, queued.samples, result.release)
                queued.outcome.set_result(replace(result, release=release))
            else:
                queued.outcome.set_exception(result)

    # --- under the lock

    def _dispatch(self) -> list[_DeviceJob]:
        """Decide which jobs start, and fail requests whose time is over.

        Returns:
            Jobs to be submitted after the lock is released. Jobs whose inputs must be copied to a
            device are submitted by another thread.
        """
        if not self._pool.ready:
            self._fail_queue(RetryableError("the predictor is restarting"))
        if not self._queue:
            self._next_check_s = math.inf
            return []
        now = self._clock()
        rule = BatchRule() if now < self._unmerged_until_s else self._rule
        decision = decide(rule, list(self._queue.values()), self._lanes(), now)
        for number in decision.expired:
            error = DeadlineExceeded("its deadline was over before its turn came")
            _fail(self._queue.pop(number), error)
        jobs = []
        for batch in decision.batches:
            chosen = [self._queue.pop(number) for number in batch.requests]
            requests = tuple(t for t in chosen if t.outcome.set_running_or_notify_cancel())
            if not requests:
                continue
            job = _DeviceJob(batch.lane, requests)
            self._at_lane[batch.lane].append(job)
            self._recorder.dispatched(job.samples, [now - t.arrived_s for t in requests])
            if job.is_in_memory:
                jobs.append(job)
            else:
                self._workers.submit(self._submit_jobs, job)
        earlier = decision.look_again_s < self._next_check_s
        self._next_check_s = decision.look_again_s
        if earlier:
            self._condition.notify_all()
        return jobs

    def _lanes(self) -> list[DeviceLane]:
        return [
            DeviceLane(
                READ_AHEAD - len(jobs) if predictor.ready else 0,
                sum(job.samples for job in jobs),
                predictor.t_t_s,
            )
            for predictor, jobs in zip(self._pool.predictors, self._at_lane, strict=True)
        ]

    def _fail_queue(self, error: EdlError) -> None:
        queue, self._queue = self._queue, {}
        for queued in queue.values():
            _fail(queued, error)

    def _run_timer(self) -> None:
        while True:
            with self._condition:
                if self._closed:
                    return
                left_s = self._next_check_s - self._clock()
                if left_s > 0:
                    self._condition.wait(None if left_s == math.inf else left_s)
                    continue
                jobs = self._dispatch()
            self._submit_jobs(*jobs)


def _each(done: Results, count: int) -> Sequence[Result]:
    """The result of each of the `count` requests of a job."""
    if (error := done.exception()) is None:
        return done.result()
    if count > 1 and isinstance(error, PredictorCrashed):
        error = RetryableError(f"the predictor ended while it computed {count} requests at once")
    if not isinstance(error, EdlError):
        error = RetryableError(f"the job was lost: {type(error).__name__}: {error}")
    return [error.with_traceback(None)] * count


def _fail(queued: _QueuedRequest, error: EdlError) -> None:
    """Fail a request that has not been at a device, unless it was cancelled."""
    if queued.outcome.set_running_or_notify_cancel():
        queued.outcome.set_exception(error)
