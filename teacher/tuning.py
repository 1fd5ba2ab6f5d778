"""Measures at which micro-batch this device runs a model fastest, before it serves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ..errors import RetryableError
from ..proto.arena import Array
from ..scheduler.micro_batching import RUNS, choose, next_size, per_sample_s
from .backends import Backend, submit_to
from .backends.example import example_batch

#: Powers of two: kernels and caches know no finer steps that would be worth their time.
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: The first runs of a size choose kernels, grow memory and fill caches.
_WARM_UP_RUNS = 3
#: A size whose run would take longer is not tried.
_LONGEST_S = 1.0
#: Measuring ends after so long, whatever is known by then.
_BUDGET_S = 15.0
#: Rivals are timed for so long, or so often, that a short disturbance does not decide.
_AT_LEAST_S = 1.5
_MOST_RUNS = 1000


def fastest_micro_batch(
    backend: Backend, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, dict[int, float]]:
    """Time `backend` on example batches of several sizes.

    A size that the device has no memory for ends the search for larger ones.

    Args:
        backend: the model, of any batch size or of a fixed one, which then is the answer.
        clock: seconds.

    Returns:
        The chosen size, and the seconds per sample of each that was timed.

    Raises:
        EdlError: as `backend.run`, with not even the smallest size.
    """
    fixed = backend.spec.rows_per_run(0)
    if fixed:
        return fixed, {}
    sizes: tuple[int, ...] = SIZES
    batches: dict[int, Mapping[str, Array]] = {}
    times: dict[int, list[float]] = {}
    began, runs = clock(), RUNS
    while clock() - began < _BUDGET_S:
        size = next_size(times, sizes, _LONGEST_S, runs)
        if size is None:
            if clock() - began >= _AT_LEAST_S or runs > _MOST_RUNS:
                break
            runs *= 2
            continue
        try:
            if size not in batches:
                batches[size] = example_batch(backend.spec.inputs, size)
                for _ in range(_WARM_UP_RUNS):
                    backend.run(batches[size])
            times.setdefault(size, []).append(_timed(backend, batches[size], clock))
        except RetryableError:
            times.pop(size, None)
            if not times:
                raise
            sizes = tuple(smaller for smaller in sizes if smaller < size)
    return choose(times), {size: per_sample_s(size, runs) for size, runs in times.items()}


def _timed(backend: Backend, batch: Mapping[str, Array], clock: Callable[[], float]) -> float:
    _, device_s = submit_to(backend, clock)(batch)()
    return device_s
