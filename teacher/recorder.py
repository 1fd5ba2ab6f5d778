"""The recorder of requests: what becomes of each is told once, and shown in four places.

These are the metrics that Prometheus reads; the statistics of the Open Inference Protocol; what the
registry is told (how many requests are in flight, how many samples are labelled in a second); and
the access log, a debug record of named values for each call, by whichever protocol it came. In the
log there are neither credentials nor what stands in tensors. While debug records are not wanted, a
call costs one look at the log's level.
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

from ..errors import AccessError, BadAnswer, EdlError
from ..logs import Fields
from ..proto import inference_pb2 as pb
from ..proto.status import to_status
from ..scheduler.rates import RecentRate
from .registration import TeacherView
from .request import REASONS, reason_of

access_log: Final = logging.getLogger("edl.teacher.access_log")

#: Letters in the log of a text that a caller has chosen.
_MAX_TEXT: Final = 200
#: Seconds: from a small batch on a GPU to a big one on an old CPU.
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
#: Samples of a batch.
_SIZES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
#: answered: with labels. refused: the request's own doing. failed: try again, here or elsewhere.
#: bad_answer: labels that are not finite. abandoned: the caller has gone meanwhile.
_OUTCOMES: Final = ("answered", "refused", "failed", "bad_answer", "abandoned")
#: Batch sizes that have statistics of their own; others count only in the totals, so that nobody
#: fills memory by asking with each size there is.
_MAX_SIZES: Final = 256


@dataclass(slots=True, eq=False)
class CallRecord:
    """One call, to be entered when it comes and left when it is answered.

    Attributes:
        recorder: of the teacher.
        protocol: "grpc", "http", "tcp" or "local".
        method: what is called.
        peer: address of the caller; None: nobody reads the log.
        model: that it names.
        request_id: the same, of a request for labels.
        received_bytes: of its request that are here.
        sent_bytes: of its answer.
        status: how it ends, where that is not what an exception in the `with` says.
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

    def timing(self, nbytes: int) -> RequestTiming:
        """Its request for labels is here, and has so many bytes: to be entered now."""
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
        timing, self._timing = self._timing, None  # they know each other
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
    """One request for labels, from its last byte to its answer; it fails by whatever is raised.

    Attributes:
        call: that it came by.
        samples: in its batch; 0 until it is labelled.
        input_ns: taken by reading the inputs.
        queue_ns: taken by waiting for the model.
        infer_ns: taken by the model.
        output_ns: taken by putting the answer together.
        whole_ns: taken by all of it.
    """

    call: CallRecord
    samples: int = 0
    input_ns: int = 0
    queue_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0
    whole_ns: int = 0
    _at_ns: int = field(init=False)

    def __post_init__(self) -> None:
        self._at_ns = self.call.recorder.clock_ns()

    def __enter__(self) -> Self:
        self.call.recorder.request_received()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        self.output_ns = self._lap()
        self.call.recorder.request_finished(self, error)

    def read(self) -> None:
        """The inputs are here, and good."""
        self.input_ns = self._lap()

    def labelled(self, samples: int, device_seconds: float) -> None:
        """The model has answered; of the time since `read` it needed `device_seconds`."""
        waited_ns = self._lap()
        self.samples = samples
        self.infer_ns = min(round(device_seconds * 1e9), waited_ns)
        self.queue_ns = waited_ns - self.infer_ns
        self.call.recorder.labelled(samples, device_seconds)

    def _lap(self) -> int:
        before, self._at_ns = self._at_ns, self.call.recorder.clock_ns()
        self.whole_ns += self._at_ns - before
        return self._at_ns - before


@dataclass(slots=True)
class _TimeTotals:
    """Where the time of some requests went."""

    count: int = 0
    whole_ns: int = 0
    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, one: RequestTiming) -> None:
        self.count += 1
        self.whole_ns += one.whole_ns
        self.queue_ns += one.queue_ns
        self.input_ns += one.input_ns
        self.infer_ns += one.infer_ns
        self.output_ns += one.output_ns

    def duration(self, ns: int) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=self.count, ns=ns)

    def compute(self) -> dict[str, pb.StatisticDuration]:
        return {
            "compute_input": self.duration(self.input_ns),
            "compute_infer": self.duration(self.infer_ns),
            "compute_output": self.duration(self.output_ns),
        }


class Collected:
    """Metrics that are asked for at each scrape; registering them does not ask.

    Args:
        families: gives them.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self.collect = families


class Recorder:
    """Records the requests of one teacher; any thread may use it.

    Args:
        clock_ns: monotonic.
        unix_ms: what the time is.

    Attributes:
        registry: the teacher's metrics.
        in_flight: requests for labels that have arrived and are not answered.
        answered: batches that were labelled.
    """

    def __init__(
        self,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.clock_ns = clock_ns
        self._unix_ms = unix_ms
        self.in_flight = self.answered = 0
        self._changed = threading.Condition(threading.Lock())  # of all that each request adds to
        self._watched = 0  # how many wait for a change
        self._last_ns = clock_ns()
        self._rate = RecentRate()
        self._success, self._failed = _TimeTotals(), _TimeTotals()
        self._by_size: dict[int, _TimeTotals] = {}
        self._inferred = self._inferred_ms = 0  # samples that were answered, and when the last
        self.registry = r = CollectorRegistry()
        counter, histogram = partial(Counter, registry=r), partial(Histogram, registry=r)
        requests = counter(
            "edl_teacher_requests", "Batches that came, by what became of them.", ["outcome"]
        )
        self._outcomes = {outcome: requests.labels(outcome) for outcome in _OUTCOMES}
        self._samples = counter("edl_teacher_samples", "Samples that were labelled.")
        self._received = counter("edl_teacher_received_bytes", "Requests, in bytes.")
        self._sent = counter("edl_teacher_sent_bytes", "Answers, in bytes.")
        self._device_s = histogram(
            "edl_teacher_device_seconds", "Time in the model for one request.", buckets=_BUCKETS
        )
        self._request_s = histogram(
            "edl_teacher_request_seconds", "Time from a request's last byte to its answer.",
            buckets=_BUCKETS,
        )  # fmt: skip
        self._queue_s = histogram(
            "edl_teacher_queue_seconds", "Time that a request waited for its turn at a device.",
            buckets=_BUCKETS,
        )  # fmt: skip
        self._batch_samples = histogram(
            "edl_teacher_batch_samples", "Samples handed to a device in one go.", buckets=_SIZES
        )
        self._refused = counter(
            "edl_teacher_refused", "Calls of any method that were refused, by why.", ["reason"]
        )
        self._expired = counter(
            "edl_teacher_expired", "Requests that were not computed: nobody waited any more."
        )
        self._output_errors = counter(
            "edl_teacher_output_errors",
            "Answers that were refused because this output of the model is no label.", ["output"],
        )  # fmt: skip
        for reason in REASONS:
            self._refused.labels(reason)

    # --- what happens

    def call(self, protocol: str, method: str, peer: Callable[[], str]) -> CallRecord:
        """One call.

        Args:
            protocol: "grpc", "http", "tcp" or "local".
            method: what is called.
            peer: gives the address of the caller, "HOST:PORT".
        """
        logged = access_log.isEnabledFor(logging.DEBUG)
        return CallRecord(self, protocol, method, peer() if logged else None)

    def refused(self, error: EdlError) -> None:
        """A call of any method ends by `error`."""
        reason = reason_of(error)
        if reason and not isinstance(error, AccessError):  # those the gate counts
            self.count_refusal(reason)

    def count_refusal(self, reason: str) -> None:
        """A call of any method was refused; `reason` is one of `request.REASONS`."""
        self._refused.labels(reason).inc()

    def dispatched(self, samples: int, queue_s: Sequence[float]) -> None:
        """Requests that waited for so long go to a device together, as `samples`."""
        self._batch_samples.observe(samples)
        for seconds in queue_s:
            self._queue_s.observe(seconds)

    def expired(self) -> None:
        """A request was not computed: its deadline was over, or its caller had gone."""
        self._expired.inc()

    def request_received(self) -> None:
        """A request for labels has arrived."""
        with self._changed:
            self.in_flight += 1

    def labelled(self, samples: int, device_seconds: float) -> None:
        """One batch went through the model."""
        with self._changed:
            self.answered += 1
            self._rate.add(samples, self.clock_ns() / 1e9)
        self._samples.inc(samples)
        self._device_s.observe(device_seconds)

    def request_finished(self, one: RequestTiming, error: BaseException | None) -> None:
        """A request for labels has come to its end, by this error."""
        self._outcomes[_outcome_of(error)].inc()
        self._request_s.observe(one.whole_ns / 1e9)
        self._received.inc(one.call.received_bytes)
        if error is None:
            self._sent.inc(one.call.sent_bytes)
        if isinstance(error, BadAnswer) and error.output:
            self._output_errors.labels(error.output).inc()
        with self._changed:
            self.in_flight -= 1
            self._last_ns = self.clock_ns()
            if self._watched:
                self._changed.notify_all()
            if error is not None:
                self._failed.add(one)
                return
            self._success.add(one)
            self._inferred += one.samples
            self._inferred_ms = self._unix_ms()
            if one.samples in self._by_size or len(self._by_size) < _MAX_SIZES:
                self._by_size.setdefault(one.samples, _TimeTotals()).add(one)

    # --- what is shown

    def watch(self, view: Callable[[], TeacherView]) -> None:
        """Show, besides, what `view` says at each scrape; once."""
        self.registry.register(Collected(lambda: view().families()))

    def name_outputs(self, outputs: Iterable[str]) -> None:
        """The model is known, and so what it may go wrong with."""
        for output in outputs:
            self._output_errors.labels(output)

    @property
    def samples_per_second(self) -> float:
        """Over the last seconds."""
        with self._changed:
            return self._rate.value(self.clock_ns() / 1e9)

    def wait_quiet(self, quiet_s: float, timeout_s: float) -> bool:
        """Wait until nothing is in flight and, from now on, nothing came for `quiet_s`.

        Returns:
            False when `timeout_s` passed first.
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
                self._watched += 1
                self._changed.wait(until_s - now_s)
                self._watched -= 1

    def statistics(self, name: str, version: str) -> pb.ModelStatistics:
        """As the extension of the Open Inference Protocol has them, of a model of that name."""
        with self._changed:
            success, failed = self._success, self._failed
            return pb.ModelStatistics(
                name=name,
                version=version,
                last_inference=self._inferred_ms,
                inference_count=self._inferred,
                execution_count=success.count,
                inference_stats=pb.InferStatistics(
                    success=success.duration(success.whole_ns),
                    fail=failed.duration(failed.whole_ns),
                    queue=success.duration(success.queue_ns),
                    cache_hit=pb.StatisticDuration(),
                    cache_miss=pb.StatisticDuration(),
                    **success.compute(),
                ),
                batch_stats=[
                    pb.InferBatchStatistics(batch_size=size, **times.compute())
                    for size, times in sorted(self._by_size.items())
                ],
            )


def _outcome_of(error: BaseException | None) -> str:
    """What became of a request, one of `_OUTCOMES`."""
    if error is None:
        return "answered"
    if isinstance(error, BadAnswer):
        return "bad_answer"
    if isinstance(error, EdlError):
        return "refused" if reason_of(error) else "failed"
    return "abandoned"


def _status_of(error: BaseException | None) -> str:
    """How a call ends, by the name that gRPC has for it."""
    if error is None:
        return "OK"
    if isinstance(error, Exception):
        return to_status(error)[0].name
    return "CANCELLED" if isinstance(error, asyncio.CancelledError) else "ABORTED"


def _seconds(ns: int) -> float:
    return round(ns / 1e9, 6)
