"""Runs batches in micro-batches, and measures which size is the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median

import numpy as np

from ..proto.arena import Array
from ..runtime.errors import BadAnswer, ModelError, RetryableError, TeacherError, UsageError
from ..scheduler.batching import RUNS, BatchRule, choose, next_size, per_sample_s
from .backends import Backend, Finish, Run, Submit, at_once, submit_to
from .backends.tensor_specs import example_batch

#: Value of `--micro-batch` that requests a measurement.
AUTO = "auto"


def parse_micro_batch(text: str) -> int | None:
    """Parse a number of samples, or "auto" as None; raises UsageError."""
    if text.strip().lower() == AUTO:
        return None
    return _size(text, f"--micro-batch is a number of samples or {AUTO!r}")


def parse_sizes(text: str, option: str) -> tuple[int, ...]:
    """Parse comma-separated sizes; return them sorted and unique. Raises UsageError."""
    sizes = {_size(part, f"{option} is a list of sizes, as 1,2,4") for part in text.split(",")}
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
        _size(part, "preferred= of --batch is a list of sizes, as 8,16")
        for part in preferred.split(",")
        if part.strip()
    )
    if sizes and not max_samples:
        raise UsageError("preferred= of --batch is for merged requests: give max= too")
    try:
        return BatchRule(max_samples, max_delay_s if max_samples else 0.0, sizes)
    except ValueError as error:
        raise UsageError(f"batching: {error}") from None


def _size(text: str, expected: str) -> int:
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit() and len(digits) < 10 and int(digits)):
        raise UsageError(f"{expected}, not {digits!r}")
    return int(digits)


def run_in_micro_batches(
    run: Run, inputs: Mapping[str, Array], micro_batch: int
) -> dict[str, Array]:
    """Label one batch.

    Args:
        run: the model, as `Backend.run`.
        inputs: arrays of equal length along axis 0, at least 1.
        micro_batch: samples per run; the last run takes the rest.

    Returns:
        Every output, with as many rows as the inputs.

    Raises:
        BadAnswer: an output has another number of rows, or its shape differs between runs.
    """
    outputs, _ = submit_in_micro_batches(at_once(run), inputs, micro_batch)()
    return outputs


def submit_in_micro_batches(
    submit: Submit, inputs: Mapping[str, Array], micro_batch: int
) -> Finish:
    """Start to label one batch; arguments and errors as of `run_in_micro_batches`.

    Returns:
        A function that waits for the labels and returns them with the seconds of all runs.
    """
    rows = len(next(iter(inputs.values())))
    runs: list[tuple[int, Finish]] = []
    for start in range(0, rows, micro_batch):
        size, part = min(micro_batch, rows - start), inputs
        if size < rows:
            part = {name: array[start : start + size] for name, array in inputs.items()}
        runs.append((size, submit(part)))

    def finish() -> tuple[dict[str, Array], float]:
        parts, device_s = list[tuple[int, dict[str, Array]]](), 0.0
        for size, run in runs:
            outputs, run_s = run()
            parts.append((size, outputs))
            device_s += run_s
        return _joined_runs(parts), device_s

    return finish


def _joined_runs(parts: Sequence[tuple[int, dict[str, Array]]]) -> dict[str, Array]:
    """Join the outputs of several runs; `parts` has the samples and the outputs of each."""
    for rows, outputs in parts:
        for name, array in outputs.items():
            if array.ndim == 0 or len(array) != rows:
                raise BadAnswer(
                    f"output {name!r} has shape {list(array.shape)} for {rows} samples: "
                    "its first dimension must be the batch",
                    name,
                )
    first = parts[0][1]
    if len(parts) == 1:
        return first
    return {name: _concatenated(name, [one[name] for _, one in parts]) for name in first}


def _concatenated(name: str, arrays: Sequence[Array]) -> Array:
    shapes = sorted({array.shape[1:] for array in arrays})
    if len(shapes) > 1:
        raise BadAnswer(
            f"output {name!r} has samples of shape {list(shapes[0])} and of {list(shapes[-1])} in "
            "one batch: let the model give all of them one shape",
            name,
        )
    return np.concatenate(arrays)


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
        ModelError: the model does not run on the example, or its answers do not fit its outputs.
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


#: Candidates: powers of two, because finer steps gain kernels and caches too little.
SIZES = (1, 2, 4, 8, 16, 32, 64)
#: The first runs of a size choose kernels, grow memory and fill caches.
_TRIAL_WARM_UP_RUNS = 3
#: Sizes with longer runs are not tried.
_LONGEST_S = 1.0
#: The longest measurement, in seconds.
_SEARCH_BUDGET_S = 15.0
#: Candidates are timed at least this long, or this often, so that short disturbances do not decide.
_AT_LEAST_S = 1.5
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
        EdlError: from `backend.run`, if even the smallest size fails.
    """
    fixed = backend.spec.rows_per_run(0)
    if fixed:
        return fixed, {}
    sizes: tuple[int, ...] = SIZES
    batches: dict[int, Mapping[str, Array]] = {}
    times: dict[int, list[float]] = {}
    began, runs = clock(), RUNS
    while clock() - began < _SEARCH_BUDGET_S:
        size = next_size(times, sizes, _LONGEST_S, runs)
        if size is None:
            if clock() - began >= _AT_LEAST_S or runs > _MOST_RUNS:
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
            times = {smaller: known for smaller, known in times.items() if smaller < size}
            if not times:
                raise
            sizes = tuple(smaller for smaller in sizes if smaller < size)
    return choose(times), {size: per_sample_s(size, runs) for size, runs in times.items()}
