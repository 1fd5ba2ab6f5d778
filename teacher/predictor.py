"""The predictor process: runs one model on one device, and nothing else.

`python -m edl.teacher.predictor`, started by `pool`. It is a process of its own
because a framework's run holds Python's lock for as long as it takes: a server in the same process
would be deaf meanwhile. Jobs come over a channel, arrays lie in shared memory (`jobs`).
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from queue import SimpleQueue

from .. import supervise
from ..errors import (
    BadAnswer,
    DeviceOutOfMemory,
    EdlError,
    ModelError,
    RequestRefused,
    RetryableError,
)
from ..logs import configure_logging
from ..proto.arena import Arena, tune_allocator
from ..proto.channel import Channel, Message
from ..proto.plain import from_plain, to_plain
from . import jobs, loading
from .backends import Submit, queue_of, submit_to
from .backends.examples import example_batch
from .config import PredictorConfig
from .jobs import Part, Ready, Result, submit_parts
from .loading import Loaded
from .microbatch import submit_in_micro_batches


class Predictor:
    """Serves jobs with a model that is loaded, one after another, in the order they came.

    A device with a queue of its own is given the next job before it has finished the one before;
    a second thread then waits for results and sends them.

    A run that fails for want of memory halves the micro-batch; the requests of that job fail, and
    may be tried again. A device can be lost in such a way that each run fails until the process
    ends. So after a job that failed for want of any resource an example is run.
    """

    def __init__(self, loaded: Loaded, channel: Channel, inputs: Arena, outputs: Arena) -> None:
        self._backend = loaded.backend
        self._submit = submit_to(loaded.backend)
        self._loaded = loaded
        self._micro_batch = loaded.micro_batch
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs
        self._lost: RetryableError | None = None
        self._submitted: SimpleQueue[Callable[[], None] | None] = SimpleQueue()

    def serve(self) -> None:
        """Until the socket side is gone.

        Raises:
            RetryableError: the device fails on an example too.
        """
        finisher = None
        if queue_of(self._backend) is not None:
            finisher = threading.Thread(target=self._finish_jobs, name="results", daemon=True)
            finisher.start()
        try:
            for message in self._channel:
                if message["kind"] == "job":
                    finish = self._begin(message)
                    self._submitted.put(finish) if finisher else finish()
                elif message["kind"] == "free":
                    self._outputs.free(message["record"])
                if self._lost is not None:
                    break
        finally:
            if finisher is not None:
                self._submitted.put(None)
                finisher.join()
        if self._lost is not None:
            raise self._lost

    def _finish_jobs(self) -> None:
        while (finish := self._submitted.get()) is not None:
            finish()
            if self._lost is not None:
                self._channel.close()  # which ends the loop that waits for jobs
                return

    def _begin(self, job: Message) -> Callable[[], None]:
        """Start a job; returns what waits for its labels and sends them."""
        parts = [Part.from_json(part) for part in job["parts"]]
        rows = self._micro_batch
        self._loaded.arrive(job["at_s"])
        try:
            inputs = jobs.arrays_at(job["inputs"], self._inputs)
            labels = submit_parts(self._submitter(rows), inputs, parts)
        except Exception as error:  # no memory, for one: the model is here, and others wait for it
            lost = _lost(error)
            labels = partial(list, [lost] * len(parts))
        return partial(self._finish, job["id"], len(parts), rows, labels)

    def _finish(
        self, number: int, parts: int, rows: int, labels: Callable[[], Sequence[Result]]
    ) -> None:
        try:
            results = labels()
        except Exception as error:  # as above
            results = [_lost(error)] * parts
        failures = {type(result) for result in results if isinstance(result, RetryableError)}
        if rows == self._micro_batch and DeviceOutOfMemory in failures:
            self._halve_micro_batch()
        self._channel.send("done", id=number, results=[self._told(r) for r in results])
        if failures:
            self._try_example()

    def _try_example(self) -> None:
        spec = self._backend.spec
        try:
            self._submitter(self._micro_batch)(example_batch(spec.inputs, spec.rows_per_run(1)))()
        except (RequestRefused, BadAnswer):  # the device works
            pass
        except RetryableError as error:
            self._lost = error

    def _submitter(self, micro_batch: int) -> Submit:
        return partial(submit_in_micro_batches, self._submit, micro_batch=micro_batch)

    def _halve_micro_batch(self) -> None:
        """From the next job on, and tell the socket side."""
        rows = max(1, self._micro_batch // 2)
        if rows == self._micro_batch or self._backend.spec.rows_per_run(rows) != rows:
            return  # it cannot be smaller
        self._micro_batch = rows
        self._loaded = replace(
            self._loaded, micro_batch=rows, spec=self._loaded.spec.in_micro_batches(rows)
        )
        _say_ready(self._channel, self._loaded)

    def _told(self, result: Result) -> Message:
        """A result as it stands in a message, its labels in shared memory."""
        if isinstance(result, EdlError):
            return {**jobs.error_fields(result)}
        try:
            record = self._outputs.put(list(result.outputs.values()))
        except OSError as error:
            return jobs.error_fields(RetryableError(f"no shared memory for the labels: {error}"))
        except EdlError as error:
            return jobs.error_fields(error)
        return {
            "record": record.offset,
            "outputs": jobs.refs_to_json(result.outputs, record.arrays),
            "device_seconds": result.device_seconds,
        }


def _lost(error: Exception) -> RetryableError:
    return RetryableError(f"the job was lost: {type(error).__name__}: {error}")


def load(config: PredictorConfig, channel: Channel) -> Loaded | None:
    """Make the model ready and say so; None when it was refused, which is said too."""
    try:
        loaded = loading.load(config, partial(_say, channel))
    except EdlError as error:
        channel.send("refused", **jobs.error_fields(error))
        return None
    _say_ready(channel, loaded)
    return loaded


def _say_ready(channel: Channel, loaded: Loaded) -> None:
    ready = Ready(loaded.spec, loaded.t_t_s, loaded.micro_batch)
    channel.send("ready", **to_plain(ready))


def _say(channel: Channel, text: str) -> None:
    channel.send("progress", text=text)


def main() -> int | str:
    """The process; its exit code, or its last words."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("channel", type=int, help="descriptor of the channel")
    parser.add_argument("inputs", type=int, help="descriptor of the inputs' memory")
    parser.add_argument("outputs", type=int, help="that of the outputs")
    parser.add_argument("config", help="PredictorConfig as JSON")
    given = parser.parse_args()
    configure_logging()
    config = from_plain(PredictorConfig, json.loads(given.config))
    loading.prepare_process(config)
    tune_allocator()
    channel = Channel.attach(given.channel)
    inputs, outputs = Arena.attach(given.inputs), Arena.attach(given.outputs)
    loaded = load(config, channel)
    if loaded is None:
        return ModelError.exit_code
    try:
        Predictor(loaded, channel, inputs, outputs).serve()
    except RetryableError as error:
        return f"the device is lost: {error}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
