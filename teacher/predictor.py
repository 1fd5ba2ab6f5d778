"""The predictor process: runs one model on one device, and nothing else.

`python -m edl.teacher.predictor`, started by `predictor_session`. It is a process of its own
because a framework's run holds Python's lock for as long as it takes: a server in the same process
would be deaf meanwhile. Jobs come over a channel, arrays lie in shared memory (`jobs`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from functools import partial

from .. import supervise
from ..errors import BadAnswer, EdlError, ModelError, RequestRefused, RetryableError
from ..logs import configure_logging
from ..proto.allocator import tune_allocator
from ..proto.arena import Arena
from ..proto.channel import Channel, Message
from . import jobs, loading
from .backends.example import example_batch
from .config import PredictorConfig
from .loading import Loaded
from .microbatch import run_in_micro_batches
from .parts import Part, Result, label_parts


class Predictor:
    """Serves jobs with a model that is loaded, one after another, in the order they came.

    A device can be lost in such a way that each run fails until the process ends. So where a job
    fails for want of a resource, an example is run too: a job that was too large leaves it well.
    """

    def __init__(self, loaded: Loaded, channel: Channel, inputs: Arena, outputs: Arena) -> None:
        self._run = partial(
            run_in_micro_batches, loaded.backend.run, micro_batch=loaded.micro_batch
        )
        self._example = example_batch(
            loaded.backend.spec.inputs, loaded.backend.spec.rows_per_run(1)
        )
        self._arrive = loaded.arrive
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs

    def serve(self) -> None:
        """Until the socket side is gone.

        Raises:
            RetryableError: the device fails on an example too.
        """
        for message in self._channel:
            if message["kind"] == "job":
                self._label(message)
            elif message["kind"] == "free":
                self._outputs.free(message["record"])

    def _label(self, job: Message) -> None:
        parts = [Part.from_json(part) for part in job["parts"]]
        self._arrive(job["at_s"])
        results: Sequence[Result]
        try:
            inputs = jobs.arrays_at(job["inputs"], self._inputs)
            results = label_parts(self._run, inputs, parts)
        except Exception as error:  # no memory, for one: the model is here, and others wait for it
            lost = RetryableError(f"the job was lost: {type(error).__name__}: {error}")
            results = [lost] * len(parts)
        self._channel.send("done", id=job["id"], results=[self._told(r) for r in results])
        if any(isinstance(result, RetryableError) for result in results):
            with contextlib.suppress(RequestRefused, BadAnswer):  # the device works
                self._run(self._example)

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


def load(config: PredictorConfig, channel: Channel) -> Loaded | None:
    """Make the model ready and say so; None when it was refused, which is said too."""
    try:
        loaded = loading.load(config, partial(_say, channel))
    except EdlError as error:
        channel.send("refused", **jobs.error_fields(error))
        return None
    rows = loaded.micro_batch
    channel.send("ready", spec=loaded.spec.to_json(), t_t_s=loaded.t_t_s, micro_batch=rows)
    return loaded


def _say(channel: Channel, text: str) -> None:
    channel.send("progress", text=text)


def main() -> int | str:
    """The process; its exit code, or its last words."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel")
    parser.add_argument(
        "--inputs", type=int, required=True, help="descriptor of the inputs' memory"
    )
    parser.add_argument("--outputs", type=int, required=True, help="that of the outputs")
    parser.add_argument("--config", required=True, help="PredictorConfig as JSON")
    given = parser.parse_args()
    configure_logging()
    config = PredictorConfig.from_json(json.loads(given.config))
    if config.cores:
        os.sched_setaffinity(0, config.cores)  # before a framework starts threads of its own
    # Last, so that a folder of the user's cannot hide an installed package.
    sys.path.append(os.getcwd())
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
