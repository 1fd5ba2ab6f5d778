"""Describes or times a model without serving it, in a process like that of a predictor.

This module implements `edl teacher fingerprint`, which can also write a canary, and `edl teacher
bench`. `run_offline` starts `python -m edl.teacher.offline`. A separate process is needed because
libraries read their numbers of threads and their precision when they are loaded, and the process of
a command has already loaded some libraries. The process sends messages over `proto.channel`:

```
progress  text             for the user
refused   error, message   the task failed
done      result           JSON
```
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..proto.arena import Array
from ..proto.channel import Channel
from ..proto.dataclass_json import from_plain, to_plain
from ..proto.forms import OutputKind
from ..proto.tensors import InferRequest
from ..runtime import supervise
from ..runtime.errors import EdlError, ModelError, ProcessFailed, TeacherError
from ..runtime.files import save_plot
from . import predictor_jobs
from .backends import Backend, run_in_micro_batches, submit_to
from .backends.tensor_specs import example_batch, probe_batch
from .config import PredictorConfig
from .predictor import LoadedModel, load, open_model, prepare_process, send_progress
from .request import check_inputs, check_request
from .self_test import Canary, load_samples, self_test

#: Samples of a canary of noise: enough to compare, and a small file.
CANARY_ROWS: Final = 4


def make_canary(
    loaded: LoadedModel,
    samples: Mapping[str, Array] | None,
    tolerance: float,
    on_progress: Callable[[str], None],
) -> tuple[Canary, dict[str, OutputKind]]:
    """Label samples with the model, and check that a second run agrees within `tolerance`.

    Args:
        loaded: the model.
        samples: arrays [N, ...] by input; None for noise.
        tolerance: as in `Canary`.
        on_progress: called with findings and warnings.

    Returns:
        The canary, and the kind of each output, by name.

    Raises:
        ModelError: the answers fail the self-test, or differ by more than `tolerance`.
        RequestRefused: the samples do not fit the model.
        UsageError: `tolerance` is not within [0, 1).
    """
    backend = loaded.backend
    spec = backend.spec
    if samples is None:
        samples = probe_batch(spec.inputs, spec.rows_per_run(CANARY_ROWS), 0)
    check_request(InferRequest("", inputs=dict(samples)), spec)
    check_inputs(samples, spec)
    try:
        outputs = run_in_micro_batches(backend.run, samples, loaded.ready.micro_batch)
    except TeacherError as error:
        raise ModelError(f"the model fails on the samples of the canary: {error}") from error
    canary = Canary.from_answer(spec.content_id, tolerance, samples, outputs)
    return canary, self_test(backend, canary, loaded.ready.micro_batch, on_progress)


#: A rate of at least this fraction of the best rate is treated as equal to it. Of the sizes with
#: such a rate, the smallest is chosen, because it needs the least memory.
_TIE: Final = 0.99
#: Runs of a size that do not count, because they choose kernels and fill caches.
_WARM_UP: Final = 2
_RUNS_AT_LEAST: Final = 3


def sweep(
    backend: Backend,
    sizes: Sequence[int],
    runs: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[dict[str, Any]]:
    """Time several batch sizes in turns, so that disturbances affect all of them.

    The best size has the highest rate by medians; of rates within a hundredth of the highest, the
    smallest size is best.

    Args:
        backend: the model.
        sizes: samples of a batch, each at least 1; a model that was exported for batches of one
            size is timed only at that size.
        runs: number of timed runs of each size.
        budget_s: after this time, and 3 runs of each size, no further round begins.
        clock: seconds.

    Returns:
        For each size: batch, runs, p50_s, p99_s, samples_per_s, and whether it is the best.

    Raises:
        ModelError: it fails on an example batch.
    """
    fixed = backend.spec.rows_per_run(0)
    sizes = [fixed] if fixed else sizes
    batches = {size: example_batch(backend.spec.inputs, size) for size in sizes}
    times: dict[int, list[float]] = {size: [] for size in sizes}
    submit = submit_to(backend, clock)
    began = clock()
    for turn in range(-_WARM_UP, runs):
        if turn >= _RUNS_AT_LEAST and clock() - began > budget_s:
            break
        for size, batch in batches.items():
            try:
                _, device_s = submit(batch)()
            except TeacherError as error:
                raise ModelError(f"the model fails on a batch of {size}: {error}") from error
            if turn >= 0:
                times[size].append(device_s)
    rows: list[dict[str, Any]] = []
    for size, seconds in times.items():
        p50_s, p99_s = map(float, np.percentile(seconds, (50, 99)))
        rows.append(
            {
                "batch": size,
                "runs": len(seconds),
                "p50_s": p50_s,
                "p99_s": p99_s,
                "samples_per_s": size / p50_s,
            }
        )
    greatest = max(row["samples_per_s"] for row in rows)
    equally_good = [row["batch"] for row in rows if row["samples_per_s"] >= _TIE * greatest]
    return [{**row, "best": row["batch"] == min(equally_good)} for row in rows]


def draw(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw time and rate over batch size into a file; its suffix sets the format.

    After an error, an existing file is unchanged.

    Args:
        rows: from `sweep`.
        title: title of the picture.
        path: the file.

    Raises:
        UsageError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    ordered = sorted(rows, key=lambda row: row["batch"])
    sizes = [row["batch"] for row in ordered]
    figure = Figure(figsize=(7, 4), layout="constrained")
    rates = figure.add_subplot()
    rates.plot(sizes, [row["samples_per_s"] for row in ordered], "o-", color="tab:blue")
    rates.axvline(
        next(row["batch"] for row in ordered if row["best"]), color="tab:green", linestyle=":"
    )
    rates.set_xscale("log", base=2)
    rates.set_xticks(sizes, [str(size) for size in sizes])
    rates.set_xlabel("samples of a batch (dotted: the best)")
    rates.set_ylabel("samples/s", color="tab:blue")
    rates.set_ylim(bottom=0)
    times = rates.twinx()
    for values, style, label in (
        ([1000 * row["p50_s"] for row in ordered], "-", "p50"),
        ([1000 * row["p99_s"] for row in ordered], "--", "p99"),
    ):
        times.plot(sizes, values, style, color="tab:red", label=label)
    times.set_ylabel("ms/batch", color="tab:red")
    times.set_ylim(bottom=0)
    times.legend(loc="upper left")
    rates.set_title(title)
    save_plot(figure, path)


#: Seconds for a process to end after its channel has ended.
_EXIT_S = 5.0


def run_offline(
    task: str, config: PredictorConfig, on_progress: Callable[[str], None], **options: Any
) -> Any:
    """Run a task in a process of its own.

    Args:
        task: a name of `TASKS`.
        config: the model, and how it is run.
        on_progress: called with progress, in words.
        options: arguments of the task.

    Returns:
        The result of the task.

    Raises:
        EdlError: see `run_task`.
    """
    request = {"task": task, "config": to_plain(config), "options": options}
    return run_task(task, __name__, request, config.environment, on_progress)


def run_task(
    task: str,
    module: str,
    request: Mapping[str, Any],
    env: Mapping[str, str],
    on_progress: Callable[[str], None],
) -> Any:
    """Run a module in a process of its own; the module must call `serve_task`.

    Args:
        task: name of the process in messages.
        module: name of the module.
        request: JSON values, the argument of its task.
        env: environment variables of the process.
        on_progress: called with progress, in words.

    Returns:
        The result of the task, as JSON values.

    Raises:
        EdlError: from the task.
        ProcessFailed: the process did not start, or ended without a result.
    """
    channel, child_end = Channel.pair()
    command = supervise.python_command(
        task, module, child_end, json.dumps(request), pass_fds=(child_end,), env=env
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
                    raise predictor_jobs.error_of(message)
                case "done":
                    return message["result"]
        process.wait(_EXIT_S)
        raise ProcessFailed(f"{task} ended without a result: {' | '.join(process.tail(3))}")
    finally:
        process.stop(0.0)
        channel.close()


def _fingerprint(
    config: PredictorConfig,
    on_progress: Callable[[str], None],
    canary: str | None,
    samples: str | None,
    tolerance: float,
) -> dict[str, Any]:
    loaded = load(config, on_progress)
    spec = loaded.ready.spec
    if canary is not None:
        names = [tensor.name for tensor in spec.inputs]
        user_samples = None if samples is None else load_samples(Path(samples), names)
        written, kinds = make_canary(loaded, user_samples, tolerance, on_progress)
        written.save(Path(canary))
        on_progress(f"canary written: {canary}")
        spec = spec.with_kinds({**kinds, **dict(config.output_kinds)})
    return {
        "content_id": spec.content_id,
        "numerics_id": spec.numerics_id,
        "numerics": list(spec.numerics),
        "platform": spec.platform,
        "inputs": [str(tensor) for tensor in spec.inputs],
        "outputs": [str(tensor) for tensor in spec.outputs],
        "preprocessing": list(spec.preprocessing),
        "output_kinds": {tensor.name: tensor.kind or "unknown" for tensor in spec.outputs},
        "micro_batch": loaded.ready.micro_batch,
        "t_t_s": loaded.ready.t_t_s,
        "device": config.device_label,
    }


def _bench(
    config: PredictorConfig,
    on_progress: Callable[[str], None],
    sizes: list[int],
    runs: int,
    seconds: float,
) -> dict[str, Any]:
    backend = open_model(config, on_progress)
    return {
        "model": config.model,
        "device": config.device_label,
        "threads": config.threads,
        "content_id": backend.spec.content_id,
        "numerics": list(backend.spec.numerics),
        "outputs": [str(tensor) for tensor in backend.spec.outputs],
        "rows": sweep(backend, sizes, runs, seconds),
    }


TASKS: Mapping[str, Callable[..., dict[str, Any]]] = {"fingerprint": _fingerprint, "bench": _bench}


def serve_task(task: Callable[[dict[str, Any], Callable[[str], None]], Any]) -> None:
    """Run a task in the process that `run_task` has started.

    Args:
        task: called with the request, and with a function that sends progress; returns the result.
    """
    supervise.end_with_parent(at_once=True)
    channel_fd, request_json = sys.argv[1:]
    channel = Channel.attach(int(channel_fd))
    try:
        result = task(json.loads(request_json), partial(send_progress, channel))
    except EdlError as error:
        channel.send("refused", **predictor_jobs.error_fields(error))
    else:
        channel.send("done", result=result)


def _run(request: dict[str, Any], on_progress: Callable[[str], None]) -> dict[str, Any]:
    config = from_plain(PredictorConfig, request["config"])
    prepare_process(config.cores)
    return TASKS[request["task"]](config, on_progress, **request["options"])


if __name__ == "__main__":
    serve_task(_run)
