"""The predictor process: runs one model on one device, and nothing else.

`python -m edl.teacher.predictor`, started by `predictor_session`. It is a process of its own
because a framework's run holds Python's lock for as long as it takes: a server in the same process
would be deaf meanwhile. Jobs come over a channel, arrays lie in shared memory (`jobs`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

from .. import supervise
from ..errors import EdlError, ModelError
from ..proto.arena import Arena
from ..proto.channel import Channel, Message
from . import jobs
from .backends import Backend
from .backends.open import open_backend
from .config import PredictorConfig
from .finite import check_finite
from .microbatch import run_in_micro_batches
from .warm_up import warm_up


class Predictor:
    """Serves jobs with a model that is loaded, one after another, in the order they came."""

    def __init__(
        self, backend: Backend, micro_batch: int, channel: Channel, inputs: Arena, outputs: Arena
    ) -> None:
        self._backend = backend
        self._rows = backend.spec.rows_per_run(micro_batch)
        self._channel = channel
        self._inputs = inputs
        self._outputs = outputs

    def serve(self) -> None:
        """Until the socket side is gone."""
        for message in self._channel:
            if message["kind"] == "job":
                self._label(message)
            elif message["kind"] == "free":
                self._outputs.free(message["record"])

    def _label(self, job: Message) -> None:
        try:
            inputs = jobs.arrays_at(job["inputs"], self._inputs)
            start = time.perf_counter()
            every = run_in_micro_batches(self._backend.run, inputs, self._rows)
            device_seconds = time.perf_counter() - start
            outputs = {name: every[name] for name in job["outputs"]}
            check_finite(outputs)
            record = self._outputs.put(list(outputs.values()))
        except (EdlError, OSError) as error:
            self._channel.send("failed", id=job["id"], **jobs.error_fields(error))
            return
        self._channel.send(
            "done",
            id=job["id"],
            record=record.offset,
            outputs=jobs.refs_to_json(outputs, record.arrays),
            device_seconds=device_seconds,
        )


def load(config: PredictorConfig, channel: Channel) -> Backend | None:
    """Open the model, warm it up and say so; None when it was refused, which is said too."""
    try:
        channel.send("progress", text=f"loading {config.model}")
        backend = open_backend(
            config.model, threads=config.threads, device=config.device, inputs=config.inputs
        )
        channel.send("progress", text="warming up")
        t_t_s = warm_up(backend, config.micro_batch)
    except EdlError as error:
        channel.send("refused", **jobs.error_fields(error))
        return None
    rows = backend.spec.rows_per_run(config.micro_batch)
    channel.send("ready", spec=backend.spec.in_micro_batches(rows).to_json(), t_t_s=t_t_s)
    return backend


def main() -> int:
    """The process; its exit code."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the channel")
    parser.add_argument(
        "--inputs", type=int, required=True, help="descriptor of the inputs' memory"
    )
    parser.add_argument("--outputs", type=int, required=True, help="that of the outputs")
    parser.add_argument("--config", required=True, help="PredictorConfig as JSON")
    given = parser.parse_args()
    config = PredictorConfig.from_json(json.loads(given.config))
    # Last, so that a folder of the user's cannot hide an installed package.
    sys.path.append(os.getcwd())
    channel = Channel.attach(given.channel)
    backend = load(config, channel)
    if backend is None:
        return ModelError.exit_code
    inputs, outputs = Arena.attach(given.inputs), Arena.attach(given.outputs)
    Predictor(backend, config.micro_batch, channel, inputs, outputs).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
