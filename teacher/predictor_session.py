"""One life of a predictor process, seen from the socket side: started, spoken to, and its end."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .. import supervise
from ..errors import EdlError, RetryableError
from ..proto.arena import Arena, Array
from ..proto.channel import Channel, Message
from . import jobs
from .config import PredictorConfig
from .model import ModelSpec

#: What the number of threads is told by, to the libraries that a framework may use.
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Answer:
    """The labels of one batch, in shared memory: valid until the `with` that gave them ends.

    Attributes:
        outputs: by name.
        device_seconds: time in the model for the whole batch.
    """

    outputs: Mapping[str, Array]
    device_seconds: float


@dataclass(frozen=True, slots=True)
class Ready:
    """What a predictor says once it takes jobs.

    Attributes:
        spec: the model.
        t_t_s: device time in seconds per sample, as measured at the start.
    """

    spec: ModelSpec
    t_t_s: float


class PredictorSession:
    """A started predictor process with its channel and its two shared memories."""

    def __init__(self, config: PredictorConfig) -> None:
        self._channel, child_end = Channel.pair()
        self._inputs, self._outputs = Arena.create(), Arena.create()
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._jobs: dict[int, Future[Message]] = {}
        self._ended = False
        try:
            fds = (child_end, self._inputs.fd, self._outputs.fd)
            self.process = supervise.start(_command(config, *fds))
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
                case "done" | "failed":
                    self._settle(message)
                case "progress":
                    on_progress(message["text"])
                case "ready":
                    on_ready(Ready(ModelSpec.from_json(message["spec"]), message["t_t_s"]))
                case "refused":
                    raise jobs.error_of(message)

    @contextmanager
    def label(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> Iterator[Answer]:
        """Have one batch labelled, waiting for it.

        The inputs' memory is in use until the predictor has finished, also when the caller has long
        lost interest; hence the wait has no timeout. A dead predictor ends it.

        Raises:
            RetryableError: the predictor ended, or failed for want of a resource.
            RequestRefused: the model cannot take these values.
            BadAnswer: the labels are not finite.
        """
        try:
            record = self._inputs.put(list(inputs.values()))
        except OSError as error:
            raise RetryableError(f"no shared memory for the request: {error}") from error
        try:
            done = self._submit(jobs.refs_to_json(inputs, record.arrays), outputs).result()
            if done["kind"] == "failed":
                raise jobs.error_of(done)
            try:
                arrays = jobs.arrays_at(done["outputs"], self._outputs)
                yield Answer(arrays, done["device_seconds"])
            finally:
                self._channel.send("free", record=done["record"])
        finally:
            self._inputs.free(record.offset)

    def fail_all(self, error: EdlError) -> None:
        """End every job, and any that comes later, by `error`: the predictor is gone."""
        with self._lock:
            self._ended = True
            waiting, self._jobs = self._jobs, {}
        for future in waiting.values():
            future.set_exception(error)

    def close(self) -> None:
        """Give the descriptors back."""
        self._channel.close()
        self._inputs.close()
        self._outputs.close()

    def _submit(self, refs: Mapping[str, object], outputs: Sequence[str]) -> Future[Message]:
        number, future = next(self._numbers), Future[Message]()
        with self._lock:
            if self._ended:
                raise RetryableError("the predictor is restarting")
            self._jobs[number] = future
        # A send that fails means that the predictor is gone; whoever listens then ends the job.
        self._channel.send("job", id=number, inputs=refs, outputs=list(outputs))
        return future

    def _settle(self, message: Message) -> None:
        with self._lock:
            future = self._jobs.pop(message["id"])
        future.set_result(message)


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
    threads = dict.fromkeys(_THREAD_VARIABLES, str(config.threads))
    return replace(command, env={**command.env, **threads, "GLOG_minloglevel": "2"})
