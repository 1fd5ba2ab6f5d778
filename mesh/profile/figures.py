"""From times of steps and of batches to rates: what is fixed per batch, what a sample adds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...proto.datatypes import FREE, TensorSpec, dtype_of
from ...scheduler.cluster import DeviceRate
from .stepping import MeasuredSteps

#: Digits that a measured time is written with.
DIGITS = 5


def student_rate(steps: MeasuredSteps) -> DeviceRate:
    """How fast the student is.

    The median counts: what gets in the way makes a step longer, and a mesh has such steps, too.
    Whole batches are believed to the full; half ones say only what of a batch is fixed.
    """
    whole_s = statistics.median(steps.whole_s)
    fixed_s, half_rows = 0.0, steps.rows // 2
    if steps.half_s:
        half_s = statistics.median(steps.half_s)
        each_s = (whole_s - half_s) / (steps.rows - half_rows)
        fixed_s = min(max(whole_s - steps.rows * each_s, 0.0), 0.9 * whole_s)
    return DeviceRate(
        seconds_per_sample=_short((whole_s - fixed_s) / steps.rows),
        batch_overhead_s=_short(fixed_s),
        jitter=_short(_spread(steps.whole_s)),
    )


def teacher_rate(rows: Sequence[Mapping[str, Any]], batch: int | None) -> DeviceRate:
    """How fast the teacher is at its best micro-batch.

    Args:
        rows: of `edl teacher bench`.
        batch: rows of a student's batch, which no micro-batch exceeds; None: any.
    """
    fit = [row for row in rows if batch is None or row["batch"] <= batch] or list(rows)
    best = max(fit, key=lambda row: row["samples_per_s"])
    runs = max(1.0, (batch or best["batch"]) / best["batch"])
    # From the median to the 99th percentile of a normal distribution are 2.33 deviations; a batch
    # of several runs scatters less than one of them.
    jitter = max(0.0, best["p99_s"] / best["p50_s"] - 1) / 2.33 / runs**0.5
    return DeviceRate(
        seconds_per_sample=_short(best["p50_s"] / best["batch"]),
        jitter=_short(min(jitter, 1.0)),
        micro_batch=int(best["batch"]),
    )


def source_rate(steps: MeasuredSteps) -> float:
    """Samples per second that the feed yields."""
    return float(_short(steps.rows / max(statistics.median(steps.source_s), 1e-9)))


def label_bytes(outputs: Sequence[str]) -> float | None:
    """Bytes of all outputs of a sample; None where a dimension is free.

    Args:
        outputs: as `str(TensorSpec)`.
    """
    total = 0
    for text in outputs:
        spec = TensorSpec.parse(text)
        if FREE in spec.shape[1:]:
            return None
        count = 1
        for size in spec.shape[1:]:
            count *= size
        total += count * dtype_of(spec.datatype).itemsize
    return float(total) or None


def _spread(seconds: Sequence[float]) -> float:
    """Relative standard deviation, without the few that something else has made long."""
    if len(seconds) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 1.349 / middle


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
