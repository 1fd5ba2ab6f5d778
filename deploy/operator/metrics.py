"""Prometheus metrics of the operator."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class OperatorMetrics:
    """Metrics of one operator.

    Args:
        leads: returns whether it leads now.

    Attributes:
        registry: holds the metrics.
    """

    def __init__(self, leads: Callable[[], bool] = lambda: False) -> None:
        self.registry = CollectorRegistry()
        leading = Gauge(
            "edl_operator_leading", "1 at the operator that acts.", registry=self.registry
        )
        leading.set_function(lambda: float(leads()))
        self._turns = Counter(
            "edl_operator_reconciliations",
            "Reconciliations by result: done, failed.",
            ["part", "result"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "edl_operator_reconciliation_seconds",
            "Seconds of one reconciliation of TeacherServices (`teachers`) or DistillJobs "
            "(`jobs`).",
            ["part"],
            registry=self.registry,
            buckets=(0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0),
        )

    def reconciled(self, part: str, well: bool, seconds: float) -> None:
        """Count one run of a reconciler."""
        self._turns.labels(part, "done" if well else "failed").inc()
        self._seconds.labels(part).observe(seconds)
