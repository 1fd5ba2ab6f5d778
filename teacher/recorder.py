"""Records each request once, for metrics, statistics, the registry and the access log.

Prometheus scrapes the metrics. The statistics are those of the Open Inference Protocol. The
registry in Redis gets the requests in flight and the samples per second. The access log has a debug
record for each call over any protocol, without credentials and tensors. Without debug logging, the
access log adds only one check of the log level to each call.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric

from ..proto import inference_pb2 as pb
from ..proto.status import to_status
from ..runtime.errors import AccessError, BadAnswer, EdlError, RetryableError
from ..runtime.logs import Fields
from ..scheduler.rates import RecentRate
from .identity import TeacherView
from .request import REASONS, reason_of

log = logging.getLogger(__name__)
access_log: Final = logging.getLogger("edl.teacher.access_log")

#: The longest text from a caller in the log, in characters.
_MAX_TEXT: Final = 200
#: Bounds in seconds, from a small batch on a GPU to a big batch on an old CPU.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Bounds in samples of a batch.
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: answered: with labels. refused: the request is wrong, not allowed, or there is no room for it.
#: failed: it may be retried here or elsewhere. bad_answer: labels are not finite or break the
#: spec. abandoned: the caller has gone.
_OUTCOMES: Final = ("answered", "refused", "failed", "bad_answer", "abandoned")
#: Number of different batch sizes that get statistics of their own. It is limited, so that callers
#: cannot fill the memory; further sizes count in the totals only.
_MAX_SIZES: Final = 256


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call, as a context manager: entered when it arrives, left when it is answered.

    Attributes:
        recorder: the recorder of the teacher.
        protocol: "grpc", "http", "tcp" or "local".
        method: name of the method.
        peer: address of the caller; None if the log is off.
        model: as the call names it.
        request_id: the caller's id of a request for labels.
        received_bytes: bytes of its request, so far.
        sent_bytes: bytes of its answer.
        status: the status to log; None to derive it from the exception in the `with` block.
    """

    recorder: Recorder
    protocol: str
    method: str
    peer: str | None
    model: str | None = None
    request_id: str | None = None
    received_bytes: int = 0
    sent_bytes: int = 0
    status: str | int | None = None
    _timing: RequestTiming | None = None
    _began_s: float = field(default_factory=time.perf_counter)

    def start_timing(self, nbytes: int) -> RequestTiming:
        """Return the timing of a request for labels that has arrived with `nbytes`.

        Its clock starts when the timing is entered, so enter it at once.
        """
        self.received_bytes = nbytes
        self._timing = RequestTiming(self)
        return self._timing

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        timing, self._timing = self._timing, None  # breaks a reference cycle
        if self.peer is None:
            return
        labelled = timing if timing is not None and timing.samples else None
        fields = {
            "protocol": self.protocol,
            "method": self.method[:_MAX_TEXT],
            "model": None if self.model is None else self.model[:_MAX_TEXT],
            "request": None if self.request_id is None else self.request_id[:_MAX_TEXT],
            "peer": self.peer,
            "status": _status_of(error) if self.status is None else self.status,
            "samples": labelled.samples if labelled else None,
            "queue_s": _seconds(labelled.queue_ns) if labelled else None,
            "compute_s": _seconds(labelled.infer_ns) if labelled else None,
            "received_bytes": self.received_bytes,
            "sent_bytes": self.sent_bytes,
            "duration_s": round(time.perf_counter() - self._began_s, 6),
        }
        access_log.debug(Fields(fields))


@dataclass(slots=True, eq=False)
class RequestTiming:
    """One request for labels, from its last byte to its answer; an exception marks it as failed.

    An unexpected exception is logged and becomes RetryableError, for all protocols alike.

    Attributes:
        call: the call that carries it.
        samples: number of samples; 0 until it is labelled.
        device_seconds: time in the model, as the predictor measured it.
        input_ns: time to read the inputs.
        queue_ns: time in the queue.
        infer_ns: time in the model.
        output_ns: time to encode the answer.
        total_ns: `input_ns + queue_ns + infer_ns + output_ns`.
    """

    call: CallRecord
    samples: int = 0
    device_seconds: float = 0.0
    input_ns: int = 0
    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    total_ns: int = 0
    _at_ns: int = 0  # the end of the latest phase

    def __enter__(self) -> Self:
        recorder = self.call.recorder
        self._at_ns = recorder.clock_ns()
        recorder.request_received()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self.output_ns = self.call.recorder.clock_ns() - self._at_ns
        self.total_ns = self.input_ns + self.queue_ns + self.infer_ns + self.output_ns
        if isinstance(error, Exception) and not isinstance(error, EdlError):
            log.error("a request could not be answered", exc_info=error)
            retryable = RetryableError(f"{type(error).__name__}: {error}")
            self.call.recorder.request_finished(self, retryable)
            raise retryable from error
        self.call.recorder.request_finished(self, error)

    def inputs_read(self) -> None:
        """Record that the inputs have been read and are valid."""
        now_ns = self.call.recorder.clock_ns()
        self.input_ns, self._at_ns = now_ns - self._at_ns, now_ns

    def labels_ready(self, samples: int, device_seconds: float) -> None:
        """Record that the model has answered; it ran for `device_seconds` since `inputs_read`."""
        now_ns = self.call.recorder.clock_ns()
        waited_ns, self._at_ns = now_ns - self._at_ns, now_ns
        self.samples = samples
        self.infer_ns = min(round(device_seconds * 1e9), waited_ns)
        self.queue_ns = waited_ns - self.infer_ns
        self.device_seconds = device_seconds


class _TimeTotals:
    """Summed times of requests."""

    PHASES: Final = ("total_ns", "queue_ns", "input_ns", "infer_ns", "output_ns")

    def __init__(self) -> None:
        self.count = 0
        self._ns = dict.fromkeys(self.PHASES, 0)

    def add(self, timing: RequestTiming) -> None:
        self.count += 1
        for phase in self.PHASES:
            self._ns[phase] += getattr(timing, phase)

    def duration(self, phase: str) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=self.count, ns=self._ns[f"{phase}_ns"])

    def compute(self) -> dict[str, pb.StatisticDuration]:
        return {f"compute_{phase}": self.duration(phase) for phase in ("input", "infer", "output")}


@dataclass(eq=False)
class ScrapedMetrics:
    """Metrics that are computed at each scrape, not when they are registered."""

    collect: Callable[[], Iterable[Metric]]


class Recorder:
    """Records the requests of one teacher. Any thread may use it.

    Args:
        clock_ns: returns nanoseconds of a monotonic clock.
        unix_s: returns seconds since 1970.

    Attributes:
        metric_registry: Prometheus's registry of the teacher's metrics.
        in_flight: requests for labels that have arrived and are not answered.
        labelled_requests: requests that the model has labelled, whatever their outcome.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        self.clock_ns = clock_ns
        self._unix_s = unix_s
        # Guards the fields up to `_last_answer_ms`; Prometheus guards its metrics itself.
        self._changed = threading.Condition(threading.Lock())
        self.in_flight = self.labelled_requests = 0
        self._waiting = 0  # threads in `wait_quiet`
        self._last_ns = clock_ns()
        self._rate = RecentRate()
        self._success, self._failed = _TimeTotals(), _TimeTotals()
        self._by_size: dict[int, _TimeTotals] = {}
        self._answered_samples = self._last_answer_ms = 0  # Unix ms of the last answer
        self.metric_registry = r = CollectorRegistry()
        counter, histogram = partial(Counter, registry=r), partial(Histogram, registry=r)
        requests = counter(
            "edl_teacher_requests",
            "Requests by outcome: answered, refused, failed, bad_answer, abandoned.",
            ["outcome"],
        )
        self._outcomes = {outcome: requests.labels(outcome) for outcome in _OUTCOMES}
        self._samples = counter("edl_teacher_samples", "Labelled samples.")
        self._received = counter("edl_teacher_received_bytes", "Bytes of requests.")
        self._sent = counter("edl_teacher_sent_bytes", "Bytes of answers.")
        self._device_s = histogram(
            "edl_teacher_device_seconds", "Time in the model for one request.", buckets=_BUCKETS
        )
        self._request_s = histogram(
            "edl_teacher_request_seconds", "Time from a request's last byte to its answer.",
            buckets=_BUCKETS,
        )  # fmt: skip
        self._queue_s = histogram(
            "edl_teacher_queue_seconds",
            "Time from the arrival of a request until a device takes it.",
            buckets=_BUCKETS,
        )
        self._batch_samples = histogram(
            "edl_teacher_batch_samples",
            "Samples of all requests that are merged and go to a device together.",
            buckets=_SIZES,
        )
        self._refused = counter("edl_teacher_refused", "Refused calls of any method.", ["reason"])
        self._expired = counter(
            "edl_teacher_expired",
            "Requests that were not computed, because their deadline had passed or their "
            "caller had gone.",
        )
        self._output_errors = counter(
            "edl_teacher_output_errors",
            "Requests with outcome bad_answer, by the output of the model that was missing or "
            "invalid.",
            ["output"],
        )
        for reason in REASONS:
            self._refused.labels(reason)

    # --- recording

    def call(self, protocol: str, method: str, peer: Callable[[], str]) -> CallRecord:
        """Create the record of a call.

        Args:
            protocol: "grpc", "http", "tcp" or "local".
            method: name of the method.
            peer: returns the address of the caller, "HOST:PORT".
        """
        logged = access_log.isEnabledFor(logging.DEBUG)
        return CallRecord(self, protocol, method, peer() if logged else None)

    def refused(self, error: EdlError) -> None:
        """Count a call that ends with `error`, if that is a refusal."""
        reason = reason_of(error)
        if reason and not isinstance(error, AccessError):  # the access control counts those
            self.count_refusal(reason)

    def count_refusal(self, reason: str) -> None:
        """Count a refused call; `reason` is one of `request.REASONS`."""
        self._refused.labels(reason).inc()

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        """Record that requests go to a device together.

        Args:
            samples: samples of all these requests.
            queue_s: seconds that each request has waited.
        """
        self._batch_samples.observe(samples)
        for seconds in queue_s:
            self._queue_s.observe(seconds)

    def expired(self) -> None:
        """Count a request that was not computed, because its deadline passed or its caller left."""
        self._expired.inc()

    def request_received(self) -> None:
        with self._changed:
            self.in_flight += 1

    def request_finished(self, timing: RequestTiming, error: BaseException | None) -> None:
        """Record the end of a request for labels; `error` is None if it was answered."""
        self._outcomes["answered" if error is None else _outcome_of(error)].inc()
        self._request_s.observe(timing.total_ns / 1e9)
        self._received.inc(timing.call.received_bytes)
        if error is None:
            self._sent.inc(timing.call.sent_bytes)
        if isinstance(error, BadAnswer) and error.output:
            self._output_errors.labels(error.output).inc()
        if timing.samples:
            self._samples.inc(timing.samples)
            self._device_s.observe(timing.device_seconds)
        with self._changed:
            self.in_flight -= 1
            self._last_ns = self.clock_ns()
            if timing.samples:
                self.labelled_requests += 1
                self._rate.add(timing.samples, self._last_ns / 1e9)
            if self._waiting:
                self._changed.notify_all()
            if error is not None:
                self._failed.add(timing)
                return
            self._success.add(timing)
            self._answered_samples += timing.samples
            self._last_answer_ms = int(self._unix_s() * 1000)
            totals = self._by_size.get(timing.samples)
            if totals is None and len(self._by_size) < _MAX_SIZES:
                totals = self._by_size[timing.samples] = _TimeTotals()
            if totals is not None:
                totals.add(timing)

    # --- reading

    def export_view(self, view: Callable[[], TeacherView]) -> None:
        """Add the metrics of `view()` to each scrape. Call this once."""
        self.metric_registry.register(ScrapedMetrics(lambda: view().metrics()))

    def create_output_series(self, outputs: Iterable[str]) -> None:
        """Create the metric series of each output of the loaded model, with the value 0."""
        for output in outputs:
            self._output_errors.labels(output)

    @property
    def samples_per_second(self) -> float:
        """Labelled samples per second, over the last seconds."""
        with self._changed:
            return self._rate.value(self.clock_ns() / 1e9)

    def wait_quiet(self, quiet_s: float, timeout_s: float) -> bool:
        """Wait until no request has been in flight for `quiet_s` seconds, counted from this call.

        Returns:
            False if `timeout_s` passed first.
        """
        with self._changed:
            start_ns = self.clock_ns()
            deadline_s = start_ns / 1e9 + timeout_s
            while True:
                now_s = self.clock_ns() / 1e9
                quiet_at_s = max(start_ns, self._last_ns) / 1e9 + quiet_s
                if self.in_flight == 0 and now_s >= quiet_at_s:
                    return True
                if now_s >= deadline_s:
                    return False
                until_s = deadline_s if self.in_flight else min(deadline_s, quiet_at_s)
                self._waiting += 1
                self._changed.wait(until_s - now_s)
                self._waiting -= 1

    def statistics(self, name: str, version: str) -> pb.ModelStatistics:
        """Return the statistics of the Open Inference Protocol, for a model of that name."""
        with self._changed:
            success, failed = self._success, self._failed
            return pb.ModelStatistics(
                name=name,
                version=version,
                last_inference=self._last_answer_ms,
                inference_count=self._answered_samples,
                execution_count=success.count,
                inference_stats=pb.InferStatistics(
                    success=success.duration("total"),
                    fail=failed.duration("total"),
                    queue=success.duration("queue"),
                    cache_hit=pb.StatisticDuration(),
                    cache_miss=pb.StatisticDuration(),
                    **success.compute(),
                ),
                batch_stats=[
                    pb.InferBatchStatistics(batch_size=size, **times.compute())
                    for size, times in sorted(self._by_size.items())
                ],
            )


def _outcome_of(error: BaseException) -> str:
    """Return the outcome of a request that failed, one of `_OUTCOMES`."""
    if isinstance(error, BadAnswer):
        return "bad_answer"
    if isinstance(error, EdlError):
        return "refused" if reason_of(error) else "failed"
    return "abandoned"


def _status_of(error: BaseException | None) -> str:
    """Return the status of a call, by gRPC's name."""
    if error is None:
        return "OK"
    if isinstance(error, Exception):
        return to_status(error)[0].name
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "ABORTED"


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 6)
