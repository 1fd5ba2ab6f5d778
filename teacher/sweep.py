"""Times a model at several batch sizes, side by side, for people: `edl teacher bench`."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import ModelError, TeacherError, UsageError
from .backends import Backend, submit_to
from .backends.examples import example_batch

#: Rates so close to the greatest are equal: the smallest size is chosen, it needs least memory.
_TIE: Final = 0.99
#: Runs of a size that do not count: the first choose kernels and fill caches.
_WARM_UP: Final = 2
_RUNS_AT_LEAST: Final = 3


@dataclass(frozen=True, slots=True)
class Timing:
    """A batch size and what it took.

    Attributes:
        size: samples of a batch, all in one run.
        seconds: of each run.
        best: the size to choose: that of the most samples per second, by medians, and the smallest
            of those within a hundredth of it.
    """

    size: int
    seconds: tuple[float, ...]
    best: bool = False

    @property
    def p50_s(self) -> float:
        return float(np.percentile(self.seconds, 50))

    @property
    def p99_s(self) -> float:
        return float(np.percentile(self.seconds, 99))

    @property
    def samples_per_s(self) -> float:
        return self.size / self.p50_s

    def to_json(self) -> dict[str, Any]:
        return {
            "batch": self.size,
            "runs": len(self.seconds),
            "p50_s": self.p50_s,
            "p99_s": self.p99_s,
            "samples_per_s": self.samples_per_s,
            "best": self.best,
        }


def sweep(
    backend: Backend,
    sizes: Sequence[int],
    runs: int,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timing]:
    """Time each size, by turns, so that whatever slows the machine down slows all of them.

    Args:
        backend: the model.
        sizes: samples of a batch, each at least 1.
        runs: of each size.
        budget_s: after so long no further round begins, once each size had 3 runs.
        clock: seconds.

    Raises:
        UsageError: the model was exported for a batch of another size.
        ModelError: it fails on an example batch.
    """
    fixed = backend.spec.rows_per_run(0)
    if fixed and set(sizes) != {fixed}:
        raise UsageError(f"this model was exported for batches of {fixed}: --batch-sizes {fixed}")
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
    timings = [Timing(size, tuple(seconds)) for size, seconds in times.items()]
    greatest = max(timing.samples_per_s for timing in timings)
    good = [timing.size for timing in timings if timing.samples_per_s >= _TIE * greatest]
    return [replace(timing, best=timing.size == min(good)) for timing in timings]


def plot(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw time and rate over batch size into a file, of the kind that its suffix names.

    The file is there whole or, where it cannot be written, as it was.

    Args:
        rows: as of `Timing.to_json`.
        title: what stands above.
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
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(beside)
        beside.replace(path)
    except (OSError, ValueError) as error:  # ValueError: a suffix that is no kind of picture
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UsageError(f"cannot write {path}: {why}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
