"""The predictor processes of a teacher, one for each device, all with the same model.

If a predictor crashes, its requests fail with errors that allow a retry. The process is restarted
after growing pauses while the others serve; the teacher's sockets stay open. A restart that cannot
load the model, such as for lack of memory, counts as a crash. A predictor that keeps crashing
without an answer in between is given up, and the teacher continues with the others. The teacher
ends if all predictors are given up, if a predictor refuses the model or dies during its first
start, or if a restarted predictor finds that the model has changed.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from ..proto.arena import Arena, Record
from ..proto.channel import Channel, Message
from ..proto.dataclass_json import from_plain, to_plain
from ..runtime import supervise
from ..runtime.errors import EdlError, ModelError, PredictorCrashed, ProcessFailed, RetryableError
from ..runtime.logs import child_log_relay
from ..scheduler.backoff import delay_s
from ..scheduler.rates import RecentMedian, harmonic_mean_t_t
from . import predictor_jobs
from .config import PredictorConfig
from .predictor_jobs import (
    MIN_T_T_S,
    PredictorReady,
    RequestLabels,
    Result,
    Results,
    outputs_to_text,
)
from .request import BatchRequest

log = logging.getLogger(__name__)

#: A predictor is given up after this many crashes without an answer in between. Crashes older than
#: CRASH_WINDOW_S do not count once it has loaded the model again.
GIVE_UP_AFTER_CRASHES = 5
CRASH_WINDOW_S = 60.0
#: The longest wait, in seconds, from SIGKILL until the thread has noticed the end of the process
#: and read its last output.
_STOP_S = 5.0
#: Seconds for a process to end after its channel has ended.
_EXIT_S = 1.0


class PredictorPool:
    """The predictors of one teacher. Any thread may use them.

    Args:
        configs: settings of the predictors, one for each device.
        merge_samples: as in `PredictorReady.combined`.
        on_progress: called with the progress of a start, in words.
        on_change: called from a thread of the pool after a predictor became ready, reduced its
            micro-batch, crashed, was given up or was stopped.

    Attributes:
        predictors: one for each device.
        inputs: memory from which every predictor reads the inputs of requests.
        ready_report: the combined reports of all predictors; None until every predictor has loaded
            the model. Its `numerics` (settings that can change bits of labels) are those of all,
            and tell whether requests are merged.
    """

    def __init__(
        self,
        configs: Sequence[PredictorConfig],
        *,
        merge_samples: int = 0,
        on_progress: Callable[[str], None] = log.info,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.inputs = Arena.create()
        self.ready_report: PredictorReady | None = None
        self._merge_samples = merge_samples
        self._on_change = on_change
        self._lock = threading.Lock()  # guards `ready_report` and `_given_up`
        self._given_up: list[PredictorProcess] = []
        self.predictors: list[PredictorProcess] = []
        #: For each predictor, the predictor that sets its micro-batch: the first one on an equal
        #: device if micro-batches are measured, else itself.
        self._measured_by: list[PredictorProcess] = []
        first_by_kind: dict[tuple[str, int], PredictorProcess] = {}
        for number, config in enumerate(configs, 1):
            name = f"predictor {number} of {len(configs)}, on {config.device_label}"
            name = name if len(configs) > 1 else ""
            predictor = PredictorProcess(config, self.inputs, name, on_progress, self._changed)
            self.predictors.append(predictor)
            kind = config.device.partition(":")[0], config.threads
            is_measured = config.micro_batch is None
            self._measured_by.append(
                first_by_kind.setdefault(kind, predictor) if is_measured else predictor
            )

    def start(self) -> None:
        """Start the processes; `wait_loaded` reports the result.

        If micro-batches are measured, the first of several equal devices measures. The others start
        after it and use its result, so that all of them give labels with equal bits.
        """
        for predictor, measuring in zip(self.predictors, self._measured_by, strict=True):
            if measuring is predictor:
                predictor.start()
            elif measuring.ready_report is not None:
                predictor.start(measuring.ready_report.micro_batch)

    def wait_loaded(self, timeout_s: float) -> bool:
        """Wait until the first start of every predictor has succeeded or failed.

        Returns:
            Whether all predictors have loaded the model within `timeout_s`.

        Raises:
            EdlError: a predictor refused the model; usually this is a ModelError.
            ModelError: predictors have loaded different content.
            ProcessFailed: a predictor was given up.
        """
        deadline = time.monotonic() + timeout_s
        loaded = [
            predictor.wait_loaded(max(0.0, deadline - time.monotonic()))
            for predictor in self.predictors
        ]
        reports = [predictor.ready_report for predictor in self.predictors]
        contents = {report.spec.content_id for report in reports if report is not None}
        if all(loaded) and len(contents) > 1:
            raise ModelError("the model changed while it was loaded: start this teacher anew")
        return all(loaded)

    @property
    def ready(self) -> bool:
        """Whether any predictor accepts requests now."""
        is_ready = False
        for predictor in self.predictors:
            is_ready |= predictor.ready
        return is_ready

    def require_loaded(self) -> PredictorReady:
        """Return `ready_report`; raise RetryableError while it is None."""
        if (loaded := self.ready_report) is None:
            raise RetryableError("the model is loading")
        return loaded

    @property
    def failure(self) -> EdlError | None:
        """Why the teacher must end: a predictor's ModelError, or all are given up; else None."""
        failures = [p.failure for p in self.predictors if p.failure is not None]
        refusal = next((error for error in failures if isinstance(error, ModelError)), None)
        return refusal or (failures[-1] if len(failures) == len(self.predictors) else None)

    @property
    def restarts(self) -> int:
        """Number of restarts, summed over all predictors."""
        return sum(predictor.restarts for predictor in self.predictors)

    @property
    def device_count(self) -> int:
        """Number of devices that serve, or will after a restart."""
        return sum(predictor.failure is None for predictor in self.predictors)

    @property
    def t_t_s(self) -> float:
        """Seconds per sample of one device: the harmonic mean over predictors not given up."""
        serving = [predictor for predictor in self.predictors if predictor.failure is None]
        return harmonic_mean_t_t([predictor.t_t_s for predictor in serving or self.predictors[:1]])

    def stop(self) -> None:
        """End the processes; their requests fail with RetryableError."""
        for predictor in self.predictors:
            predictor.stop()
        self.inputs.close()

    def _changed(self) -> None:
        with self._lock:
            reports = [p.ready_report for p in self.predictors if p.ready_report is not None]
            if len(reports) == len(self.predictors):
                self.ready_report = PredictorReady.combined(reports, self._merge_samples)
        self.start()  # starts devices that waited for a measurement
        with self._lock:
            for predictor in self.predictors:
                if predictor.failure is not None and predictor not in self._given_up:
                    self._given_up.append(predictor)
                    if self.failure is None:
                        log.error("%s", predictor.failure)
        self._on_change()


@dataclass(frozen=True, slots=True)
class _PendingJob:
    """A job at a predictor, with the memory of its inputs."""

    inputs: Record | None  # None: the caller owns the memory
    parts: Sequence[tuple[int, str, float]]  # samples, outputs and deadline of each request
    results: Results


class PredictorProcess:
    """The predictor of one device: starts it, sends jobs, and restarts it after a crash.

    Args:
        config: settings of the predictor.
        inputs: memory of the requests' inputs; it outlives the process.
        name: its name in messages; empty for the only predictor.
        on_progress: called with the progress of a start, in words.
        on_change: called from this object's thread; see `PredictorPool`.

    Attributes:
        ready_report: its latest report that it accepts requests; None before the first one.
        ready: whether it accepts requests now.
        t_t_s: seconds per sample: the median of the last answers, else the measurement at the
            start.
        failure: why it was given up, or how it refused the model; None if neither happened.
        restarts: number of restarts.
        micro_batch_reductions: how often its micro-batch was reduced for lack of memory.
    """

    def __init__(
        self,
        config: PredictorConfig,
        inputs: Arena,
        name: str,
        on_progress: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.ready_report: PredictorReady | None = None
        self.ready = False
        self.t_t_s = MIN_T_T_S
        self.failure: EdlError | None = None
        self.restarts = 0
        self.micro_batch_reductions = 0
        self._config = config
        self._inputs = inputs
        self._name = name or "the predictor"
        self._on_progress = on_progress if not name else lambda text: on_progress(f"{name}: {text}")
        self._on_change = on_change
        self._lock = threading.Lock()  # guards `_begun`, `_channel` and `_jobs`
        #: Held while a job is added to `_jobs` and sent, so that both orders are the same. A lock
        #: of its own, because sending may block, and nothing may block while `_lock` is held.
        self._send_lock = threading.Lock()
        self._begun = False
        self._process: supervise.Process | None = None
        self._channel: Channel | None = None  # while it accepts jobs
        self._numbers = itertools.count()
        self._jobs: dict[int, _PendingJob] = {}
        #: Records of labels that callers have released: the message of the next job tells the
        #: predictor to free them. Any thread appends, without a lock.
        self._released_records: list[int] = []
        self._median = RecentMedian()
        self._loaded = False  # whether it has loaded the model since the last crash
        self._answered = False  # whether it has answered since the last crash
        self._crashes: deque[float] = deque()  # times, on the monotonic clock
        self._stopping = threading.Event()
        self._settled = threading.Event()  # the first start has succeeded or failed
        self._thread = threading.Thread(target=self._run, name="predictor", daemon=True)

    def start(self, micro_batch: int | None = None) -> None:
        """Start the process; `wait_loaded` reports the result. Later calls do nothing.

        Args:
            micro_batch: measured on an equal device; None: as in the settings.
        """
        with self._lock:
            begun, self._begun = self._begun, True
        if begun:
            return
        if micro_batch is not None:
            self._config = replace(self._config, micro_batch=micro_batch)
        self._thread.start()

    def wait_loaded(self, timeout_s: float) -> bool:
        """Wait for the end of the first start, as `PredictorPool.wait_loaded`."""
        settled = self._settled.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return settled and self.ready_report is not None

    def submit(self, requests: Sequence[BatchRequest]) -> Results:
        """Label requests of one shape in one job, without waiting for the labels.

        This call copies the inputs, except those of a single request in the predictors' memory. It
        also waits while other threads send jobs. The predictor reads the memory until it has
        finished the job, even if the callers have given up.

        Returns:
            A future with the labels of each request, which the caller must release, or its error.
                The future raises RetryableError if the predictor is not ready or ends before it
                answers, or if the inputs cannot be copied. The thread that listens to the predictor
                completes the futures of sent jobs.
        """
        results, first, record = Results(), requests[0], None
        refs = first.refs if len(requests) == 1 else None
        if refs is None:
            try:
                record = self._copied(requests)
            except Exception as error:  # such as no memory; uncaught, callers would wait for ever
                results.set_exception(RetryableError(f"no shared memory for the request: {error}"))
                return results
            refs = record.arrays
        inputs = dict(zip(first.inputs, refs, strict=True))
        parts = [(r.samples, outputs_to_text(tuple(r.outputs)), r.deadline_s) for r in requests]
        number, job = next(self._numbers), _PendingJob(record, parts, results)
        with self._send_lock:
            with self._lock:
                channel = self._channel
                if channel is not None:
                    self._jobs[number] = job  # from now on, the end of the job frees its memory
                    free = self._released_records[:]
                    del self._released_records[: len(free)]
            if channel is not None:
                # If sending fails, the predictor is gone, and the listening thread fails the job.
                channel.send(
                    "job", id=number, at_s=time.monotonic(), inputs=inputs, parts=parts, free=free
                )
                return results
        self._free(job)
        results.set_exception(RetryableError("the predictor is restarting"))
        return results

    def stop(self) -> None:
        """End the process; its requests fail with RetryableError."""
        self._stopping.set()
        if self._process is not None:
            # The process has nothing to clean up, and SIGTERM during the import of a framework may
            # run the framework's own handler, which can hang.
            self._process.kill()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # --- jobs

    def _copied(self, requests: Sequence[BatchRequest]) -> Record:
        """Copy the inputs of all requests into a new record, one request after another."""
        first = requests[0].inputs
        samples = sum(request.samples for request in requests)
        layouts = [(array.dtype, (samples, *array.shape[1:])) for array in first.values()]
        record = self._inputs.allocate(layouts)
        arrays = map(self._inputs.get, record.arrays)
        inputs = dict(zip(first, arrays, strict=True))
        for name, array in inputs.items():
            start = 0
            for request in requests:
                stop = start + request.samples
                np.copyto(array[start:stop], request.inputs[name])
                start = stop
        return record

    def _free(self, job: _PendingJob) -> None:
        if job.inputs is not None:
            self._inputs.free(job.inputs.offset)

    def _finish_job(self, message: Message, outputs: Arena, released: list[int]) -> None:
        with self._lock:
            job = self._jobs.pop(message["id"])
        self._free(job)
        results: list[Result] = []
        try:
            for item, (samples, *_) in zip(message["results"], job.parts, strict=True):
                if "error" in item:
                    results.append(predictor_jobs.error_of(item))
                    continue
                arrays = predictor_jobs.arrays_at(item["outputs"], outputs)
                seconds = item["device_seconds"]
                release = partial(released.append, item["record"])
                results.append(RequestLabels(arrays, seconds, release))
                self._answered = True
                self._median.add(seconds / samples)
                self.t_t_s = max(self._median.value or 0.0, MIN_T_T_S)
        except Exception as error:  # such as no memory; uncaught, callers would wait for ever
            released += [item["record"] for item in message["results"] if "record" in item]
            job.results.set_exception(error)
            return
        job.results.set_result(results)

    def _fail_jobs(self) -> None:
        """Fail every job after the end of the process; it was running the oldest job."""
        ended = RetryableError("the predictor ended before it computed the request: try again")
        crashed = PredictorCrashed("the predictor ended while it computed this request")
        with self._lock:
            self._channel, self.ready = None, False
            failed_jobs, self._jobs = self._jobs, {}
        for index, job in enumerate(failed_jobs.values()):
            self._free(job)
            job.results.set_exception(ended if index or self._stopping.is_set() else crashed)

    # --- the process, in a thread of its own

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                how = self._run_once()
                if not self._stopping.is_set():
                    self._pause_before_restart(how)
        except EdlError as error:
            self.failure = error
        except Exception as error:  # without a failure, callers of `wait_loaded` would wait on
            self.failure = ProcessFailed(f"{self._name} was given up: {error!r}")
        finally:
            self._settled.set()
            self._on_change()

    def _run_once(self) -> str:
        """Start the process and serve until it ends; return how it ended, in words."""
        with ExitStack() as life:
            try:
                outputs = life.enter_context(closing(Arena.create()))
                channel, child_end = Channel.pair()
                life.callback(channel.close)
                self._process = process = self._started(child_end, outputs)
            except (ProcessFailed, OSError) as error:
                return f"did not start ({error})"
            refusal = ""
            try:
                if not self._stopping.is_set():
                    refusal = self._listen(channel, outputs)
            finally:
                self._fail_jobs()
                # The process is ending by itself, except after an error while listening, or if
                # `stop` came during its start.
                process.wait(_EXIT_S)
                returncode = process.stop(grace_s=_EXIT_S)
        end = "; its last line: ".join([supervise.describe_exit(returncode), *process.tail(1)])
        return refusal or end

    def _started(self, child_end: int, outputs: Arena) -> supervise.Process:
        try:
            fds = (child_end, self._inputs.fd, outputs.fd)
            config = json.dumps(to_plain(self._config))
            command = supervise.python_command(
                "predictor",
                "edl.teacher.predictor",
                *fds,
                config,
                pass_fds=fds,
                env=self._config.environment,
            )
            return supervise.start(command, echo=child_log_relay())
        finally:
            os.close(child_end)

    def _listen(self, channel: Channel, outputs: Arena) -> str:
        """Handle the predictor's messages until it is gone.

        Returns:
            Why it refused to load the model again, in words; empty if it did not refuse.

        Raises:
            EdlError: the predictor refused the model at its first start, or has loaded another
                model after a restart.
        """
        released = self._released_records = list[int]()
        for message in channel:
            match message["kind"]:
                case "done":
                    self._finish_job(message, outputs, released)
                case "progress":
                    self._on_progress(message["text"])
                case "ready":
                    self._became_ready(from_plain(PredictorReady, message))
                    with self._lock:
                        self._channel, self.ready = channel, True
                    self._on_change()
                    self._settled.set()
                case "refused":
                    error = predictor_jobs.error_of(message)
                    if self.ready_report is None:
                        raise error
                    return f"could not load the model again: {error}"
        return ""

    def _became_ready(self, ready: PredictorReady) -> None:
        previous = self.ready_report
        rows = ready.micro_batch
        if previous is not None and previous.spec.in_micro_batches(rows) != ready.spec:
            raise ModelError(
                f"{self._config.model} changed while it was served: start a new teacher for it"
            )
        if previous is not None and rows < previous.micro_batch:
            self.micro_batch_reductions += 1
            log.warning(
                "%s ran out of memory: it runs %d samples at a time from now on, not %d",
                self._name,
                rows,
                previous.micro_batch,
            )
        self._config = replace(self._config, micro_batch=rows)  # a restart does not measure again
        self.ready_report = ready
        self._loaded = True
        if self._median.value is None:
            self.t_t_s = max(ready.t_t_s, MIN_T_T_S)

    def _pause_before_restart(self, how: str) -> None:
        """Wait before the next start; raise ProcessFailed if another start makes no sense."""
        if self.ready_report is None:
            raise ProcessFailed(f"{self._name} {how}; it was loading {self._config.model}")
        now = time.monotonic()
        if self._answered:
            self._crashes.clear()
        self._crashes.append(now)
        while self._loaded and now - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        self._loaded = self._answered = False
        if len(self._crashes) >= GIVE_UP_AFTER_CRASHES:
            raise ProcessFailed(
                f"{self._name} died {len(self._crashes)} times without an answer in between; "
                f"the last time, it {how}"
            )
        self.restarts += 1
        self._on_change()
        log.warning("%s %s; it is started again", self._name, how)
        self._stopping.wait(delay_s(len(self._crashes) - 1, random.Random()))
