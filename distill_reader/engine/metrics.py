"""The reader's metrics, and their export to Prometheus."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, get_args

from ...proto import coordinator_pb2 as pb
from ...proto.security.certificates import export_expiry
from ...scheduler.circuit_breakers import IN_WORDS
from ...scheduler.flow import FlowState
from ...scheduler.rates import RecentQuantile, RecentRate
from ..config import ReaderConfig
from .teacher_requests import RequestDone

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from .batch_delivery import BatchDelivery
    from .ensemble_member import EnsembleMember

#: Quantiles are computed from this many latest responses.
QUANTILE_RESPONSES: Final = 256
#: Rates are computed over this many latest seconds.
HORIZON_S: Final = 5.0
QUANTILES: Final = (0.5, 0.95, 0.99)


class TeacherTimes:
    """Response times of the teachers of one member. For the engine's thread."""

    def __init__(self) -> None:
        self._rates: dict[str, RecentRate] = {}
        self._quantiles: dict[str, dict[float, RecentQuantile]] = {}

    def answered(self, teacher: str, samples: int, seconds: float, now: float) -> None:
        """Record that a teacher labelled `samples` rows, `seconds` after the request was sent."""
        if teacher not in self._rates:
            self._rates[teacher] = RecentRate(HORIZON_S)
            self._quantiles[teacher] = {q: RecentQuantile(QUANTILE_RESPONSES, q) for q in QUANTILES}
        self._rates[teacher].add(samples, now)
        for quantile in self._quantiles[teacher].values():
            quantile.add(seconds)

    def samples_per_s(self, teacher: str, now: float) -> float:
        """Return the rows per second, over the last `HORIZON_S`; 0 without a response."""
        return self._rates[teacher].value(now) if teacher in self._rates else 0.0

    def quantile_s(self, teacher: str, q: float) -> float | None:
        """Return the `q` quantile of the teacher's latest response times; None: no response."""
        return self._quantiles[teacher][q].value if teacher in self._quantiles else None

    def keep(self, teachers: Collection[str]) -> None:
        """Forget all teachers but these."""
        for teacher in self._rates.keys() - set(teachers):
            del self._rates[teacher], self._quantiles[teacher]


Kind = Literal["counter", "gauge"]
#: Values of the labels other than `service` and `student`, and the value of the metric.
Sample = tuple[tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class MemberSnapshot:
    """The inputs of the metrics of one member.

    Attributes:
        member: the member.
        report: its report to the coordinator.
        times: recent response times of its teachers.
        without_labels: number of batches delivered without its labels.
        weight: weight of its labels in the latest averaged batch; None: no batch was averaged.
        now: time of the engine's clock.
    """

    member: EnsembleMember
    report: pb.StudentReport
    times: TeacherTimes
    without_labels: int
    weight: float | None
    now: float


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric, `edl_reader_NAME`.

    Attributes:
        kind: the type; a "counter" gets the suffix `_total`.
        name: name without prefix and suffix.
        what: help text.
        samples: returns the values for a member.
        labels: names of the labels other than `service` and `student`.
    """

    kind: Kind
    name: str
    what: str
    samples: Callable[[MemberSnapshot], Iterable[Sample]]
    labels: tuple[str, ...] = ()


def _counter(
    name: str, what: str, value: Callable[[EnsembleMember], float] | None = None
) -> MetricFamily:
    """Define a counter; without `value` it is the field `name` of the student's report."""
    return MetricFamily("counter", name, what, _single(name, value))


def _gauge(
    name: str, what: str, value: Callable[[EnsembleMember], float] | None = None
) -> MetricFamily:
    """Define a gauge; without `value` it is the field `name` of the student's report."""
    return MetricFamily("gauge", name, what, _single(name, value))


def _single(
    name: str, value: Callable[[EnsembleMember], float] | None
) -> Callable[[MemberSnapshot], Iterable[Sample]]:
    return lambda snapshot: [
        ((), value(snapshot.member) if value else getattr(snapshot.report, name))
    ]


def _stored(name: str, what: str) -> MetricFamily:
    """Define a counter of `StoreStats` that exists only if a store is configured."""

    def samples(snapshot: MemberSnapshot) -> Iterator[Sample]:
        if snapshot.member.label_cache is not None:
            yield (), getattr(snapshot.member.label_cache.stats, name)

    return MetricFamily("counter", f"store_{name}", what, samples)


def _by_teacher(
    name: str, what: str, value: Callable[[MemberSnapshot, str], float]
) -> MetricFamily:
    """Define a gauge for each current teacher; its series ends when the teacher leaves."""
    return MetricFamily(
        "gauge",
        f"teacher_{name}",
        what,
        lambda snapshot: [
            ((name,), value(snapshot, name)) for name in snapshot.member.ledger.teachers
        ],
        ("teacher",),
    )


def _store_bytes(snapshot: MemberSnapshot) -> Iterator[Sample]:
    if snapshot.member.label_cache is not None:
        yield (), snapshot.member.label_cache.disk_bytes


def _weight(snapshot: MemberSnapshot) -> Iterator[Sample]:
    if snapshot.weight is not None:
        yield (), snapshot.weight


def _ejections(snapshot: MemberSnapshot) -> Iterator[Sample]:
    counted = snapshot.member.core.teachers.breakers.ejections
    return (((cause,), counted[cause]) for cause in IN_WORDS)


def _states(snapshot: MemberSnapshot) -> Iterator[Sample]:
    state = snapshot.member.core.decision.state
    return (((name,), name == state) for name in get_args(FlowState))


def _turnarounds(snapshot: MemberSnapshot) -> Iterator[Sample]:
    for teacher in snapshot.member.ledger.teachers:
        for q in QUANTILES:
            if (value := snapshot.times.quantile_s(teacher, q)) is not None:
                yield (teacher, f"{q:g}"), value


#: The stream and its waits.
_STREAM: Final = (
    _counter(
        "batches_delivered",
        "Batches that the training loop has taken, plus answered calls of TeacherPool.",
    ),
    _counter(
        "samples_delivered",
        "Samples of the delivered batches and of answered calls of TeacherPool.",
    ),
    _gauge("samples_per_second", "Samples delivered per second, over the last seconds."),
    _counter(
        "starved_seconds",
        "Time that the training loop, or calls of `TeacherPool`, waited for labels.",
    ),
    _counter(
        "blocked_seconds",
        "Time that pulling was paused because the buffer was full of labels, which is normal.",
    ),
    _counter(
        "source_wait_seconds", "Time that the training loop waited for the source of batches."
    ),
    MetricFamily(
        "gauge", "state", "1 for the current state of the reader, else 0.", _states, ("state",)
    ),
    _gauge("volume_bytes", "Bytes of batches that are labelled and not yet consumed."),
    MetricFamily(
        "gauge",
        "threshold_bytes",
        "Pulling pauses above `upper_bytes` (ut) and resumes below `lower_bytes` (lt).",
        lambda snapshot: [
            (("ut",), snapshot.report.upper_bytes),
            (("lt",), snapshot.report.lower_bytes),
        ],
        ("threshold",),
    ),
    _gauge(
        "label_bytes",
        "Bytes of labels that have arrived, but wait for other labels of their batch or for an "
        "earlier batch.",
        lambda m: m.labels.nbytes,
    ),
    _gauge("data_epoch", "Epochs of the data that have begun."),
)

#: Batches that were not labelled in the normal way.
_BATCHES: Final = (
    MetricFamily(
        "counter",
        "forgone_batches",
        "Batches without labels of the service, because it had no teacher.",
        lambda snapshot: [((), snapshot.without_labels)],
    ),
    _counter(
        "poison_batches",
        "Batches that were given up, because three teachers refused the batch or crashed on it. "
        "With one or two teachers, each of them must have refused it once or crashed on it three "
        "times. Refusals by a teacher that has labelled nothing do not count.",
        lambda m: m.poisoned,
    ),
    _counter(
        "relabelled_batches",
        "Batches whose labels were discarded, because another model or a faulty teacher made them.",
        lambda m: m.relabelled,
    ),
    MetricFamily(
        "gauge",
        "ensemble_weight",
        "Weight of the labels of the service in the latest labelled batch; 0: they are missing.",
        _weight,
    ),
)

#: Requests and teachers in total.
_TEACHERS: Final = (
    _gauge("want", "Teachers that the reader asks for."),
    _gauge("needed", "n = ceil(t_t / t_s); 0 while a time is unknown."),
    _gauge(
        "teacher_seconds_per_sample",
        "t_t: harmonic mean of the teachers' medians; 0 while unknown.",
        lambda m: m.core.stats.t_t_s or 0.0,
    ),
    _gauge(
        "student_seconds_per_sample",
        "t_s: the student's seconds per sample, calls of TeacherPool included; 0 while unknown.",
        lambda m: m.core.stats.t_s_s or 0.0,
    ),
    MetricFamily(
        "gauge",
        "teachers",
        "Teachers of this reader, by state.",
        lambda snapshot: [
            ((state,), n) for state, n in snapshot.member.core.teachers.links.states().items()
        ],
        ("state",),
    ),
    _gauge(
        "stragglers",
        "Teachers that are much slower than the others, or do not answer.",
        lambda m: len(m.core.teachers.lateness.stragglers),
    ),
    _gauge("requests_in_flight", "Requests in flight.", lambda m: m.ledger.in_flight),
    _counter(
        "resends", "Requests with rows that had been sent before; hedges and canaries do not count."
    ),
    _counter(
        "hedges", "Requests that were also sent to a second teacher because the first was late."
    ),
    _counter(
        "canaries",
        "Ordinary requests that were also sent to a second teacher to compare the labels.",
        lambda m: m.ledger.named_copies,
    ),
    _counter(
        "discards",
        "Answers that were dropped: late, duplicate, or from a replaced model.",
        lambda m: m.labels.discarded_responses,
    ),
    MetricFamily(
        "counter",
        "ejections",
        "Times that a circuit breaker ejected a teacher.",
        _ejections,
        ("cause",),
    ),
    _counter(
        "readmissions",
        "Times that an ejected teacher was readmitted.",
        lambda m: m.core.teachers.breakers.readmissions,
    ),
)

#: Each teacher.
_EACH_TEACHER: Final = (
    _by_teacher(
        "samples_per_second",
        "Samples that the teacher labels per second, over the last seconds.",
        lambda snapshot, teacher: snapshot.times.samples_per_s(teacher, snapshot.now),
    ),
    _by_teacher(
        "requests_in_flight",
        "Requests in flight at the teacher.",
        lambda snapshot, teacher: len(snapshot.member.ledger.in_flight_at(teacher)),
    ),
    _by_teacher(
        "window",
        "Requests that the teacher may have in flight.",
        lambda snapshot, teacher: snapshot.member.core.pacing.window(teacher),
    ),
    MetricFamily(
        "gauge",
        "teacher_turnaround_seconds",
        "Time from request to labels of the teacher: quantiles of the latest answers.",
        _turnarounds,
        ("teacher", "quantile"),
    ),
)

#: The label store.
_STORE: Final = (
    _stored("hits", "Samples found in the store."),
    _stored("misses", "Samples not found in the store."),
    _stored("written", "Samples stored."),
    _stored("evicted", "Samples that were evicted from the store."),
    _stored("damaged", "Samples in the store whose labels failed their checksum."),
    _stored("dropped", "Samples whose labels could not be stored."),
    MetricFamily("gauge", "store_bytes", "Size of the label store on disk.", _store_bytes),
)

FAMILIES: Final = (*_STREAM, *_BATCHES, *_TEACHERS, *_EACH_TEACHER, *_STORE)


LABEL_NAMES: Final = ("service", "student")
#: Buckets in seconds: requests take from some milliseconds to minutes.
BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0)

#: How calls of `TeacherPool` end.
OUTCOMES: Final = ("answered", "failed", "late", "cancelled")

#: Help texts of metrics of the whole reader; of an ensemble, with the label service="a+b".
_CALLS: Final = "Calls of `TeacherPool` by outcome: answered, failed, late, cancelled."
_CALLS_WAITING: Final = "Calls of `TeacherPool` that wait for labels."
_PARTLY: Final = "Batches with labels of only some services of the ensemble."
_UNLABELLED: Final = "Batches without any soft label, because there was no teacher."


class Exporter:
    """Serves metrics until `close`. The engine's thread updates them by `show`.

    Attributes:
        registry: registry of prometheus_client.

    Raises:
        UsageError: `config.metrics_listen` cannot be used as an address.
        AddressInUse: another process listens there.
    """

    def __init__(self, config: ReaderConfig) -> None:
        from prometheus_client import CollectorRegistry, Histogram

        from ...runtime.metrics import MetricsServer

        self._config = config
        self._times: dict[EnsembleMember, TeacherTimes] = defaultdict(TeacherTimes)
        self._shown: list[Metric] = []
        self.registry = CollectorRegistry()
        self._seconds = Histogram(
            "edl_reader_request_seconds",
            "Time from sending a request to receiving its labels.",
            LABEL_NAMES,
            registry=self.registry,
            buckets=BUCKETS,
        )
        self.registry.register(self)
        export_expiry(self.registry, config.security)
        self._server = MetricsServer(config.metrics_listen, self.registry, insecure=config.insecure)

    @property
    def address(self) -> str:
        """The address that the server listens on: "host:port"."""
        return self._server.address

    def answered(self, member: EnsembleMember, teacher: str, done: RequestDone) -> None:
        """Record a response of a teacher."""
        self._seconds.labels(*_label_values(member.config)).observe(done.seconds)
        times = self._times[member]
        times.answered(teacher, done.request.samples, done.seconds, time.monotonic())

    def show(
        self,
        members: Sequence[EnsembleMember],
        reports: Sequence[pb.StudentReport],
        batch_delivery: BatchDelivery,
        calls: Mapping[str, int],
        now: float,
    ) -> None:
        """Compute the metrics that scrapes return from now on; in the engine's thread."""
        config, mixture, delivery = self._config, batch_delivery.mixture, batch_delivery.delivery
        of_reader = partial(_metric_of_reader, config)
        snapshots = []
        for member, report in zip(members, reports, strict=True):
            times, service = self._times[member], member.config.service
            times.keep(member.ledger.teachers)
            without_labels = delivery.unlabelled_by_service[service]
            weight = None if mixture is None else mixture.shares.get(service, 0.0)
            snapshots.append(MemberSnapshot(member, report, times, without_labels, weight, now))
        ended_calls = [((outcome,), calls[outcome]) for outcome in OUTCOMES]
        self._shown = [
            *(_metric(family, snapshots) for family in FAMILIES),
            of_reader("counter", "partly_labelled_batches", _PARTLY, [((), delivery.partial)]),
            of_reader("counter", "unlabelled_batches", _UNLABELLED, [((), delivery.unlabelled)]),
            of_reader("counter", "calls", _CALLS, ended_calls, "outcome"),
            of_reader("gauge", "calls_waiting", _CALLS_WAITING, [((), members[0].core.calls)]),
        ]

    def collect(self) -> list[Metric]:
        """Return the metrics; prometheus_client calls this in another thread."""
        return self._shown

    def close(self) -> None:
        self._server.close()


def _metric(family: MetricFamily, snapshots: Sequence[MemberSnapshot]) -> Metric:
    samples = ((snapshot.member.config, family.samples(snapshot)) for snapshot in snapshots)
    return _make_metric(family.kind, family.name, family.what, family.labels, samples)


def _metric_of_reader(
    config: ReaderConfig, kind: Kind, name: str, what: str, samples: Iterable[Sample], *labels: str
) -> Metric:
    return _make_metric(kind, name, what, labels, [(config, samples)])


def _make_metric(
    kind: Kind,
    name: str,
    what: str,
    label_names: Sequence[str],
    samples: Iterable[tuple[ReaderConfig, Iterable[Sample]]],
) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    make = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    metric = make(f"edl_reader_{name}", what, labels=(*LABEL_NAMES, *label_names))
    for config, samples_of_member in samples:
        for labels, value in samples_of_member:
            metric.add_metric((*_label_values(config), *labels), float(value))
    return metric


def _label_values(config: ReaderConfig) -> tuple[str, str]:
    """Return the values of the labels `LABEL_NAMES`."""
    return config.service, config.student_id
