"""Runs a model before it serves, until it is warm, and measures t_t."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from ..errors import ModelError, TeacherError
from .backends import Backend, submit_to
from .backends.example import example_batch
from .microbatch import submit_in_micro_batches

#: The first runs choose kernels and fill caches.
WARM_UP_RUNS = 2
MEASURED_RUNS = 7
#: A model so slow that its runs take longer is measured by fewer of them.
_BUDGET_S = 20.0


def warm_up(
    backend: Backend, micro_batch: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Run `backend` on an example micro-batch until it is warm, then time it.

    Args:
        backend: the model.
        micro_batch: samples of one run.
        clock: seconds.

    Returns:
        t_t: device time in seconds per sample, the median of at least 5 runs (of fewer for a model
        that takes seconds for each).

    Raises:
        ModelError: the model does not run on the example, or its answers are not what it declares.
    """
    rows = backend.spec.rows_per_run(micro_batch)
    batch = example_batch(backend.spec.inputs, rows)
    submit = submit_to(backend, clock)
    start = clock()
    try:
        for _ in range(WARM_UP_RUNS):
            submit_in_micro_batches(submit, batch, rows)()
        seconds: list[float] = []
        while len(seconds) < MEASURED_RUNS and (not seconds or clock() - start < _BUDGET_S):
            _, device_s = submit_in_micro_batches(submit, batch, rows)()
            seconds.append(device_s)
    except TeacherError as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
        raise ModelError(f"the model fails on an example batch ({shapes}): {error}") from error
    return median(seconds) / rows
