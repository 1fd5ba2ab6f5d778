"""Rates computed from timings: a fixed cost per batch, and a cost per sample."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ...proto.datatypes import FREE, TensorSpec, dtype_of
from ...scheduler.cluster import DeviceRate
from .step_timings import StepTimings

#: Significant digits of a measured time.
DIGITS = 5


def student_rate(steps: StepTimings) -> DeviceRate:
    """Compute the student's rate from the medians of its steps.

    Whole batches give the duration of a step. Half batches only divide this duration into the fixed
    cost of a batch and the cost of its samples.
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
    """Compute the teacher's rate at its best micro-batch.

    Args:
        rows: results of `edl teacher bench`, one for each micro-batch.
        batch: rows of a student's batch, the largest possible micro-batch; None: no limit.
    """
    fit = [row for row in rows if batch is None or row["batch"] <= batch] or list(rows)
    best = max(fit, key=lambda row: row["samples_per_s"])
    runs = max(1.0, (batch or best["batch"]) / best["batch"])
    # The 99th percentile of a normal distribution is 2.33 standard deviations above the median. The
    # mean of several runs varies less than one run.
    jitter = max(0.0, best["p99_s"] / best["p50_s"] - 1) / 2.33 / runs**0.5
    return DeviceRate(
        seconds_per_sample=_short(best["p50_s"] / best["batch"]),
        jitter=_short(min(jitter, 1.0)),
        micro_batch=int(best["batch"]),
    )


def source_rate(steps: StepTimings) -> float:
    """Compute the samples per second of the feed."""
    return float(_short(steps.rows / max(statistics.median(steps.source_s), 1e-9)))


def label_bytes(outputs: Sequence[str]) -> float | None:
    """Compute the bytes of all outputs for a sample; None: unknown, as a dimension is free.

    Args:
        outputs: tensor specs as text, see `TensorSpec.parse`.
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
    """Return the relative standard deviation, estimated from quartiles, which ignore outliers."""
    if len(seconds) < 4:
        return 0.0
    low, middle, high = statistics.quantiles(seconds, n=4)
    return (high - low) / 1.349 / middle


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
