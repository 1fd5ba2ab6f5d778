"""The reader's Prometheus metrics, served by the engine: `edl_reader_*`."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...proto.security.certificates import export_expiry
from ..config import ReaderConfig
from .metric_table import FAMILIES, Family, Seen
from .outcomes import Done
from .teacher_times import TeacherTimes

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .handing import Handing
    from .member import Member

LABELS: Final = ("service", "student")
#: Seconds; a request may take from some milliseconds to the minutes of its deadline.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

#: Of the whole reader, under all its services: "a+b".
_PARTLY: Final = "Batches whose labels lack those of a service of the ensemble."
_UNLABELLED: Final = "Batches that went without any soft label, as there was no teacher."


class Exporter:
    """Serves what `show` was last given, until `close`. Scrapes run in threads of their own.

    Raises:
        UsageError: `config.metrics_listen` is no address to serve metrics at.
        AddressInUse: another process listens there.
    """

    def __init__(self, config: ReaderConfig) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        from ...metrics import MetricsServer

        self._config = config
        self._times: dict[Member, TeacherTimes] = defaultdict(TeacherTimes)
        self._shown: list[Metric] = []
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "edl_reader_request_seconds",
            "Time from asking a teacher to having its labels.",
            LABELS,
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.registry.register(self)
        export_expiry(self.registry, config.security)
        self._server = MetricsServer(config.metrics_listen, self.registry, insecure=config.insecure)

    @property
    def address(self) -> str:
        """Where it listens: "host:port"."""
        return self._server.address

    def answered(self, member: Member, teacher: str, done: Done) -> None:
        """A teacher has sent labels."""
        self._seconds.labels(*_of(member.config)).observe(done.seconds)
        times = self._times[member]
        times.answered(teacher, done.job.samples, done.seconds, time.monotonic())

    def show(self, members: Sequence[Member], handing: Handing, now: float) -> None:
        """What a scrape shows from now on; by the engine's thread, which owns what is shown."""
        config, mixture = self._config, handing.mixture
        seen = []
        for member in members:
            self._times[member].keep(member.ledger.teachers)
            weight = None if mixture is None else mixture.shares.get(member.config.service, 0.0)
            bounds = config.upper_bytes, config.lower_bytes
            seen.append(Seen(member, self._times[member], weight, *bounds, now))
        self._shown = [
            *(_metric(family, seen) for family in FAMILIES),
            self._whole("partly_labelled_batches", _PARTLY, handing.partial),
            self._whole("unlabelled_batches", _UNLABELLED, handing.unlabelled),
        ]

    def collect(self) -> list[Metric]:
        """For prometheus_client."""
        return self._shown

    def close(self) -> None:
        self._server.close()

    def _whole(self, name: str, what: str, value: float) -> Metric:
        from prometheus_client.core import CounterMetricFamily

        counter = CounterMetricFamily(f"edl_reader_{name}", what, labels=LABELS)
        counter.add_metric(_of(self._config), value)
        return counter


def _metric(family: Family, members: Sequence[Seen]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(f"edl_reader_{family.name}", family.what, labels=(*LABELS, *family.labels))
    for seen in members:
        for labels, value in family.samples(seen):
            metric.add_metric((*_of(seen.member.config), *labels), float(value))
    return metric


def _of(config: ReaderConfig) -> tuple[str, str]:
    """The values of `LABELS`."""
    return config.service, config.student_id


def open_exporter(config: ReaderConfig) -> Exporter | None:
    """What serves the metrics; None where nobody asked for them."""
    return Exporter(config) if config.metrics_listen else None
