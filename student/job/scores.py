"""A job's metrics over many batches: means over rows, or what `paddle.metric` keeps itself."""

from __future__ import annotations

from typing import Any

from ...errors import JobError
from .spec import JobSpec


class Scores:
    """Adds up the metrics of a job file.

    A metric is a function of (outputs, labels) whose result is a mean over the rows of the batch,
    or a `paddle.metric.Metric`.

    Args:
        spec: the job file; without `metrics()` there are none.

    Raises:
        JobError: its `metrics()` fails.
    """

    def __init__(self, spec: JobSpec) -> None:
        self._spec = spec
        self._metrics: dict[str, Any] = spec.metrics()
        self._sums: dict[str, float] = {}
        self._rows = 0

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._metrics)

    def add(self, outputs: Any, labels: Any, rows: int) -> None:
        """Count a batch.

        Args:
            outputs: what the model returned.
            labels: its hard labels.
            rows: of the batch.

        Raises:
            JobError: a metric fails, or is no number.
        """
        self._rows += rows
        for name, metric in self._metrics.items():
            with self._spec.blames("metrics"):
                if hasattr(metric, "accumulate"):
                    found = metric.compute(outputs, labels)
                    metric.update(*(found if isinstance(found, (tuple, list)) else (found,)))
                    continue
                value = metric(outputs, labels)
                try:
                    number = float(value)
                except (TypeError, ValueError):
                    raise JobError(
                        f"{self._spec.path}, in metrics(): {name!r} must give a number of each"
                        f" batch, not a {type(value).__name__}"
                    ) from None
                self._sums[name] = self._sums.get(name, 0.0) + rows * number

    def values(self) -> dict[str, float]:
        """The metrics of all rows that were added since `clear`; empty before the first.

        Raises:
            JobError: a metric fails.
        """
        if not self._rows:
            return {}
        with self._spec.blames("metrics"):
            return self._values()

    def _values(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for name, metric in self._metrics.items():
            if not hasattr(metric, "accumulate"):
                found[name] = self._sums[name] / self._rows
                continue
            value = metric.accumulate()
            if isinstance(value, (tuple, list)):  # as of Accuracy(topk=(1, 5))
                found |= {f"{name}_{n}": float(one) for n, one in enumerate(value)}
            else:
                found[name] = float(value)
        return found

    def clear(self) -> None:
        """Begin anew."""
        self._rows = 0
        self._sums.clear()
        for metric in self._metrics.values():
            if hasattr(metric, "reset"):
                metric.reset()
