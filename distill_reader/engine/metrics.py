"""The reader's Prometheus metrics, served by the engine: `edl_reader_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ..config import ReaderConfig

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .telling import View

LABELS: Final = ("service", "student")
#: Seconds; a request may take from some milliseconds to the minutes of its deadline.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

_GAUGES: Final[tuple[tuple[str, str, Callable[[View], float]], ...]] = (
    (
        "volume_bytes",
        "Bytes of batches that are labelled and not yet consumed.",
        lambda view: view.ledger.volume_bytes,
    ),
    ("want", "Teachers asked for.", lambda view: view.governor.decision.want),
    (
        "needed",
        "n = ceil(t_t / t_s); 0 while a time is not known.",
        lambda view: view.governor.decision.needed,
    ),
    ("requests_in_flight", "Requests under way at teachers.", lambda view: view.ledger.in_flight),
    (
        "label_bytes",
        "Bytes of labels that have come and wait for those of an earlier batch.",
        lambda view: view.labels.nbytes,
    ),
    (
        "teacher_seconds_per_sample",
        "t_t: the speeds of its teachers, averaged; 0 while it is not known.",
        lambda view: view.governor.figures.t_t_s or 0.0,
    ),
    (
        "student_seconds_per_sample",
        "t_s: the training step, unhindered; 0 while it is not known.",
        lambda view: view.governor.figures.t_s_s or 0.0,
    ),
    (
        "data_epoch",
        "Epochs of the data that were begun.",
        lambda view: view.contents.switch.data_epoch,
    ),
)

_COUNTERS: Final[tuple[tuple[str, str, Callable[[View], float]], ...]] = (
    (
        "batches_delivered",
        "Batches that the training loop has taken.",
        lambda view: view.governor.figures.batches_taken,
    ),
    (
        "samples_delivered",
        "Rows of those batches.",
        lambda view: view.governor.figures.samples_taken,
    ),
    ("resends", "Requests beyond the first of their batch.", lambda view: view.ledger.resends),
    (
        "discards",
        "Answers that came late, twice, or from a model that was exchanged.",
        lambda view: view.labels.discards,
    ),
    (
        "starved_seconds",
        "Time that the training loop waited for labels.",
        lambda view: view.governor.memory.starved_s,
    ),
    (
        "blocked_seconds",
        "Time that pulling was paused because the buffer was full.",
        lambda view: view.governor.memory.blocked_s,
    ),
    (
        "source_wait_seconds",
        "Time that the training loop waited for the source of batches.",
        lambda view: view.governor.memory.source_wait_s,
    ),
)


class Exporter:
    """Serves what `show` was last given, until `close`. Scrapes run in threads of their own.

    Raises:
        UsageError: `config.metrics_listen` is no address to serve metrics at.
        AddressInUse: another process listens there.
    """

    def __init__(self, config: ReaderConfig) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        from ...metrics import MetricsServer

        self._values = (config.service, config.student_id)
        self._bounds = {"ut": config.upper_bytes, "lt": config.lower_bytes}
        self._shown: list[Metric] = []
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "edl_reader_request_seconds",
            "Time from sending a batch to a teacher to having its labels.",
            LABELS,
            registry=self.registry,
            buckets=BUCKETS,
        ).labels(*self._values)
        self.registry.register(self)
        self._server = MetricsServer(config.metrics_listen, self.registry, insecure=config.insecure)

    @property
    def address(self) -> str:
        """Where it listens: "host:port"."""
        return self._server.address

    def answered(self, seconds: float) -> None:
        """A request took so long."""
        self._seconds.observe(seconds)

    def show(self, view: View, now: float) -> None:
        """What a scrape shows from now on; by the engine's thread, which owns what is shown."""
        self._shown = [*self._metrics(view, now)]

    def collect(self) -> list[Metric]:
        """For prometheus_client."""
        return self._shown

    def close(self) -> None:
        self._server.close()

    def _metrics(self, view: View, now: float) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        for name, what, value in _COUNTERS:
            counter = CounterMetricFamily(f"edl_reader_{name}", what, labels=LABELS)
            counter.add_metric(self._values, float(value(view)))
            yield counter
        for name, what, value in _GAUGES:
            yield self._gauge(name, what, {"": float(value(view))})
        rate = {"": view.governor.figures.samples_per_s(now)}
        yield self._gauge("samples_per_second", "Rows taken, over the last seconds.", rate)
        bounds = {name: float(bound) for name, bound in self._bounds.items()}
        what = "Thresholds of the volume: pulling pauses above ut and goes on below lt."
        yield self._gauge("threshold_bytes", what, bounds, "threshold")
        states = {name: float(count) for name, count in view.pool.states().items()}
        yield self._gauge("teachers", "Teachers of this reader, by state.", states, "state")
        doing = {name: float(name == view.governor.decision.state) for name in _STATES}
        yield self._gauge("state", "1 for what the reader is doing, else 0.", doing, "state")

    def _gauge(self, name: str, what: str, values: dict[str, float], label: str = "") -> Metric:
        from prometheus_client.core import GaugeMetricFamily

        labels = (*LABELS, label) if label else LABELS
        gauge = GaugeMetricFamily(f"edl_reader_{name}", what, labels=labels)
        for value, number in values.items():
            gauge.add_metric((*self._values, value) if label else self._values, number)
        return gauge


_STATES: Final = ("steady", "starved", "blocked", "source_wait")


def open_exporter(config: ReaderConfig) -> Exporter | None:
    """What serves the metrics; None where nobody asked for them."""
    return Exporter(config) if config.metrics_listen else None
