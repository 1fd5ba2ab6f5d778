"""What a teacher shows to Prometheus: kinds of metrics that cost little, and its present state.

A counter of prometheus_client's has a lock of its own and takes as long as a tenth of a small
request. A request adds to several metrics, so these are added to under one lock, by whoever holds
them (`recorder`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector


class CounterStats:
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


class HistogramStats:
    """How values are distributed.

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
        # As prometheus_client spells a bound.
        labels = [*(str(float(bound)) for bound in self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(labels, counts, strict=True)), self._sum)
        return family


class Collected(Collector):
    """Metrics that are asked for at each scrape; registering them does not ask.

    Args:
        families: gives them.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families()


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
        samples_per_second: labelled, over the last seconds.
        output_kinds: what the numbers of each output are, by name; empty: not known.
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
    samples_per_second: float = 0.0
    output_kinds: Mapping[str, str] = field(default_factory=dict)

    def families(self) -> Iterator[Metric]:
        """What a scraper is shown of it; what is not known is left out."""
        who = InfoMetricFamily("edl_teacher", "Which teacher this is.")
        names = ("service", "teacher_id", "version", "incarnation", "content_id", "numerics_id")
        who.add_metric((), {name: str(getattr(self, name)) for name in names})
        yield who
        yield CounterMetricFamily(
            "edl_teacher_predictor_restarts", "Starts of the model after a crash.", self.restarts
        )
        yield CounterMetricFamily(
            "edl_teacher_micro_batch_reductions",
            "Times that a device ran out of memory, which halved its micro-batch.",
            self.micro_batch_reductions,
        )
        gauges: tuple[tuple[str, str, float | None], ...] = (
            ("slots", "Requests that wait for the model or run in it at once.", self.slots),
            ("lanes", "Devices that requests run on side by side.", self.lanes),
            ("micro_batch_samples", "Samples of one run of the model.", self.micro_batch),
            ("in_flight_requests", "Requests that are not answered yet.", self.in_flight),
            ("sample_device_seconds", "t_t: device time of one sample, the median.", self.t_t_s),
            ("model_loaded", "1: the model takes requests.", self.loaded),
            ("draining", "1: it takes leave.", self.draining),
            ("heartbeat_answering", "1: the registry answered the last beat.", self.heartbeat),
        )
        for name, text, value in gauges:
            if value is not None:
                yield GaugeMetricFamily(f"edl_teacher_{name}", text, float(value))
