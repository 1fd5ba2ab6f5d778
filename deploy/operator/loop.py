"""The reconcile loop: while the operator leads, it reconciles periodically, and after changes."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from ...runtime.errors import EdlError, LeaseSuperseded
from ...runtime.lifecycle import SIGNAL_CHECK_S, Stop
from ...scheduler.backoff import RandomLike, RetryPause, next_retry_s
from .error_log import ErrorLog

log = logging.getLogger(__name__)

#: Shortest pause between two rounds in seconds, so that many changes cause one round.
_PAUSE_S: Final = 0.1
#: Bounds of the pause of a reconciler after a failure, in seconds.
_BASE_S, _CAP_S = 2.0, 30.0


#: Reconciles all resources of one kind: observes everything, decides and acts. Its argument is the
#: time in seconds since 1970.
Reconciler = Callable[[float], None]


class OperatorMetrics:
    """Metrics of one operator.

    Args:
        leads: returns whether it leads now.

    Attributes:
        registry: holds the metrics.
    """

    def __init__(self, leads: Callable[[], bool]) -> None:
        self.registry = CollectorRegistry()
        leading = Gauge(
            "edl_operator_leading", "1 at the operator that acts.", registry=self.registry
        )
        leading.set_function(lambda: float(leads()))
        self._reconciliations = Counter(
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

    def reconciled(self, part: str, succeeded: bool, seconds: float) -> None:
        """Count one run of a reconciler."""
        self._reconciliations.labels(part, "done" if succeeded else "failed").inc()
        self._seconds.labels(part).observe(seconds)


class ReconcileLoop:
    """Runs all reconcilers; a failure of one delays only that one.

    Args:
        parts: reconcilers by name, in order.
        leads: returns whether this operator may act.
        interval_s: seconds between two rounds without changes.
        wake: ends a pause when it is set; any thread may set it.
        rng: jitters the pauses after failures.
        clock: returns seconds that do not go back.

    Attributes:
        metrics: metrics of its rounds.
    """

    def __init__(
        self,
        parts: Mapping[str, Reconciler],
        leads: Callable[[], bool],
        interval_s: float,
        wake: threading.Event,
        rng: RandomLike = random,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._leads = leads
        self._interval_s = interval_s
        self._wake = wake
        self.metrics = OperatorMetrics(leads)
        self._rng, self._clock = rng, clock
        self._pauses = dict.fromkeys(parts, RetryPause())
        self._errors = ErrorLog()

    def run(self, stop: Stop) -> None:
        """Run until `stop` is requested."""
        while not stop.requested:
            pause_s = self._interval_s
            if self._leads():
                pause_s = self.round(time.time())
            else:  # start without pauses when it leads again
                self._pauses = dict.fromkeys(self._parts, RetryPause())
            if stop.wait(_PAUSE_S):
                break
            self._pause(stop, pause_s - _PAUSE_S)

    def _pause(self, stop: Stop, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while not stop.requested and (left_s := until_s - time.monotonic()) > 0:
            if self._wake.wait(min(left_s, SIGNAL_CHECK_S)):
                break
        self._wake.clear()

    def round(self, now: float) -> float:
        """Run all reconcilers except those that pause after a failure.

        Returns:
            Seconds until the next round, unless something wakes the loop earlier.
        """
        for name, part in self._parts.items():
            pause = self._pauses[name]
            if pause.until_s > self._clock():
                continue
            began_s = time.perf_counter()
            succeeded = self._reconcile(name, part, now)
            self.metrics.reconciled(name, succeeded, time.perf_counter() - began_s)
            self._pauses[name] = (
                RetryPause()
                if succeeded
                else pause.failed(self._clock(), self._rng, _BASE_S, _CAP_S)
            )
        return next_retry_s(self._pauses.values(), self._clock(), self._interval_s)

    def _reconcile(self, name: str, part: Reconciler, now: float) -> bool:
        """Run one reconciler; return whether it succeeded."""
        try:
            part(now)
        except LeaseSuperseded as error:
            log.info("%s", error)
            return True  # another operator leads, or this one ends
        except EdlError as error:
            self._errors.report(log, name, f"{name} are not reconciled", error)
            return False
        except Exception:  # an unexpected resource must not stop the operator
            log.exception("reconciling %s failed; it is tried again", name)
            return False
        if self._errors.clear(name):
            log.info("%s are reconciled again", name)
        return True
