"""The predictor processes of a teacher: one on each device, all of one model.

A crash costs the requests that the process had, as errors to be tried again; it is started anew
with growing pauses while the others serve, and the sockets never notice. A predictor that keeps
crashing without an answer in between is given up, and the teacher goes on with what it has; the
last one takes the teacher with it, and so does a model that is refused.
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

from .. import supervise
from ..errors import EdlError, ModelError, PredictorCrashed, ProcessFailed, RetryableError
from ..logs import relay
from ..proto.arena import Arena, ArrayRef, Record
from ..proto.channel import Channel, Message
from ..proto.dataclass_json import from_plain, to_plain
from ..scheduler.backoff import delay_s
from ..scheduler.rates import RecentMedian, pooled_t_t
from . import jobs
from .config import PredictorConfig
from .jobs import LEAST_S, JobPart, LabelledBatch, PredictorReady, Result, Results
from .request import BatchRequest

log = logging.getLogger(__name__)

#: So many crashes within so long a time, and no answer in between, are not bad luck.
CRASHES_AT_MOST = 5
CRASH_WINDOW_S = 60.0
#: After KILL: until its end is noticed and its last words are read.
_STOP_S = 5.0
#: A process whose channel has ended gets this long to end too.
_LAST_WORDS_S = 1.0


class PredictorPool:
    """The predictors of one teacher; any thread may use them.

    Args:
        configs: what to run, one for each device.
        on_progress: told in words how far a start is.
        on_change: called when a predictor becomes ready, crashes, or is given up, from a thread of
            this pool.

    Attributes:
        predictors: one for each device.
        inputs: memory in which every predictor reads its requests.
        loaded: what the first starts found; None before all have come to an end. Its numerics are
            those of the devices together, where they differ.
    """

    def __init__(
        self,
        configs: Sequence[PredictorConfig],
        *,
        on_progress: Callable[[str], None] = log.info,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.inputs = Arena.create()
        self.loaded: PredictorReady | None = None
        self._on_change = on_change
        self._lock = threading.Lock()  # of what is known of the predictors together
        self._given_up: list[PredictorProcess] = []
        self.predictors = [
            PredictorProcess(
                config, self.inputs, _name(config, index, len(configs)), on_progress, self._changed
            )
            for index, config in enumerate(configs)
        ]
        #: For each device the first of its like: what that one measures counts for both.
        self._measured_by = [
            self.predictors[_first_equal_device(configs, i)] for i in range(len(configs))
        ]

    def start(self) -> None:
        """Begin to start every process; `wait_loaded` tells how it went.

        Where micro-batches are measured, devices of one kind wait for the first of them and take
        over what it chose: equal devices label with equal bits.
        """
        for predictor, model in zip(self.predictors, self._measured_by, strict=True):
            if model is predictor:
                predictor.start()
            elif model.loaded is not None:
                predictor.start(model.loaded.micro_batch)

    def wait_loaded(self, timeout_s: float) -> bool:
        """Wait for the end of every first start.

        Returns:
            True when all predictors take requests, False when one does not yet.

        Raises:
            ModelError: one refused the model, or they have loaded different ones.
            ProcessFailed: one died, or nobody could listen to it.
        """
        deadline = time.monotonic() + timeout_s
        settled = [
            one.wait_loaded(max(0.0, deadline - time.monotonic())) for one in self.predictors
        ]
        contents = {one.loaded.spec.content_id for one in self.predictors if one.loaded}
        if all(settled) and len(contents) > 1:
            raise ModelError("the model changed while it was loaded: start this teacher anew")
        return all(settled)

    @property
    def ready(self) -> bool:
        """At least one predictor takes requests now."""
        return any(predictor.ready for predictor in self.predictors)

    def require_loaded(self) -> PredictorReady:
        """What is served; raises RetryableError before the first starts have come to an end."""
        if (loaded := self.loaded) is None:
            raise RetryableError("the model is loading")
        return loaded

    @property
    def failure(self) -> EdlError | None:
        """Why nothing can be served any more; None while something can."""
        failures = [one.failure for one in self.predictors if one.failure is not None]
        refused = next((one for one in failures if isinstance(one, ModelError)), None)
        return refused or (failures[-1] if len(failures) == len(self.predictors) else None)

    @property
    def restarts(self) -> int:
        """How often predictors were started again."""
        return sum(predictor.restarts for predictor in self.predictors)

    @property
    def micro_batch_reductions(self) -> int:
        """How often a micro-batch was halved because a device ran out of memory."""
        return sum(predictor.micro_batch_reductions for predictor in self.predictors)

    @property
    def lanes(self) -> int:
        """Devices that serve, or will when their predictor is back."""
        return sum(predictor.failure is None for predictor in self.predictors)

    @property
    def t_t_s(self) -> float:
        """Seconds per sample of one lane, the average of those that serve."""
        serving = [one for one in self.predictors if one.failure is None]
        return pooled_t_t([one.t_t_s for one in serving or self.predictors[:1]])

    def stop(self) -> None:
        """End the processes; requests that they have end by RetryableError."""
        for predictor in self.predictors:
            predictor.stop()
        self.inputs.close()

    def _changed(self) -> None:
        with self._lock:
            known = [one.loaded for one in self.predictors if one.loaded is not None]
            if len(known) == len(self.predictors):
                self.loaded = PredictorReady.together(known)
        self.start()  # those that have waited for this one
        for predictor in self.predictors:
            if predictor.failure is not None and predictor not in self._given_up:
                self._given_up.append(predictor)
                if self.failure is None:
                    log.error("%s", predictor.failure)
        self._on_change()


@dataclass(frozen=True, slots=True)
class _PendingJob:
    """One that a predictor has: where its inputs lie, and who waits for it."""

    inputs: Record | None  # None: the memory is not ours to give back
    samples: Sequence[int]
    results: Results


class PredictorProcess:
    """The predictor of one device: started, given jobs, started again after a crash.

    Args:
        config: what to run.
        inputs: memory of requests, which outlives the process.
        name: in what is told of it; empty: it is the only one.
        on_progress: told in words how far a start is.
        on_change: called when `ready` or `failure` changes, from a thread of this.

    Attributes:
        loaded: what the first start found; None before.
        failure: why it ended for good; None while it did not.
        restarts: how often it was started again.
        micro_batch_reductions: how often its micro-batch was halved, for want of memory.
    """

    def __init__(
        self,
        config: PredictorConfig,
        inputs: Arena,
        name: str,
        on_progress: Callable[[str], None],
        on_change: Callable[[], None],
    ) -> None:
        self.loaded: PredictorReady | None = None
        self.failure: EdlError | None = None
        self.restarts = 0
        self.micro_batch_reductions = 0
        self._config = config
        self._inputs = inputs
        self._name = name or "the predictor"
        self._on_progress = on_progress if not name else lambda text: on_progress(f"{name}: {text}")
        self._on_change = on_change
        self._lock = threading.Lock()  # of its being started, its channel, its jobs and its speed
        self._begun = False
        self._process: supervise.Process | None = None
        self._channel: Channel | None = None  # while it takes jobs
        self._numbers = itertools.count()
        self._jobs: dict[int, _PendingJob] = {}
        self._median = RecentMedian()
        self._answered = False
        self._crashes: deque[float] = deque()
        self._stopping = threading.Event()
        self._settled = threading.Event()
        self._thread = threading.Thread(target=self._run, name="predictor", daemon=True)

    def start(self, micro_batch: int | None = None) -> None:
        """Begin to start the process; `wait_loaded` tells how it went. Only the first call counts.

        Args:
            micro_batch: what was measured for an equal device, so that it need not be again.
        """
        with self._lock:
            begun, self._begun = self._begun, True
        if begun:
            return
        if micro_batch is not None:
            self._config = replace(self._config, micro_batch=micro_batch)
        self._thread.start()

    def wait_loaded(self, timeout_s: float) -> bool:
        """Wait for the end of the first start; returns and raises as `PredictorPool.wait_loaded`."""
        self._settled.wait(timeout_s)
        if self.failure is not None:
            raise self.failure
        return self.loaded is not None

    @property
    def ready(self) -> bool:
        """It takes requests now."""
        return self._channel is not None

    @property
    def t_t_s(self) -> float:
        """Seconds per sample: the median of the last answers, else as measured at the start."""
        with self._lock:
            recent = self._median.value
        return max(recent or (self.loaded.t_t_s if self.loaded else 0.0), LEAST_S)

    def submit(self, requests: Sequence[BatchRequest]) -> Results:
        """Have requests of one shape labelled in one go; waits for no more than their copying.

        A single request whose inputs lie in the predictors' memory already is not copied. That
        memory is in use until the predictor has finished, also when the callers have long lost
        interest; hence nothing ends a job before. A dead predictor does.

        Returns:
            For each request its labels, which the caller has to release, or the error that it ends
            with. RetryableError where the predictor is not ready, ends before, or finds no memory
            for the inputs. Settled by the thread that listens to the predictor.
        """
        results = Results()
        try:
            record, places = self._copy_inputs(requests)
        except Exception as error:  # no memory, for one: nobody may wait for ever
            results.set_exception(RetryableError(f"no shared memory for the request: {error}"))
            return results
        refs = jobs.refs_to_json(requests[0].inputs, places)
        parts = [JobPart(r.samples, tuple(r.outputs), r.deadline_s).to_json() for r in requests]
        number, job = (
            next(self._numbers),
            _PendingJob(record, [r.samples for r in requests], results),
        )
        with self._lock:
            channel = self._channel
            if channel is not None:
                self._jobs[number] = job  # from now on whoever ends it gives its memory back
        if channel is None:
            self._free(job)
            results.set_exception(RetryableError("the predictor is restarting"))
        else:
            # A send that fails means that the predictor is gone; whoever listens then ends the job.
            channel.send("job", id=number, at_s=time.monotonic(), inputs=refs, parts=parts)
        return results

    def stop(self) -> None:
        """End the process; requests that it has end by RetryableError."""
        self._stopping.set()
        if self._process is not None:
            # It has nothing to put in order, and while a framework is being imported a gentler
            # signal may meet the framework's own handler, which can hang.
            self._process.kill()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    # --- jobs

    def _copy_inputs(
        self, requests: Sequence[BatchRequest]
    ) -> tuple[Record | None, tuple[ArrayRef, ...]]:
        """Where the inputs of all requests lie in shared memory, one request after another.

        Returns:
            What is to be freed once they are not used any more, and where they lie.
        """
        if len(requests) == 1 and requests[0].refs is not None:
            return None, requests[0].refs
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
        return record, record.arrays

    def _free(self, job: _PendingJob) -> None:
        if job.inputs is not None:
            self._inputs.free(job.inputs.offset)

    def _finish_job(self, message: Message, channel: Channel, outputs: Arena) -> None:
        with self._lock:
            job = self._jobs.pop(message["id"])
        self._free(job)
        try:
            results = [_result(told, channel, outputs) for told in message["results"]]
        except Exception as error:  # no memory, for one: nobody may wait for ever
            job.results.set_exception(error)
            return
        with self._lock:
            for samples, result in zip(job.samples, results, strict=True):
                if isinstance(result, LabelledBatch):
                    self._answered = True
                    self._median.add(result.device_seconds / samples)
        job.results.set_result(results)

    def _fail_jobs(self) -> None:
        """End every job, and take no more: the process is gone. The oldest was being computed."""
        ended = RetryableError("the predictor ended before it computed the request: try again")
        crashed = PredictorCrashed("the predictor ended in mid-request")
        with self._lock:
            self._channel = None
            waiting, self._jobs = self._jobs, {}
        for place, job in enumerate(waiting.values()):
            self._free(job)
            job.results.set_exception(ended if place or self._stopping.is_set() else crashed)

    # --- the process, in a thread of its own

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                how = self._run_once()
                if not self._stopping.is_set():
                    self._pause_before_restart(how)
        except EdlError as error:
            self.failure = error
        except Exception as error:  # whoever waits for this thread has to hear of its end
            self.failure = ProcessFailed(f"{self._name} was given up: {error!r}")
        finally:
            self._settled.set()
            self._on_change()

    def _run_once(self) -> str:
        """Start the process and serve until it ends; how that came, in words."""
        with ExitStack() as life:
            try:
                outputs = life.enter_context(closing(Arena.create()))
                channel, child_end = Channel.pair()
                life.callback(channel.close)
                self._process = process = self._started(child_end, outputs)
            except (ProcessFailed, OSError) as error:
                return f"did not start ({error})"
            try:
                if not self._stopping.is_set():
                    self._listen(channel, outputs)
            finally:
                self._fail_jobs()
                process.wait(_LAST_WORDS_S)  # it is on its way out, unless it refused the model
                returncode = process.stop(grace_s=_LAST_WORDS_S)
        return "; its last line: ".join([supervise.describe_exit(returncode), *process.tail(1)])

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
            return supervise.start(command, echo=relay())
        finally:
            os.close(child_end)

    def _listen(self, channel: Channel, outputs: Arena) -> None:
        """Take the predictor's messages until it is gone.

        Raises:
            ModelError: it refused the model.
        """
        for message in channel:
            match message["kind"]:
                case "done":
                    self._finish_job(message, channel, outputs)
                case "progress":
                    self._on_progress(message["text"])
                case "ready":
                    self._became_ready(from_plain(PredictorReady, message))
                    self._channel = channel
                    self._on_change()
                    self._settled.set()
                case "refused":
                    raise jobs.error_of(message)

    def _became_ready(self, ready: PredictorReady) -> None:
        before = self.loaded
        rows = ready.micro_batch
        if before is not None and before.spec.in_micro_batches(rows) != ready.spec:
            raise ModelError(
                f"{self._config.model} changed while it was served: start a new teacher for it"
            )
        if before is not None and rows < before.micro_batch:
            self.micro_batch_reductions += 1
            log.warning(
                "%s ran out of memory: it runs %d samples at a time from now on, not %d",
                self._name,
                rows,
                before.micro_batch,
            )
        self._config = replace(self._config, micro_batch=rows)  # measured once
        self.loaded = ready

    def _pause_before_restart(self, how: str) -> None:
        """Wait before the next start; raise ProcessFailed where another makes no sense."""
        if self.loaded is None:
            raise ProcessFailed(f"{self._name} {how}; it was loading {self._config.model}")
        now = time.monotonic()
        if self._answered:
            self._crashes.clear()
        self._answered = False
        self._crashes.append(now)
        while now - self._crashes[0] > CRASH_WINDOW_S:
            self._crashes.popleft()
        if len(self._crashes) >= CRASHES_AT_MOST:
            raise ProcessFailed(
                f"{self._name} died {len(self._crashes)} times within {CRASH_WINDOW_S:g} s "
                f"without an answer in between; the last {how}"
            )
        self.restarts += 1
        self._on_change()
        log.warning("%s %s; it is started again", self._name, how)
        self._stopping.wait(delay_s(len(self._crashes) - 1, random.Random()))


def _result(told: Message, channel: Channel, outputs: Arena) -> Result:
    if "error" in told:
        return jobs.error_of(told)
    release = partial(channel.send, "free", record=told["record"])
    return LabelledBatch(jobs.arrays_at(told["outputs"], outputs), told["device_seconds"], release)


def _first_equal_device(configs: Sequence[PredictorConfig], index: int) -> int:
    """The first device whose micro-batch is right for this one too; itself where none is asked."""
    mine = configs[index]
    if mine.micro_batch is not None:
        return index
    return next(
        i
        for i, other in enumerate(configs)
        if (other.device.partition(":")[0], other.threads)
        == (mine.device.partition(":")[0], mine.threads)
    )


def _name(config: PredictorConfig, index: int, among: int) -> str:
    """By it an operator tells one predictor from the others; nothing where there are none."""
    return "" if among == 1 else f"predictor {index + 1} of {among}, on {config.device_label}"
