"""What a teacher shows to Prometheus: counted as it happens, or asked for at each scrape."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import BadAnswer, EdlError
from .refusals import REASONS, reason_of

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
    heartbeat: bool | None


class RequestMeter:
    """One request as it is measured; `answered` tells that it succeeded."""

    __slots__ = ("outcome", "sent_bytes")

    def __init__(self) -> None:
        self.outcome = "abandoned"
        self.sent_bytes = 0

    def answered(self, size_bytes: int) -> None:
        self.outcome, self.sent_bytes = "answered", size_bytes


class TeacherMetrics:
    """The metrics of one teacher, in a registry of their own; any thread may use them."""

    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._requests = Counter(
            "edl_teacher_requests", "Batches that came, by what became of them.", ["outcome"],
            registry=r,
        )  # fmt: skip
        self._refused = Counter(
            "edl_teacher_refused", "Calls of any method that were refused, by why.", ["reason"],
            registry=r,
        )  # fmt: skip
        self._samples = Counter("edl_teacher_samples", "Samples that were labelled.", registry=r)
        self._received = Counter("edl_teacher_received_bytes", "Requests, in bytes.", registry=r)
        self._sent = Counter("edl_teacher_sent_bytes", "Answers, in bytes.", registry=r)
        self._device_s = Histogram(
            "edl_teacher_device_seconds", "Time in the model for one request.",
            buckets=_BUCKETS, registry=r,
        )  # fmt: skip
        self._request_s = Histogram(
            "edl_teacher_request_seconds", "Time from a request's last byte to its answer.",
            buckets=_BUCKETS, registry=r,
        )  # fmt: skip
        self._queue_s = Histogram(
            "edl_teacher_queue_seconds", "Time that a request waited for its turn at a device.",
            buckets=_BUCKETS, registry=r,
        )  # fmt: skip
        self._batch_samples = Histogram(
            "edl_teacher_batch_samples", "Samples handed to a device in one go.",
            buckets=_SIZES, registry=r,
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
        for outcome in _OUTCOMES:
            self._requests.labels(outcome)
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
        self._samples.inc(samples)
        self._device_s.observe(device_s)

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        """Requests that waited for so long go to a device together, as `samples`."""
        self._batch_samples.observe(samples)
        for seconds in queue_s:
            self._queue_s.observe(seconds)

    def expired(self) -> None:
        """A request was not computed: its deadline was over, or its caller had gone."""
        self._expired.inc()

    @contextmanager
    def request(self, size_bytes: int) -> Iterator[RequestMeter]:
        """Around one request of `size_bytes`, from its last byte to its answer."""
        self._received.inc(size_bytes)
        start, meter = time.perf_counter(), RequestMeter()
        try:
            yield meter
        except EdlError as error:
            meter.outcome = _outcome_of(error)
            if isinstance(error, BadAnswer) and error.output:
                self._output_errors.labels(error.output).inc()
            raise
        finally:
            self._request_s.observe(time.perf_counter() - start)
            self._requests.labels(meter.outcome).inc()
            self._sent.inc(meter.sent_bytes)


def _outcome_of(error: EdlError) -> str:
    if isinstance(error, BadAnswer):
        return "bad_answer"
    return "refused" if reason_of(error) else "failed"


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
