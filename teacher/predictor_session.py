"""One life of a predictor process, seen from the socket side: started, spoken to, and its end."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from .. import supervise
from ..errors import EdlError, RetryableError
from ..logs import relay
from ..proto.arena import Arena, Array, ArrayRef, Record
from ..proto.channel import Channel, Message
from . import jobs
from .config import PredictorConfig
from .model import ModelSpec
from .parts import Part
from .request import Request

#: What the number of threads is told by, to the libraries that a framework may use.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Answer:
    """The labels of one request, in shared memory: valid until `release`, which is called once.

    Attributes:
        outputs: by name.
        device_seconds: time in the model for this request.
        release: gives the memory back.
    """

    outputs: Mapping[str, Array]
    device_seconds: float
    release: Callable[[], object] = lambda: None


#: What a job gives: for each of its requests the labels, or the error that it ends with.
Results = Future[Sequence[Answer | EdlError]]


@dataclass(frozen=True, slots=True)
class _Job:
    """One that the predictor has: where its inputs lie, and who waits for it."""

    inputs: Record | None  # None: the memory is not ours to give back
    results: Results


@dataclass(frozen=True, slots=True)
class Ready:
    """What a predictor says once it takes jobs.

    Attributes:
        spec: the model.
        t_t_s: device time in seconds per sample, as measured at the start.
        micro_batch: samples of one run.
    """

    spec: ModelSpec
    t_t_s: float
    micro_batch: int


class PredictorSession:
    """A started predictor process with its channel and the memory of its outputs.

    Args:
        config: what to run.
        inputs: memory of requests, which outlives the process.
    """

    def __init__(self, config: PredictorConfig, inputs: Arena) -> None:
        self._channel, child_end = Channel.pair()
        self._inputs, self._outputs = inputs, Arena.create()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._jobs: dict[int, _Job] = {}
        self._ended = False
        try:
            fds = (child_end, self._inputs.fd, self._outputs.fd)
            self.process = supervise.start(_command(config, *fds), echo=relay())
        except BaseException:
            self.close()
            raise
        finally:
            os.close(child_end)

    def listen(self, on_progress: Callable[[str], None], on_ready: Callable[[Ready], None]) -> None:
        """Take the predictor's messages until it is gone; one thread does.

        Raises:
            ModelError: it refused the model.
        """
        for message in self._channel:
            match message["kind"]:
                case "done":
                    self._settle(message)
                case "progress":
                    on_progress(message["text"])
                case "ready":
                    spec = ModelSpec.from_json(message["spec"])
                    on_ready(Ready(spec, message["t_t_s"], message["micro_batch"]))
                case "refused":
                    raise jobs.error_of(message)

    def submit(self, requests: Sequence[Request]) -> Results:
        """Have requests of one shape labelled in one go; waits for no more than their copying.

        A single request whose inputs lie in the predictors' memory already is not copied. That
        memory is in use until the predictor has finished, also when the callers have long lost
        interest; hence nothing ends a job before. A dead predictor does.

        Returns:
            What becomes of them, in order; settled by the thread that listens.

        Raises:
            RetryableError: the predictor ended, or there is no memory for the inputs.
        """
        try:
            record, places = self._put(requests)
        except OSError as error:
            raise RetryableError(f"no shared memory for the request: {error}") from error
        number, job = next(self._numbers), _Job(record, Results())
        with self._lock:
            ended = self._ended
            if not ended:
                self._jobs[number] = job  # from now on whoever ends it gives its memory back
        if ended:
            self._free(job)
            raise RetryableError("the predictor is restarting")
        refs = jobs.refs_to_json(requests[0].inputs, places)
        parts = [Part(r.samples, tuple(r.outputs), r.deadline_s).to_json() for r in requests]
        # A send that fails means that the predictor is gone; whoever listens then ends the job.
        self._channel.send("job", id=number, at_s=time.monotonic(), inputs=refs, parts=parts)
        return job.results

    def fail_all(self, error: EdlError, running: EdlError) -> None:
        """End every job, and any that comes later: the predictor is gone.

        Args:
            error: what jobs that it had not begun end by.
            running: what the oldest job ends by, which it was computing.
        """
        with self._lock:
            self._ended = True
            waiting, self._jobs = self._jobs, {}
        for place, job in enumerate(waiting.values()):
            self._free(job)
            job.results.set_exception(error if place else running)

    def close(self) -> None:
        """Give the descriptors back."""
        self._channel.close()
        self._outputs.close()

    def _free(self, job: _Job) -> None:
        if job.inputs is not None:
            self._inputs.free(job.inputs.offset)

    def _put(self, requests: Sequence[Request]) -> tuple[Record | None, tuple[ArrayRef, ...]]:
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

    def _result(self, told: Message) -> Answer | EdlError:
        if "error" in told:
            return jobs.error_of(told)
        release = partial(self._channel.send, "free", record=told["record"])
        arrays = jobs.arrays_at(told["outputs"], self._outputs)
        return Answer(arrays, told["device_seconds"], release)

    def _settle(self, message: Message) -> None:
        with self._lock:
            job = self._jobs.pop(message["id"])
        self._free(job)
        try:
            results = [self._result(told) for told in message["results"]]
        except Exception as error:  # no memory, for one: nobody may wait for ever
            job.results.set_exception(error)
        else:
            job.results.set_result(results)


def _command(config: PredictorConfig, channel: int, inputs: int, outputs: int) -> supervise.Command:
    arguments = {"channel": channel, "inputs": inputs, "outputs": outputs}
    flags = [word for name, fd in arguments.items() for word in (f"--{name}", str(fd))]
    command = supervise.python_command(
        "predictor",
        "edl.teacher.predictor",
        *flags,
        "--config",
        json.dumps(config.to_json()),
        pass_fds=(channel, inputs, outputs),
    )
    return replace(command, env={**command.env, **surroundings(config)})


def surroundings(config: PredictorConfig) -> dict[str, str]:
    """Variables of a process that runs a model: libraries read them when they are loaded."""
    threads = dict.fromkeys(_THREAD_VARIABLES, str(config.threads))
    # What is called fp32 is fp32: on GPUs, libraries would round products to the ten bits of TF32.
    quiet_and_exact = {"GLOG_minloglevel": "2", "NVIDIA_TF32_OVERRIDE": "0"}
    return {**threads, **quiet_and_exact}
