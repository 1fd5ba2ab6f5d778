"""Parses sizes of micro-batches and merged batches; measures a model's fastest micro-batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from statistics import median

from ..proto.arena import Array
from ..runtime.errors import ModelError, RetryableError, TeacherError, UsageError
from ..scheduler.batching import RUNS, BatchRule, choose, next_size, per_sample_s
from .backends import Backend, submit_in_micro_batches, submit_to
from .backends.tensor_specs import example_batch

#: Value of `--micro-batch` that requests a measurement.
AUTO = "auto"


def parse_micro_batch(text: str) -> int | None:
    """Parse a number of samples, or "auto" as None; raises UsageError."""
    if text.strip().lower() == AUTO:
        return None
    return _parse_size(text, f"--micro-batch is a number of samples or {AUTO!r}")


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """Parse comma-separated sizes; return them sorted and unique. Raises UsageError."""
    sizes = {
        _parse_size(part, f"{option} is a list of sizes, as 1,2,4") for part in text.split(",")
    }
    return tuple(sorted(sizes))


def parse_batching(max_samples: int, max_delay_s: float, preferred: str) -> BatchRule:
    """Return the rule by which requests are merged.

    Args:
        max_samples: largest batch; 0 merges nothing.
        max_delay_s: the longest wait for other requests.
        preferred: comma-separated sizes in samples, or empty.

    Raises:
        UsageError: a value is not a size or time, or a preferred size exceeds the maximum.
    """
    sizes = frozenset(
        _parse_size(part, "preferred= of --batch is a list of sizes, as 8,16")
        for part in preferred.split(",")
        if part.strip()
    )
    if sizes and not max_samples:
        raise UsageError("preferred= of --batch is for merged requests: give max= too")
    try:
        return BatchRule(max_samples, max_delay_s if max_samples else 0.0, sizes)
    except ValueError as error:
        raise UsageError(f"batching: {error}") from None


def _parse_size(text: str, expected: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise UsageError(f"{expected}, not {digits!r}")
    return int(digits)


#: Runs that do not count, because they choose kernels and fill caches.
WARM_UP_RUNS = 2
MEASURED_RUNS = 7
#: After this time a slow model is measured with fewer runs.
_WARM_UP_BUDGET_S = 20.0


def warm_up(
    backend: Backend, micro_batch: int, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Run `backend` on an example micro-batch until it is warm, then time it.

    Args:
        backend: the model.
        micro_batch: samples per run.
        clock: seconds.

    Returns:
        t_t: seconds per sample on the device, the median of at most 7 runs (fewer if they take
            long).

    Raises:
        ModelError: the model does not run on the example, or its answers break its spec.
    """
    rows = backend.spec.rows_per_run(micro_batch)
    batch = example_batch(backend.spec.inputs, rows)
    submit = submit_to(backend, clock)
    start = clock()
    try:
        for _ in range(WARM_UP_RUNS):
            submit_in_micro_batches(submit, batch, rows)()
        seconds: list[float] = []
        while len(seconds) < MEASURED_RUNS and (not seconds or clock() - start < _WARM_UP_BUDGET_S):
            _, device_s = submit_in_micro_batches(submit, batch, rows)()
            seconds.append(device_s)
    except TeacherError as error:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in batch.items())
        raise ModelError(f"the model fails on an example batch ({shapes}): {error}") from error
    return median(seconds) / rows


#: Candidate sizes. Powers of two suffice: sizes in between would hardly be faster.
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: The first runs of a size choose kernels, grow memory and fill caches.
_TRIAL_WARM_UP_RUNS = 3
#: Limit of one run, in seconds. Sizes that would likely exceed it are not tried.
_LONGEST_RUN_S = 1.0
#: The longest measurement, in seconds.
_SEARCH_BUDGET_S = 15.0
#: Candidates are timed again until this many seconds have passed, or each has about `_MOST_RUNS`
#: runs, so that a short disturbance does not decide.
_SEARCH_AT_LEAST_S = 1.5
_MOST_RUNS = 1000


def fastest_micro_batch(
    backend: Backend, clock: Callable[[], float] = time.perf_counter
) -> tuple[int, dict[int, float]]:
    """Time `backend` on example batches of several sizes.

    A size that exceeds the memory of the device ends the search for larger ones.

    Args:
        backend: the model; a fixed batch size is returned without timing.
        clock: seconds.

    Returns:
        The chosen size, and the seconds per sample of each size that was timed.

    Raises:
        RetryableError: even the smallest size fails for lack of a resource.
        EdlError: `backend.run` failed for another reason.
    """
    fixed = backend.spec.rows_per_run(0)
    if fixed:
        return fixed, {}
    sizes: tuple[int, ...] = SIZES
    batches: dict[int, Mapping[str, Array]] = {}
    times: dict[int, list[float]] = {}
    began, runs = clock(), RUNS
    while clock() - began < _SEARCH_BUDGET_S:
        size = next_size(times, sizes, _LONGEST_RUN_S, runs)
        if size is None:
            if clock() - began >= _SEARCH_AT_LEAST_S or runs > _MOST_RUNS:
                break
            runs *= 2
            continue
        try:
            if size not in batches:
                batches[size] = example_batch(backend.spec.inputs, size)
                for _ in range(_TRIAL_WARM_UP_RUNS):
                    backend.run(batches[size])
            _, device_s = submit_to(backend, clock)(batches[size])()
            times.setdefault(size, []).append(device_s)
        except RetryableError:
            times = {smaller: runs_s for smaller, runs_s in times.items() if smaller < size}
            if not times:
                raise
            sizes = tuple(smaller for smaller in sizes if smaller < size)
    return choose(times), {size: per_sample_s(size, runs) for size, runs in times.items()}
