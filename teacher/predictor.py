"""The predictor process: loads, measures and tests one model, then runs it on one device.

`pool` starts it as `python -m edl.teacher.predictor`. It is a separate process because a framework
may hold Python's interpreter lock (GIL) during a run, which would block the server. Jobs come over
a channel, arrays lie in shared memory (see `jobs`).
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from ..proto.arena import Arena, Array, tune_allocator
from ..proto.channel import Channel, Message
from ..proto.dataclass_json import from_plain, to_plain
from ..runtime import supervise
from ..runtime.errors import (
    BadAnswer,
    DeviceOutOfMemory,
    EdlError,
    ModelError,
    PredictorCrashed,
    RequestRefused,
    RetryableError,
)
from ..runtime.logs import configure_logging
from . import predictor_jobs
from .backends import Backend, ModelSpec, async_submit_of, submit_in_micro_batches, submit_to
from .backends.paced import PacedBackend
from .backends.selection import open_backend
from .backends.tensor_specs import example_batch
from .config import PredictorConfig
from .microbatch import fastest_micro_batch, warm_up
from .predictor_jobs import JobRequest, PredictorReady, Result, outputs_from_text, submit_parts
from .self_test import Canary, self_test


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to serve.

    Attributes:
        backend: the model.
        ready: the report to the server; its spec has the micro-batch and the kinds of outputs.
        keep_micro_batch: keep it even if memory runs out.
    """

    backend: Backend
    ready: PredictorReady
    keep_micro_batch: bool = False


def prepare_process(cores: Sequence[int]) -> None:
    """Prepare this process to run a model. Call this before a framework is imported.

    Args:
        cores: the CPUs that the process is bound to; empty for any.
    """
    if cores:
        os.sched_setaffinity(0, cores)  # before a framework starts threads
    # Last, so that a folder of the user cannot hide an installed package.
    sys.path.append(os.getcwd())


def load(config: PredictorConfig, on_progress: Callable[[str], None]) -> LoadedModel:
    """Open a model, warm it up, measure and test it.

    Args:
        config: the model, and how it is run.
        on_progress: called with progress, in words.

    Raises:
        EdlError: the model cannot be opened, does not run, or fails its self-test.
    """
    canary = Canary.load(Path(config.canary)) if config.canary else None
    backend = open_model(config, on_progress)
    on_progress("warming up")
    rows = backend.spec.rows_per_run(
        config.micro_batch or _measure_micro_batch(backend, on_progress)
    )
    t_t_s = warm_up(backend, rows)
    _check_outputs(config.output_kinds, backend.spec)
    kinds = self_test(backend, canary, rows, on_progress) if config.self_test else {}
    spec = backend.spec.in_micro_batches(rows).with_kinds({**kinds, **dict(config.output_kinds)})
    return LoadedModel(backend, PredictorReady(spec, t_t_s, rows), config.keep_micro_batch)


def _check_outputs(kinds: Sequence[tuple[str, str]], spec: ModelSpec) -> None:
    """Raise ModelError for the kind of an output that the model does not have."""
    known = [tensor.name for tensor in spec.outputs]
    for name, kind in kinds:
        if name not in known:
            raise ModelError(f"--output {name}={kind}: the model's outputs are {known}")


def open_model(config: PredictorConfig, on_progress: Callable[[str], None]) -> Backend:
    """Open a model without warm-up and self-test; arguments and errors as in `load`."""
    on_progress(f"loading {config.model}")
    return open_backend(
        config.model,
        backend=config.backend,
        threads=config.threads,
        device=config.device,
        precision=config.precision,
        inputs=config.inputs,
        outputs=config.outputs,
        preprocess=config.preprocess,
        rate=config.rate,
        download=config.download,
        on_comparison=on_progress,
    )


def _measure_micro_batch(backend: Backend, on_progress: Callable[[str], None]) -> int:
    rows, per_sample_s = fastest_micro_batch(backend)
    times = ", ".join(f"{size}: {cost * 1000:.3g}" for size, cost in per_sample_s.items())
    on_progress(f"micro-batch {rows}, by ms/sample of each size ({times})")
    return rows


class PredictorLoop:
    """Runs jobs with a loaded model, in their order.

    A device with a queue gets the next job before it has finished the previous one; a second thread
    then waits for results and sends them.

    A lost device can fail every run until the process ends. So after a request that failed for lack
    of a resource, an example is run to find out whether the device still works. If it does, the
    request is to blame, and fails with PredictorCrashed. But if memory ran out, the request is
    tried with smaller and smaller micro-batches. One that suffices is kept, and the caller may send
    the request again.
    """

    def __init__(
        self, loaded: LoadedModel, channel: Channel, inputs: Arena, outputs: Arena
    ) -> None:
        self._backend = loaded.backend
        self._submit = submit_to(loaded.backend)
        self._ready = loaded.ready
        self._keep_micro_batch = loaded.keep_micro_batch
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs
        self._device_error: RetryableError | None = None
        self._submitted: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def serve(self) -> None:
        """Run until the channel ends.

        Raises:
            RetryableError: the device is lost: it failed in a job and then on an example.
        """
        finisher = None
        if async_submit_of(self._backend) is not None:
            finisher = threading.Thread(target=self._finish_jobs, name="results", daemon=True)
            finisher.start()
        try:
            for message in self._channel:
                if message["kind"] == "job":
                    finish = self._begin(message)
                    self._submitted.put(finish) if finisher else finish()
                if self._device_error is not None:
                    break
        finally:
            if finisher is not None:
                self._submitted.put(None)
                finisher.join()
        if self._device_error is not None:
            raise self._device_error

    def _finish_jobs(self) -> None:
        while (finish := self._submitted.get()) is not None:
            finish()
            if self._device_error is not None:
                self._channel.close()  # ends the loop in `serve`
                return

    def _begin(self, job: Message) -> Callable[[], None]:
        """Start a job; returns a function that waits for its labels and sends them."""
        for record in job["free"]:
            self._outputs.free(record)
        parts = [
            JobRequest(samples, outputs_from_text(outputs), deadline_s)
            for samples, outputs, deadline_s in job["parts"]
        ]
        if isinstance(self._backend, PacedBackend):
            self._backend.arrive(job["at_s"])
        inputs: Mapping[str, Array] = {}
        rows = self._ready.micro_batch
        try:
            inputs = predictor_jobs.arrays_at(job["inputs"], self._inputs)
            submit = partial(submit_in_micro_batches, self._submit, micro_batch=rows)
            labels = submit_parts(submit, inputs, parts)
        except Exception as error:  # such as no memory: the model can still run other jobs
            lost = _job_lost_error(error)
            labels = partial(list, [lost] * len(parts))
        return partial(self._finish, job["id"], inputs, parts, rows, labels)

    def _finish(
        self,
        number: int,
        inputs: Mapping[str, Array],
        parts: Sequence[JobRequest],
        rows: int,
        labels: Callable[[], list[Result]],
    ) -> None:
        try:
            results = labels()
        except Exception as error:  # as above
            results = [_job_lost_error(error)] * len(parts)
        for index, result in enumerate(results):
            if isinstance(result, RetryableError):
                part_inputs = predictor_jobs.split_rows(inputs, parts)[index]
                results[index] = self._with_blame(result, part_inputs, rows)
        self._channel.send("done", id=number, results=[*map(self._result_message, results)])

    def _with_blame(
        self, error: RetryableError, inputs: Mapping[str, Array], rows: int
    ) -> RetryableError:
        """Return the error of a request, as PredictorCrashed if the request is to blame for it."""
        error.__cause__ = error.__context__ = None  # their frames refer to memory of the device
        if not self._device_works():
            return error
        if isinstance(error, DeviceOutOfMemory) and self._find_fitting_size(inputs, rows):
            return error
        return PredictorCrashed(str(error))

    def _device_works(self) -> bool:
        """Whether an example runs; if not, the device is lost."""
        spec = self._backend.spec
        try:
            batch = example_batch(spec.inputs, spec.rows_per_run(1))
            submit_in_micro_batches(self._submit, batch, self._ready.micro_batch)()
        except (RequestRefused, BadAnswer):  # the device works
            pass
        except RetryableError as error:
            self._device_error = error
        except Exception as error:  # such as no memory: the thread must not end unnoticed
            self._device_error = RetryableError(f"{type(error).__name__}: {error}")
        return self._device_error is None

    def _find_fitting_size(self, inputs: Mapping[str, Array], rows: int) -> bool:
        """Find a micro-batch with which memory suffices for a request, and use it from now on.

        Args:
            inputs: of the request.
            rows: the micro-batch with which memory ran out.

        Returns:
            Whether there is one; the request may then be sent again.
        """
        samples, current = len(next(iter(inputs.values()))), self._ready.micro_batch
        sizes = [rows >> n for n in range(1, rows.bit_length())]
        if self._keep_micro_batch or self._backend.spec.rows_per_run(1) != 1:
            sizes = []
        # Those from `samples` on would change nothing. At last as now: memory may be free again.
        for size in (*(size for size in sizes if size <= current and size < samples), current):
            with suppress(Exception):
                submit_in_micro_batches(self._submit, inputs, size)()
                if size != current:
                    spec = self._ready.spec.in_micro_batches(size)
                    self._ready = replace(self._ready, micro_batch=size, spec=spec)
                    self._channel.send("ready", **to_plain(self._ready))
                return True
        return False

    def _result_message(self, result: Result) -> Message:
        """Return the message for a result, after copying its labels to shared memory."""
        if isinstance(result, EdlError):
            return predictor_jobs.error_fields(result)
        try:
            record = self._outputs.put(list(result.outputs.values()))
        except OSError as error:
            return predictor_jobs.error_fields(
                RetryableError(f"no shared memory for the labels: {error}")
            )
        except EdlError as error:
            return predictor_jobs.error_fields(error)
        return {
            "record": record.offset,
            "outputs": dict(zip(result.outputs, record.arrays, strict=True)),
            "device_seconds": result.device_seconds,
        }


def _job_lost_error(error: Exception) -> RetryableError:
    return RetryableError(f"the job was lost: {type(error).__name__}: {error}")


def send_progress(channel: Channel, text: str) -> None:
    """Send a line of progress for the user."""
    channel.send("progress", text=text)


def main() -> int | str:
    """Run the process; return its exit code, or its last message for stderr."""
    supervise.end_with_parent(at_once=True)
    channel_fd, inputs_fd, outputs_fd, config_json = sys.argv[1:]
    configure_logging()
    config = from_plain(PredictorConfig, json.loads(config_json))
    prepare_process(config.cores)
    tune_allocator()
    channel = Channel.attach(int(channel_fd))
    inputs, outputs = Arena.attach(int(inputs_fd)), Arena.attach(int(outputs_fd))
    try:
        loaded = load(config, partial(send_progress, channel))
    except EdlError as error:
        channel.send("refused", **predictor_jobs.error_fields(error))
        return ModelError.exit_code
    channel.send("ready", **to_plain(loaded.ready))
    try:
        PredictorLoop(loaded, channel, inputs, outputs).serve()
    except RetryableError as error:
        return f"the device is lost: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
