"""What a teacher shows to Prometheus: counted as it happens, or asked for at each scrape.

A counter of prometheus_client's has a lock of its own and takes as long as a tenth of a small
request. A request adds to several figures, so these are added to under one lock, by whoever holds
them.
"""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from ..errors import BadAnswer, EdlError
from .request import REASONS, reason_of


class Tally:
    """A count by the value of one label, or of none.

    Args:
        name: without "_total".
        text: what is counted.
        label: its name; empty: there is none.
        values: of the label, shown from the beginning.
    """

    __slots__ = ("_label", "_name", "_text", "counts")

    def __init__(self, name: str, text: str, label: str = "", values: Iterable[str] = ("",)):
        self._name, self._text, self._label = name, text, label
        self.counts = dict.fromkeys(values, 0)

    def add(self, count: int, value: str = "") -> None:
        self.counts[value] += count

    def family(self) -> Metric:
        labels = [self._label] if self._label else []
        family = CounterMetricFamily(self._name, self._text, labels=labels)
        for value, count in self.counts.items():
            family.add_metric([value] if self._label else [], count)
        return family


class Spread:
    """How values are spread: a histogram.

    Args:
        name: of the metric.
        text: what the values are.
        bounds: the greatest value of each bucket, in order.
    """

    __slots__ = ("_bounds", "_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Metric:
        labels = [*map(_shown, self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(labels, counts, strict=True)), self._sum)
        return family


def _shown(bound: float) -> str:
    """As prometheus_client spells a bound."""
    return str(float(bound))


#: Seconds: from a small batch on a GPU to a big one on an old CPU.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Samples of a batch.
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: answered: with labels. refused: the request's own doing. failed: try again, here or elsewhere.
#: bad_answer: labels that are not finite. abandoned: the caller has gone meanwhile.
_OUTCOMES: Final = ("answered", "refused", "failed", "bad_answer", "abandoned")


@dataclass(frozen=True, slots=True)
class TeacherView:
    """A teacher at one moment.

    Attributes:
        service: what students ask for.
        teacher_id: unique within the service.
        incarnation: of this start.
        version: of this package.
        content_id: of the model; empty while it loads.
        numerics_id: the same; teachers that share it answer alike, bit for bit.
        slots: requests that wait for the model or run in it at once.
        lanes: devices that they run on side by side.
        micro_batch: samples of one run; None while it is not known.
        in_flight: requests that are not answered yet.
        t_t_s: device time in seconds per sample of one lane; None while it is not known.
        loaded: the model takes requests.
        draining: about to leave.
        restarts: of predictor processes.
        micro_batch_reductions: times that a device ran out of memory, which halved it.
        heartbeat: whether the registry answered the last beat; None: it serves alone.
    """

    service: str
    teacher_id: str
    incarnation: int
    version: str
    content_id: str
    numerics_id: str
    slots: int
    lanes: int
    micro_batch: int | None
    in_flight: int
    t_t_s: float | None
    loaded: bool
    draining: bool
    restarts: int
    micro_batch_reductions: int
    heartbeat: bool | None


class RequestMeter:
    """One request, to be entered at its last byte; `answered` tells that it succeeded.

    Attributes:
        outcome: one of `_OUTCOMES`.
        received_bytes: of the request.
        sent_bytes: of its answer.
        began_s: when it was entered.
    """

    __slots__ = ("_metrics", "began_s", "outcome", "received_bytes", "sent_bytes")

    def __init__(self, metrics: TeacherMetrics, received_bytes: int) -> None:
        self._metrics = metrics
        self.outcome = "abandoned"
        self.received_bytes = received_bytes
        self.sent_bytes = 0
        self.began_s = 0.0

    def answered(self, size_bytes: int) -> None:
        self.outcome, self.sent_bytes = "answered", size_bytes

    def __enter__(self) -> Self:
        self.began_s = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, EdlError):
            self.outcome = _outcome_of(error)
        self._metrics.over(self, error)


class TeacherMetrics:
    """The metrics of one teacher, in a registry of their own; any thread may use them."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._lock = threading.Lock()  # of all that each request adds to
        self._requests = Tally(
            "edl_teacher_requests", "Batches that came, by what became of them.",
            "outcome", _OUTCOMES,
        )  # fmt: skip
        self._samples = Tally("edl_teacher_samples", "Samples that were labelled.")
        self._received = Tally("edl_teacher_received_bytes", "Requests, in bytes.")
        self._sent = Tally("edl_teacher_sent_bytes", "Answers, in bytes.")
        self._device_s = Spread(
            "edl_teacher_device_seconds", "Time in the model for one request.", _BUCKETS
        )
        self._request_s = Spread(
            "edl_teacher_request_seconds", "Time from a request's last byte to its answer.",
            _BUCKETS,
        )  # fmt: skip
        self._queue_s = Spread(
            "edl_teacher_queue_seconds", "Time that a request waited for its turn at a device.",
            _BUCKETS,
        )  # fmt: skip
        self._batch_samples = Spread(
            "edl_teacher_batch_samples", "Samples handed to a device in one go.", _SIZES
        )
        r.register(_Figures(self._families))
        self._refused = Counter(
            "edl_teacher_refused", "Calls of any method that were refused, by why.", ["reason"],
            registry=r,
        )  # fmt: skip
        self._expired = Counter(
            "edl_teacher_expired", "Requests that were not computed: nobody waited any more.",
            registry=r,
        )  # fmt: skip
        self._output_errors = Counter(
            "edl_teacher_output_errors",
            "Answers that were refused because this output of the model is no label.", ["output"],
            registry=r,
        )  # fmt: skip
        for reason in REASONS:
            self._refused.labels(reason)

    def watch(self, view: Callable[[], TeacherView]) -> None:
        """Show, besides, what `view` says at each scrape; once."""
        self.registry.register(_Views(view))

    def serves(self, outputs: Iterable[str]) -> None:
        """The model is known, and so what it may go wrong with."""
        for output in outputs:
            self._output_errors.labels(output)

    def refused(self, reason: str) -> None:
        """A call of any method was refused; `reason` is one of `refusals.REASONS`."""
        self._refused.labels(reason).inc()

    def labelled(self, samples: int, device_s: float) -> None:
        """One batch went through the model."""
        with self._lock:
            self._samples.add(samples)
            self._device_s.add(device_s)

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        """Requests that waited for so long go to a device together, as `samples`."""
        with self._lock:
            self._batch_samples.add(samples)
            for seconds in queue_s:
                self._queue_s.add(seconds)

    def expired(self) -> None:
        """A request was not computed: its deadline was over, or its caller had gone."""
        self._expired.inc()

    def request(self, size_bytes: int) -> RequestMeter:
        """Around one request of `size_bytes`, from its last byte to its answer."""
        return RequestMeter(self, size_bytes)

    def over(self, request: RequestMeter, error: BaseException | None) -> None:
        """A request has come to its end, by this error."""
        took_s = time.perf_counter() - request.began_s
        with self._lock:
            self._request_s.add(took_s)
            self._requests.add(1, request.outcome)
            self._received.add(request.received_bytes)
            self._sent.add(request.sent_bytes)
        if isinstance(error, BadAnswer) and error.output:
            self._output_errors.labels(error.output).inc()

    def _families(self) -> list[Metric]:
        with self._lock:
            figures = (
                self._requests, self._samples, self._received, self._sent,
                self._device_s, self._request_s, self._queue_s, self._batch_samples,
            )  # fmt: skip
            return [figure.family() for figure in figures]


def _outcome_of(error: EdlError) -> str:
    if isinstance(error, BadAnswer):
        return "bad_answer"
    return "refused" if reason_of(error) else "failed"


class _Figures(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()


class _Views(Collector):
    def __init__(self, view: Callable[[], TeacherView]) -> None:
        self._view = view

    def describe(self) -> Iterable[Metric]:
        return ()  # registering does not ask a teacher that is not complete yet

    def collect(self) -> Iterator[Metric]:
        now = self._view()
        who = InfoMetricFamily("edl_teacher", "Which teacher this is.")
        names = {"service": now.service, "teacher_id": now.teacher_id, "version": now.version}
        ids = {
            "incarnation": str(now.incarnation),
            "content_id": now.content_id,
            "numerics_id": now.numerics_id,
        }
        who.add_metric((), {**names, **ids})
        yield who
        yield CounterMetricFamily(
            "edl_teacher_predictor_restarts", "Starts of the model after a crash.", now.restarts
        )
        yield CounterMetricFamily(
            "edl_teacher_micro_batch_reductions",
            "Times that a device ran out of memory, which halved its micro-batch.",
            now.micro_batch_reductions,
        )
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("slots", "Requests that wait for the model or run in it at once.", now.slots),
            ("lanes", "Devices that requests run on side by side.", now.lanes),
            ("micro_batch_samples", "Samples of one run of the model.", now.micro_batch),
            ("in_flight_requests", "Requests that are not answered yet.", now.in_flight),
            ("sample_device_seconds", "t_t: device time of one sample, the median.", now.t_t_s),
            ("model_loaded", "1: the model takes requests.", now.loaded),
            ("draining", "1: it takes leave.", now.draining),
            ("heartbeat_answering", "1: the registry answered the last beat.", now.heartbeat),
        )
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"edl_teacher_{name}", text, float(value))
