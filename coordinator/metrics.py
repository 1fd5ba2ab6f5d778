"""Metrics of a manager, collected from its view at each scrape."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, Counter, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from .manager.manager import ManagerView, ServiceView
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

_V = TypeVar("_V", LeaderView, HubView)

_OF_LEADER: Final[Mapping[str, tuple[str, Callable[[LeaderView], float]]]] = {
    "term": ("Term in the version (term, counter) of the assignments.", lambda v: v.term),
    "assignment_counter": (
        "Counter in the version (term, counter) of the assignments.",
        lambda v: v.counter,
    ),
    "recovering": ("1 during recovery, while assignments may only grow.", lambda v: v.recovering),
    "idle_teachers": ("Live teachers that are assigned to no student.", lambda v: v.idle),
    "students": ("Students with a lease.", lambda v: v.students),
    "leader_update_seconds": (
        "Seconds of the latest read of the registry and computation of assignments.",
        lambda v: v.look_s,
    ),
    "solve_seconds": ("Seconds of the latest computation of assignments.", lambda v: v.solve_s),
}
_OF_LEADER_TOTAL: Final[Mapping[str, tuple[str, Callable[[LeaderView], float]]]] = {
    "assignments_written": ("Assignments written by this manager.", lambda v: v.rows),
    "recoveries": ("Terms that this manager started.", lambda v: v.recoveries),
    "admission_refusals": ("Probes after which a teacher was refused.", lambda v: v.refusals),
}
_OF_HUB: Final[Mapping[str, tuple[str, Callable[[HubView], float]]]] = {
    "streams": ("Subscriptions that this manager holds.", lambda v: v.streams),
    "wanted_teachers": ("Teachers that students want.", lambda v: v.wanted),
    "assigned_teachers": ("Teachers that are assigned to students.", lambda v: v.assigned),
    "samples_per_second": (
        "Samples per second, summed over students.",
        lambda v: v.samples_per_second,
    ),
    "starved_seconds": (
        "Seconds that students waited for labels, summed.",
        lambda v: v.starved_s,
    ),
    "blocked_seconds": (
        "Seconds for which full buffers paused pulling, summed over students.",
        lambda v: v.blocked_s,
    ),
    "source_wait_seconds": (
        "Seconds that students waited for their source, summed.",
        lambda v: v.source_wait_s,
    ),
    "table_read_seconds": (
        "Seconds of this manager's latest read of the assignment table and of changed teachers.",
        lambda v: v.look_s,
    ),
}
_OF_HUB_TOTAL: Final[Mapping[str, tuple[str, Callable[[HubView], float]]]] = {
    "assignments_pushed": ("Assignments sent to students.", lambda v: v.pushed),
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

    def watch(self, view: Callable[[], ManagerView]) -> None:
        """Add the metrics of the manager's view; call it once."""
        self.registry.register(_Views(view))


class _Views(Collector):
    def __init__(self, view: Callable[[], ManagerView]) -> None:
        self._view = view

    def collect(self) -> Iterable[Metric]:
        view = self._view()
        answering = f"{_PREFIX}_registry_answering"
        answers = view.redis_available or view.refusal != ""
        yield GaugeMetricFamily(
            answering,
            "1 while Redis answers, even if it refuses writes; 0 if it does not answer, or rejects "
            "the user or password.",
            value=answers,
        )
        yield _refusals(view.refusal)
        yield from _roles(view.services)
        leading = [(s.name, s.leading) for s in view.services if s.leading is not None]
        hubs = [(s.name, s.hub) for s in view.services if s.hub is not None]
        yield from _families(GaugeMetricFamily, _OF_LEADER, leading)
        yield _desired(leading)
        yield from _families(CounterMetricFamily, _OF_LEADER_TOTAL, leading)
        yield _states(
            "teachers",
            "Live teachers, as the leader sees them.",
            {n: v.teachers for n, v in leading},
        )
        yield from _families(GaugeMetricFamily, _OF_HUB, hubs)
        yield from _families(CounterMetricFamily, _OF_HUB_TOTAL, hubs)
        yield _states(
            "subscribed_students",
            "Students whose streams this manager holds.",
            {name: hub.students for name, hub in hubs},
        )


def _refusals(refusal: str) -> Metric:
    gauge = GaugeMetricFamily(
        f"{_PREFIX}_registry_refusing",
        "1 for the reason why Redis answers but refuses to work, else 0.",
        labels=["reason"],
    )
    for reason in REFUSALS:
        gauge.add_metric([reason], reason == refusal)
    return gauge


def _roles(services: Iterable[ServiceView]) -> Iterator[Metric]:
    leading = GaugeMetricFamily(
        f"{_PREFIX}_leading", "1 at the manager that leads the service.", labels=["service"]
    )
    known = GaugeMetricFamily(
        f"{_PREFIX}_leader_known", "1 while some manager leads the service.", labels=["service"]
    )
    for service in services:
        leading.add_metric([service.name], service.leading is not None)
        known.add_metric([service.name], service.leader != "" or service.leading is not None)
    yield leading
    yield known


def _families(
    family: type[GaugeMetricFamily | CounterMetricFamily],
    table: Mapping[str, tuple[str, Callable[[_V], float]]],
    views: Iterable[tuple[str, _V]],
) -> Iterator[Metric]:
    for name, (text, value) in table.items():
        metric = family(f"{_PREFIX}_{name}", text, labels=["service"])
        for service, view in views:
            metric.add_metric([service], value(view))
        yield metric


def _desired(views: Iterable[tuple[str, LeaderView]]) -> Metric:
    """Return the desired numbers; no series while undecided, as a 0 would end all teachers."""
    text = (
        "Teachers that the service should have, for autoscalers; no series until the number is "
        "decided."
    )
    gauge = GaugeMetricFamily(f"{_PREFIX}_desired_teachers", text, labels=["service"])
    for service, view in views:
        if view.desired is not None:
            gauge.add_metric([service], view.desired.count)
    return gauge


def _states(name: str, text: str, of: Mapping[str, Mapping[str, int]]) -> Metric:
    gauge = GaugeMetricFamily(f"{_PREFIX}_{name}", text, labels=["service", "state"])
    for service, states in of.items():
        for state, amount in states.items():
            gauge.add_metric([service, state], amount)
    return gauge
