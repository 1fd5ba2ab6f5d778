"""Metrics of a manager, collected from its view at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .manager.manager import ManagerView
from .manager.service_state import LeaderView
from .manager.subscription_hub import HubView
from .store.redis_connection import REFUSALS

#: Reasons of refused calls; each has a series from the start, so that its first increase is seen.
REASONS: Final = (
    "unauthenticated",
    "forbidden",
    "malformed",
    "too_large",
    "rate_limited",
    "wrong_instance",
    "version",
    "overloaded",
)
_PREFIX: Final = "edl_coordinator"

_V = TypeVar("_V")
#: Name of a metric -> function that returns its value from a view, and its help text.
_Metrics = Mapping[str, tuple[Callable[[_V], float], str]]

#: Metrics of the leader of a service.
_LEADER_GAUGES: Final[_Metrics[LeaderView]] = {
    "term": (
        lambda view: view.term,
        "Term of the assignments' version (term, counter).",
    ),
    "assignment_counter": (
        lambda view: view.counter,
        "Counter of the assignments' version (term, counter), not a number of assignments.",
    ),
    "recovering": (
        lambda view: view.recovering,
        "1 during recovery, in which students keep teachers that are missing in Redis.",
    ),
    "idle_teachers": (lambda view: view.idle, "Live teachers that are assigned to no student."),
    "students": (lambda view: view.students, "Students with a lease."),
    "leader_update_seconds": (
        lambda view: view.reconcile_s,
        "Seconds of the latest update: read the registry, compute assignments, write them.",
    ),
    "solve_seconds": (
        lambda view: view.solve_s,
        "Seconds of the latest computation of assignments.",
    ),
}
_LEADER_COUNTERS: Final[_Metrics[LeaderView]] = {
    "assignments_written": (lambda view: view.rows, "Assignments written by this manager."),
    "recoveries": (
        lambda view: view.recoveries,
        "Recoveries that this manager began, one per term.",
    ),
    "admission_refusals": (
        lambda view: view.refusals,
        "Failed probes: the manager tested a teacher and did not admit it to the service.",
    ),
}
#: Metrics of the manager's subscriptions to a service.
_HUB_GAUGES: Final[_Metrics[HubView]] = {
    "streams": (
        lambda view: view.streams,
        "Open subscription streams at this manager, one per subscribed student.",
    ),
    "wanted_teachers": (
        lambda view: view.wanted,
        "Teachers that students want, summed over students.",
    ),
    "assigned_teachers": (
        lambda view: view.assigned,
        "Teachers assigned to students, summed over students: a shared one counts for each.",
    ),
    "samples_per_second": (
        lambda view: view.samples_per_second,
        "Samples per second, summed over students.",
    ),
    "starved_seconds": (
        lambda view: view.starved_s,
        "Seconds that students waited for labels, summed over students.",
    ),
    "blocked_seconds": (
        lambda view: view.blocked_s,
        "Seconds that pulling was paused because buffers were full of labels, which is normal. "
        "Summed over students.",
    ),
    "source_wait_seconds": (
        lambda view: view.source_wait_s,
        "Seconds that students waited for their source, summed over students.",
    ),
    "table_read_seconds": (
        lambda view: view.refresh_s,
        "Seconds of this manager's latest read of the assignment table and of changed teachers.",
    ),
}
_HUB_COUNTERS: Final[_Metrics[HubView]] = {
    "assignments_pushed": (lambda view: view.pushed, "Assignments sent to students."),
}


class CoordinatorMetrics:
    """The metrics of one manager, in their own registry.

    Attributes:
        registry: registry for `MetricsServer`.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._refused = Counter(
            f"{_PREFIX}_refused",
            "Calls and streams that were refused.",
            ["reason"],
            registry=self.registry,
        )
        for reason in REASONS:
            self._refused.labels(reason)

    def refused(self, reason: str) -> None:
        """Count a refusal. May be called from any thread."""
        self._refused.labels(reason if reason in REASONS else "malformed").inc()

    def export_view(self, view: Callable[[], ManagerView]) -> None:
        """Add the metrics of `view()`, the manager's view, to each scrape. Call this once."""
        self.registry.register(_Views(view))


class _Views(Collector):
    def __init__(self, view: Callable[[], ManagerView]) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        view = self._view()
        services = view.services
        leading = {
            service.name: service.leading for service in services if service.leading is not None
        }
        hubs = {service.name: service.hub for service in services if service.hub is not None}
        yield _gauge(
            "registry_answering",
            "1 while Redis answers, even if it refuses writes; 0 if it does not answer, or denies "
            "this manager access.",
            [],
            {(): view.redis_available or view.refusal != ""},
        )
        yield _gauge(
            "registry_refusing",
            "While Redis answers but rejects commands: 1 for the current reason, 0 for the others.",
            ["reason"],
            {(reason,): reason == view.refusal for reason in REFUSALS},
        )
        yield _gauge(
            "leading",
            "1 at the manager that leads the service.",
            ["service"],
            {(service.name,): service.name in leading for service in services},
        )
        yield _gauge(
            "leader_known",
            "1 while some manager leads the service.",
            ["service"],
            {
                (service.name,): service.leader != "" or service.name in leading
                for service in services
            },
        )
        yield from _families(GaugeMetricFamily, _LEADER_GAUGES, leading)
        yield _gauge(  # no series while undecided: a 0 would end all teachers
            "desired_teachers",
            "Teachers that the service should have, for autoscalers; no series until the number is "
            "decided.",
            ["service"],
            {(name,): v.desired.count for name, v in leading.items() if v.desired is not None},
        )
        yield from _families(CounterMetricFamily, _LEADER_COUNTERS, leading)
        yield _states(
            "teachers",
            "Live teachers, as the leader sees them.",
            {name: leader.teachers for name, leader in leading.items()},
        )
        yield from _families(GaugeMetricFamily, _HUB_GAUGES, hubs)
        yield from _families(CounterMetricFamily, _HUB_COUNTERS, hubs)
        yield _states(
            "subscribed_students",
            "Students that are subscribed at this manager, by state.",
            {name: hub.students for name, hub in hubs.items()},
        )


def _families(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    metrics: _Metrics[_V],
    views: Mapping[str, _V],
) -> Iterator[Metric]:
    for name, (value_of, text) in metrics.items():
        metric = family(f"{_PREFIX}_{name}", text, labels=["service"])
        for service, view in views.items():
            metric.add_metric([service], value_of(view))
        yield metric


def _states(name: str, text: str, by_service: Mapping[str, Mapping[str, int]]) -> Metric:
    """Return the number of members in each state, by service."""
    counts: dict[tuple[str, ...], float] = {
        (service, state): count
        for service, states in by_service.items()
        for state, count in states.items()
    }
    return _gauge(name, text, ["service", "state"], counts)


def _gauge(
    name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> Metric:
    """Return a gauge with a value for each combination of label values."""
    gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=labels)
    for label_values, value in values.items():
        gauge.add_metric(label_values, value)
    return gauge
