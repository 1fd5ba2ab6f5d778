"""What is recorded of requests: how many are under way, and the protocol's statistics."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from ..proto import inference_pb2 as pb
from ..scheduler.rates import RecentRate


class Traffic:
    """Thread-safe counters of one server.

    Args:
        clock: seconds, monotonic.
        on_labelled: told the samples of each batch, and the seconds that it took on the device.

    Attributes:
        answered: requests answered with labels.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        on_labelled: Callable[[int, float], None] = lambda samples, device_seconds: None,
    ) -> None:
        self.answered = 0
        self._clock = clock
        self._on_labelled = on_labelled
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._watched = 0  # how many wait for a change
        self._in_flight = 0
        self._last_s = clock()
        self._rate = RecentRate()

    def request(self) -> Self:
        """To be entered for one request, from its arrival to its answer."""
        return self

    def __enter__(self) -> None:
        with self._lock:
            self._in_flight += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._in_flight -= 1
            self._last_s = self._clock()
            if self._watched:
                self._changed.notify_all()

    def count_answer(self, samples: int, device_seconds: float) -> None:
        """One batch of `samples` was labelled in `device_seconds`."""
        with self._lock:
            self.answered += 1
            self._rate.add(samples, self._clock())
        self._on_labelled(samples, device_seconds)

    @property
    def in_flight(self) -> int:
        """Requests that have arrived and are not answered."""
        return self._in_flight

    @property
    def samples_per_second(self) -> float:
        """Over the last seconds."""
        with self._lock:
            return self._rate.value(self._clock())

    def wait_quiet(self, quiet_s: float, timeout_s: float) -> bool:
        """Wait until nothing is in flight and, from now on, nothing came for `quiet_s`.

        Returns:
            False when `timeout_s` passed first.
        """
        with self._changed:
            start = self._clock()
            deadline = start + timeout_s
            while True:
                now, quiet_at = self._clock(), max(start, self._last_s) + quiet_s
                if self._in_flight == 0 and now >= quiet_at:
                    return True
                if now >= deadline:
                    return False
                until = deadline if self._in_flight else min(deadline, quiet_at)
                self._watched += 1
                self._changed.wait(until - now)
                self._watched -= 1


#: Batch sizes that are counted apart; others only in the totals, so that nobody fills memory by
#: asking with each size there is.
_MAX_SIZES: Final = 256


@dataclass(slots=True)
class _Duration:
    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns

    def message(self) -> pb.StatisticDuration:
        return pb.StatisticDuration(count=self.count, ns=self.ns)


@dataclass(slots=True)
class _Parts:
    """Where the time of answered requests went."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, stages: Stages) -> None:
        self.count += 1
        self.input_ns += stages.input_ns
        self.infer_ns += stages.infer_ns
        self.output_ns += stages.output_ns

    def messages(self) -> dict[str, pb.StatisticDuration]:
        return {
            "compute_input": pb.StatisticDuration(count=self.count, ns=self.input_ns),
            "compute_infer": pb.StatisticDuration(count=self.count, ns=self.infer_ns),
            "compute_output": pb.StatisticDuration(count=self.count, ns=self.output_ns),
        }


class Stages:
    """One request, as it goes from stage to stage; times are ns of one clock.

    Attributes:
        samples: in its batch; 0 until it is labelled.
        input_ns: taken by reading the inputs.
        queue_ns: taken by waiting for the model.
        infer_ns: taken by the model.
        output_ns: taken by putting the answer together.
    """

    __slots__ = (
        "_at",
        "_clock",
        "_statistics",
        "began",
        "infer_ns",
        "input_ns",
        "output_ns",
        "queue_ns",
        "samples",
    )

    def __init__(self, clock: Callable[[], int], statistics: Statistics) -> None:
        self._clock = clock
        self._statistics = statistics
        self.began = self._at = clock()
        self.samples = self.input_ns = self.queue_ns = self.infer_ns = self.output_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._statistics.answered(self)
        else:
            self._statistics.failed(self)

    def read(self) -> None:
        """The inputs are here, and good."""
        self.input_ns = self._lap()

    def labelled(self, samples: int, device_seconds: float) -> None:
        """The model has answered; of the time since `read` it needed `device_seconds`."""
        waited_ns = self._lap()
        self.samples = samples
        self.infer_ns = min(round(device_seconds * 1e9), waited_ns)
        self.queue_ns = waited_ns - self.infer_ns

    def sent(self) -> int:
        """The answer is put together; what all of it took."""
        self.output_ns = self._lap()
        return self._at - self.began

    def _lap(self) -> int:
        before, self._at = self._at, self._clock()
        return self._at - before


class Statistics:
    """The statistics of one model, as the extension of the Open Inference Protocol has them.

    Args:
        clock: ns, monotonic.
        unix_ms: what the time is.
    """

    def __init__(
        self,
        clock: Callable[[], int] = time.perf_counter_ns,
        unix_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._clock = clock
        self._unix_ms = unix_ms
        self._lock = threading.Lock()
        self._success, self._fail, self._queue = _Duration(), _Duration(), _Duration()
        self._parts = _Parts()
        self._sizes: dict[int, _Parts] = {}
        self._samples = self._last_ms = 0

    def request(self) -> Stages:
        """To be entered for one request; it fails by whatever is raised."""
        return Stages(self._clock, self)

    def failed(self, stages: Stages) -> None:
        """A request is not answered."""
        with self._lock:
            self._fail.add(self._clock() - stages.began)

    def answered(self, stages: Stages) -> None:
        """A request is answered."""
        whole_ns = stages.sent()
        with self._lock:
            self._success.add(whole_ns)
            self._queue.add(stages.queue_ns)
            self._parts.add(stages)
            self._samples += stages.samples
            self._last_ms = self._unix_ms()
            if stages.samples in self._sizes or len(self._sizes) < _MAX_SIZES:
                self._sizes.setdefault(stages.samples, _Parts()).add(stages)

    def message(self, name: str, version: str) -> pb.ModelStatistics:
        """All of it, for the model of that name and version."""
        with self._lock:
            return pb.ModelStatistics(
                name=name,
                version=version,
                last_inference=self._last_ms,
                inference_count=self._samples,
                execution_count=self._success.count,
                inference_stats=pb.InferStatistics(
                    success=self._success.message(),
                    fail=self._fail.message(),
                    queue=self._queue.message(),
                    cache_hit=pb.StatisticDuration(),
                    cache_miss=pb.StatisticDuration(),
                    **self._parts.messages(),
                ),
                batch_stats=[
                    pb.InferBatchStatistics(batch_size=size, **parts.messages())
                    for size, parts in sorted(self._sizes.items())
                ],
            )
