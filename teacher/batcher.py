"""Queues the requests of all callers, merges requests into batches, and sends these to devices."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from ..runtime.errors import DeadlineExceeded, EdlError, PredictorCrashed, RetryableError
from ..scheduler.batching import BatchRule, DeviceLane, WaitingRequest, decide, retry_at_s
from .pool import PredictorPool, PredictorProcess
from .predictor_jobs import RequestLabels, Results
from .recorder import Recorder
from .request import BatchRequest, TeacherOverloaded

#: Limit of jobs at one predictor: one runs, and the inputs of the next one are already in memory.
READ_AHEAD: Final = 2
#: Seconds without merging after merged requests crashed a predictor. If the request that caused the
#: crash is sent again meanwhile, it runs alone: a second crash affects no other request.
UNMERGED_S: Final = 60.0
_STOPPED: Final = "this teacher has stopped: send the request to another one"


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueuedRequest(WaitingRequest):
    """A request in the queue or at a device."""

    request: BatchRequest
    outcome: Future[RequestLabels]


@dataclass(slots=True, eq=False)
class _Lane:
    """A predictor, and the numbers of jobs and samples that it has not finished."""

    predictor: PredictorProcess
    jobs: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class _DeviceJob:
    """Requests that one predictor labels together."""

    lane: _Lane
    requests: Sequence[_QueuedRequest]
    samples: int


class Batcher:
    """Labels requests with a pool of predictors. Any thread may call it, including an event loop's.

    Args:
        pool: the predictors.
        slots: limit of requests that wait, run, or have labels that are not released; further ones
            are refused.
        rule: how requests are merged.
        recorder: records batches, times in the queue, and requests that were not computed.
        clock: seconds, monotonic; the clock of the requests' deadlines.
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
        self._slots = slots
        self._rule = rule
        self._recorder = recorder
        self._clock = clock
        self._condition = threading.Condition()
        self._numbers = itertools.count()
        self._queue: dict[int, _QueuedRequest] = {}  # in the order of arrival
        self._lanes = [_Lane(predictor) for predictor in pool.predictors]
        self._taken_slots = self._taken_samples = 0
        self._promised_s = 0.0  # when the last refused request may retry
        self._next_check_s = math.inf
        self._unmerged_until_s = -math.inf
        self._closed = False
        self._workers = ThreadPoolExecutor(READ_AHEAD * len(self._lanes), "batch")
        self._thread = threading.Thread(target=self._run_timer, name="batcher", daemon=True)

    def start(self) -> None:
        """Start accepting requests."""
        self._workers.submit(int)  # starts a thread, which runs all jobs if no other can start
        self._thread.start()

    def stop(self) -> None:
        """Accept no more requests, and fail those in the queue with RetryableError."""
        with self._condition:
            self._closed = True
            self._fail_queue(RetryableError(_STOPPED))
            self._condition.notify_all()
        if self._thread.ident is not None:
            self._thread.join()
        self._workers.shutdown(wait=False)  # jobs at a predictor end with the predictor

    def devices_changed(self) -> None:
        """Send or fail waiting requests after a predictor became ready or ended."""
        with self._condition:
            jobs = self._dispatch()
        self._submit_jobs(jobs)

    def submit(self, request: BatchRequest) -> Future[RequestLabels]:
        """Queue one request to be labelled, without waiting for a device.

        Args:
            request: validated; its inputs must not be changed or freed before the future is done.

        Returns:
            A future with the labels, which keep the slot until they are released, or with an
                error: DeadlineExceeded if the deadline passed before the computation,
                RetryableError if the predictor ended, the run lacked a resource, or no predictor is
                ready, RequestRefused for inputs that the model cannot take, BadAnswer for labels
                that are not finite or break the model's spec. Cancelling the future before the
                request is at a device removes the request from the queue.

        Raises:
            TeacherOverloaded: all slots are taken.
            RetryableError: the batcher has been stopped.
        """
        samples, outcome = request.samples, Future[RequestLabels]()
        with self._condition:
            if self._taken_slots >= self._slots:
                raise self._overloaded()
            if self._closed:
                raise RetryableError(_STOPPED)
            self._taken_slots += 1
            self._taken_samples += samples
            number = next(self._numbers)
            self._queue[number] = _QueuedRequest(
                number=number,
                shape=request.merge_key if self._rule.max_samples else None,  # None: no merging
                samples=samples,
                arrived_s=self._clock(),
                deadline_s=request.deadline_s,
                request=request,
                outcome=outcome,
            )
            jobs = self._dispatch()
        # The callback gets only the number: with the request, a reference cycle would keep its
        # arrays until the next garbage collection.
        outcome.add_done_callback(partial(self._done, number, samples))
        if jobs:
            self._submit_jobs(jobs)
        return outcome

    def _overloaded(self) -> TeacherOverloaded:
        now = self._clock()
        sample_s = self._pool.t_t_s / max(self._pool.device_count, 1)
        interval_s = self._taken_samples / self._taken_slots * sample_s
        self._promised_s = retry_at_s(now, self._promised_s, interval_s, self._slots)
        after_s = self._promised_s - now
        return TeacherOverloaded(
            f"all {self._slots} slots of this teacher are taken: try again in {after_s:.3g} s",
            after_s,
        )

    def _done(self, number: int, samples: int, outcome: Future[RequestLabels]) -> None:
        """Free the slot of a request that ended without labels; with labels, `release` does it."""
        if outcome.cancelled():
            with self._condition:
                self._queue.pop(number, None)
            self._recorder.expired()
        elif (error := outcome.exception()) is None:
            return
        elif isinstance(error, DeadlineExceeded):
            self._recorder.expired()
        self._free_slot(samples)

    def _free_slot(self, samples: int, release: Callable[[], object] | None = None) -> None:
        """Free the slot of a request, after releasing its labels if it has any."""
        if release is not None:
            release()
        with self._condition:
            self._taken_slots -= 1
            self._taken_samples -= samples

    def _submit_jobs(self, jobs: Sequence[_DeviceJob]) -> None:
        """Send jobs to their devices; `_finish` runs at the end of each job."""
        for job in jobs:
            results = job.lane.predictor.submit([queued.request for queued in job.requests])
            results.add_done_callback(partial(self._finish, job))

    def _finish(self, job: _DeviceJob, outcome: Results) -> None:
        """Deliver the results of a job to its requests."""
        error, is_merged = outcome.exception(), len(job.requests) > 1
        is_merged_crash = is_merged and isinstance(error, PredictorCrashed)
        with self._condition:
            job.lane.jobs -= 1
            job.lane.samples -= job.samples
            if is_merged_crash:
                self._unmerged_until_s = self._clock() + UNMERGED_S
            jobs = self._dispatch() if self._queue else []
        if jobs:
            self._submit_jobs(jobs)
        if error is None:
            results = outcome.result()
        else:
            if is_merged_crash:
                error = RetryableError(
                    f"the predictor ended while it computed {len(job.requests)} requests at once"
                )
            if not isinstance(error, EdlError):
                error = RetryableError(f"the job was lost: {type(error).__name__}: {error}")
            results = [error.with_traceback(None)] * len(job.requests)
        for queued, result in zip(job.requests, results, strict=True):
            if isinstance(result, RequestLabels):
                release = partial(self._free_slot, queued.samples, result.release)
                labels = RequestLabels(result.outputs, result.device_seconds, release)
                queued.outcome.set_result(labels)
            else:
                queued.outcome.set_exception(result)

    # --- `_dispatch` and `_fail_queue` are called with the lock held

    def _dispatch(self) -> list[_DeviceJob]:
        """Decide which jobs start. Fail expired requests, or all requests if no predictor is ready.

        Returns:
            Jobs to be submitted after the lock is released. Jobs with inputs that must be copied to
            the predictors' memory are submitted by another thread instead.
        """
        if self._queue and not self._pool.ready:
            self._fail_queue(RetryableError("the predictor is restarting"))
        if not self._queue:
            self._next_check_s = math.inf
            return []
        now = self._clock()
        rule = BatchRule() if now < self._unmerged_until_s else self._rule
        lanes = [
            DeviceLane(
                READ_AHEAD - lane.jobs if lane.predictor.ready else 0,
                lane.samples,
                lane.predictor.t_t_s,
            )
            for lane in self._lanes
        ]
        decision = decide(rule, list(self._queue.values()), lanes, now)
        for number in decision.expired:
            error = DeadlineExceeded("the deadline was over before the request's turn came")
            _fail(self._queue.pop(number), error)
        jobs = []
        for batch in decision.batches:
            requests, waited_s, samples = list[_QueuedRequest](), list[float](), 0
            for number in batch.requests:
                queued = self._queue.pop(number)
                if queued.outcome.set_running_or_notify_cancel():
                    requests.append(queued)
                    waited_s.append(now - queued.arrived_s)
                    samples += queued.samples
            if not requests:
                continue
            lane = self._lanes[batch.lane]
            lane.jobs += 1
            lane.samples += samples
            self._recorder.dispatched(samples, waited_s)
            job = _DeviceJob(lane, requests, samples)
            if len(requests) == 1 and requests[0].request.refs is not None:
                jobs.append(job)
            else:
                # RuntimeError: no further thread can start, but the job is queued for the others.
                with suppress(RuntimeError):
                    self._workers.submit(self._submit_jobs, [job])
        is_earlier = decision.look_again_s < self._next_check_s
        self._next_check_s = decision.look_again_s
        if is_earlier:
            self._condition.notify_all()
        return jobs

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
            self._submit_jobs(jobs)


def _fail(queued: _QueuedRequest, error: EdlError) -> None:
    """Fail a request that has not been at a device, unless it was cancelled."""
    if queued.outcome.set_running_or_notify_cancel():
        queued.outcome.set_exception(error)
