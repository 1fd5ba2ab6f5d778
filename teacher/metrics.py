"""What a teacher shows to Prometheus of its present state, besides what `recorder` counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)


class Collected:
    """Metrics that are asked for at each scrape; registering them does not ask.

    Args:
        families: gives them.
    """

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self.collect = families


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
