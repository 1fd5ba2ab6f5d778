"""What has become of a model's requests, and where their time went: counts and nanoseconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from ..proto import inference_pb2 as pb

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
