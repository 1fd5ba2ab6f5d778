"""A process that looks at a model without serving it, in the same surroundings as a predictor.

`python -m edl.teacher.offline`, started by `offline`: libraries read how many threads they may use,
and how exact they are to be, when they are loaded, and the process of a command has loaded some.

```
from it    progress  text             for the operator
           refused   error, message   it cannot do it
           done      result           JSON
```
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from .. import supervise
from ..errors import EdlError, ModelError, ProcessFailed, TeacherError
from ..proto.arena import Array
from ..proto.channel import Channel
from ..proto.tensors import InferRequest
from . import jobs
from .backends.examples import probe_batch
from .config import PredictorConfig
from .loading import Loaded, load, open_model
from .microbatch import run_in_micro_batches
from .request import check_request
from .self_test import Canary, load_samples, self_test
from .sweep import sweep

#: Samples of a canary of noise: enough to compare, and a small file.
CANARY_ROWS: Final = 4


def fingerprint(loaded: Loaded) -> dict[str, Any]:
    """What is worth knowing of a model before it is served, ready for JSON."""
    spec = loaded.spec
    return {
        "content_id": spec.content_id,
        "numerics_id": spec.numerics_id,
        "numerics": list(spec.numerics),
        "platform": spec.platform,
        "inputs": [str(tensor) for tensor in spec.inputs],
        "outputs": [str(tensor) for tensor in spec.outputs],
        "output_kinds": {tensor.name: tensor.kind or "unknown" for tensor in spec.outputs},
        "micro_batch": loaded.micro_batch,
        "t_t_s": loaded.t_t_s,
    }


def take_canary(
    loaded: Loaded,
    samples: Mapping[str, Array] | None,
    tolerance: float,
    on_progress: Callable[[str], None],
) -> Canary:
    """Have the model label samples, twice, and keep what it answered.

    Args:
        loaded: the model.
        samples: arrays [N, ...] by input; None: noise.
        tolerance: as of `Canary`.
        on_progress: told what was found.

    Raises:
        ModelError: the answers fail the self-test, or the second differs from the first.
        RequestRefused: the samples are not what the model takes.
    """
    backend = loaded.backend
    spec = backend.spec
    if samples is None:
        samples = probe_batch(spec.inputs, spec.rows_per_run(CANARY_ROWS), 0)
    check_request(InferRequest("", inputs=dict(samples)), spec)
    try:
        outputs = run_in_micro_batches(backend.run, samples, loaded.micro_batch)
    except TeacherError as error:
        raise ModelError(f"the model fails on the samples of the canary: {error}") from error
    canary = Canary.of(spec.content_id, tolerance, samples, outputs)
    self_test(backend, canary, loaded.micro_batch, on_progress)
    return canary


_LAST_WORDS_S = 5.0


def offline(
    task: str, config: PredictorConfig, on_progress: Callable[[str], None], **options: Any
) -> Any:
    """Have a task done, in a process of its own.

    Args:
        task: a name of `TASKS`.
        config: the model, and how it is run.
        on_progress: told in words what is being done.
        options: of the task.

    Returns:
        What the task returns.

    Raises:
        EdlError: what the task raises.
        ProcessFailed: the process ended by itself.
    """
    channel, child_end = Channel.pair()
    words = json.dumps({"task": task, "config": config.to_json(), "options": options})
    command = supervise.python_command(
        task, __name__, child_end, words, pass_fds=(child_end,), env=config.environment
    )
    try:
        process = supervise.start(command)
    finally:
        os.close(child_end)
    try:
        for message in channel:
            match message["kind"]:
                case "progress":
                    on_progress(message["text"])
                case "refused":
                    raise jobs.error_of(message)
                case "done":
                    return message["result"]
        process.wait(_LAST_WORDS_S)
        raise ProcessFailed(f"{task} ended without a result: {' | '.join(process.tail(3))}")
    finally:
        process.stop(0.0)
        channel.close()


def _fingerprint(
    config: PredictorConfig,
    say: Callable[[str], None],
    canary: str | None,
    samples: str | None,
    tolerance: float,
) -> dict[str, Any]:
    loaded = load(config, say)
    if canary is not None:
        names = [tensor.name for tensor in loaded.backend.spec.inputs]
        given = None if samples is None else load_samples(Path(samples), names)
        take_canary(loaded, given, tolerance, say).save(Path(canary))
        say(f"canary written: {canary}")
    return {**fingerprint(loaded), "device": config.device_label}


def _bench(
    config: PredictorConfig,
    say: Callable[[str], None],
    sizes: list[int],
    runs: int,
    seconds: float,
) -> dict[str, Any]:
    backend = open_model(config, say)
    timings = sweep(backend, sizes, runs, seconds)
    return {
        "model": config.model,
        "device": config.device_label,
        "threads": config.threads,
        "content_id": backend.spec.content_id,
        "numerics": list(backend.spec.numerics),
        "outputs": [str(tensor) for tensor in backend.spec.outputs],
        "rows": [timing.to_json() for timing in timings],
    }


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {
    "fingerprint": _fingerprint,
    "bench": _bench,
}


def main() -> None:
    """The process."""
    supervise.end_with_parent(at_once=True)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("channel", type=int, help="descriptor of the channel")
    parser.add_argument("words", help="task, config and options as JSON")
    given = parser.parse_args()
    words = json.loads(given.words)
    config = PredictorConfig.from_json(words["config"])
    if config.cores:
        os.sched_setaffinity(0, config.cores)  # before a framework starts threads of its own
    sys.path.append(os.getcwd())  # last, so that it hides no installed package
    channel = Channel.attach(given.channel)
    try:
        result = TASKS[words["task"]](config, partial(_say, channel), **words["options"])
    except EdlError as error:
        channel.send("refused", **jobs.error_fields(error))
    else:
        channel.send("done", result=result)


def _say(channel: Channel, text: str) -> None:
    channel.send("progress", text=text)


if __name__ == "__main__":
    main()
