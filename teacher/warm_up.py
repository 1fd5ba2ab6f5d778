"""Runs a model before it serves: checks its answers against what it declares, and measures t_t."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

from ..errors import ModelError, TeacherError
from ..proto.arena import Array
from ..proto.tensors import datatype_of
from .backends import Backend
from .backends.example import example_batch
from .microbatch import run_in_micro_batches
from .model import ModelSpec

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
    start = clock()
    try:
        for _ in range(WARM_UP_RUNS):
            outputs = run_in_micro_batches(backend.run, batch, rows)
            check_declared(outputs, backend.spec)
        seconds: list[float] = []
        while len(seconds) < MEASURED_RUNS and (not seconds or clock() - start < _BUDGET_S):
            began = clock()
            run_in_micro_batches(backend.run, batch, rows)
            seconds.append(clock() - began)
    except TeacherError as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
        raise ModelError(f"the model fails on an example batch ({shapes}): {error}") from error
    return median(seconds) / rows


def check_declared(outputs: Mapping[str, Array], spec: ModelSpec) -> None:
    """Raise ModelError where outputs differ from the names, dtypes and shapes of `spec`."""
    for tensor in spec.outputs:
        array = outputs.get(tensor.name)
        if array is None:
            raise ModelError(f"the model declares an output {tensor.name!r} and does not give it")
        given = datatype_of(array.dtype)
        if given != tensor.datatype or not tensor.admits(array.shape):
            raise ModelError(
                f"output {tensor.name!r} is {given} {list(array.shape)}, "
                f"but the model declares {tensor.datatype} {list(tensor.shape)}"
            )
