"""Metrics, statistics and traffic of a teacher."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from edl.errors import BadAnswer, EdlError, RequestRefused, RetryableError, WrongInstance
from edl.teacher.metrics import TeacherMetrics, TeacherView
from edl.teacher.refusals import REASONS, Overloaded, reason_of
from edl.teacher.statistics import Statistics
from edl.teacher.tallies import Spread, Tally
from edl.teacher.traffic import Traffic

#: Of counters and histograms, when they began; and the parts of histograms.
HIDDEN = ("_created", "_sum", "_count", "_bytes_total")
VIEW = TeacherView(
    service="resnet",
    teacher_id="t1",
    incarnation=41,
    version="1.0",
    content_id="c0ffee",
    numerics_id="bea7",
    slots=4,
    lanes=2,
    micro_batch=8,
    in_flight=3,
    t_t_s=0.0125,
    loaded=True,
    draining=False,
    restarts=2,
    heartbeat=True,
)


def shown(metrics: TeacherMetrics) -> dict[str, float]:
    """Every sample without labels, as a scraper reads them."""
    text = generate_latest(metrics.registry).decode()
    families = text_string_to_metric_families(text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def test_the_view_is_exported_at_each_scrape() -> None:
    view = VIEW
    metrics = TeacherMetrics()
    metrics.watch(lambda: view)
    now = shown(metrics)
    assert {name: now[name] for name in now if not name.endswith(HIDDEN)} == {
        "edl_teacher_samples_total": 0,
        "edl_teacher_predictor_restarts_total": 2,
        "edl_teacher_slots": 4,
        "edl_teacher_lanes": 2,
        "edl_teacher_expired_total": 0,
        "edl_teacher_micro_batch_samples": 8,
        "edl_teacher_in_flight_requests": 3,
        "edl_teacher_sample_device_seconds": 0.0125,
        "edl_teacher_model_loaded": 1,
        "edl_teacher_draining": 0,
        "edl_teacher_heartbeat_answering": 1,
    }
    labels = {"service": "resnet", "teacher_id": "t1", "version": "1.0", "incarnation": "41"}
    sample = metrics.registry.get_sample_value(
        "edl_teacher_info", {**labels, "content_id": "c0ffee", "numerics_id": "bea7"}
    )
    assert sample == 1
    view = replace(VIEW, draining=True, heartbeat=False)
    assert shown(metrics)["edl_teacher_draining"] == 1
    assert shown(metrics)["edl_teacher_heartbeat_answering"] == 0


def test_unknown_values_are_not_exported() -> None:
    metrics = TeacherMetrics()
    metrics.watch(lambda: replace(VIEW, t_t_s=None, micro_batch=None, heartbeat=None))
    now = shown(metrics)
    assert "edl_teacher_sample_device_seconds" not in now
    assert "edl_teacher_micro_batch_samples" not in now
    assert "edl_teacher_heartbeat_answering" not in now


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RequestRefused("shape"), "refused"),
        (WrongInstance("t2"), "refused"),
        (Overloaded("4 slots"), "refused"),
        (RetryableError("restarting"), "failed"),
        (BadAnswer("NaN"), "bad_answer"),
        (KeyboardInterrupt(), "abandoned"),
    ],
)
def test_each_request_has_one_outcome(error: BaseException, outcome: str) -> None:
    metrics = TeacherMetrics()
    with pytest.raises(type(error)), metrics.request(100):
        raise error
    counts = {
        name: metrics.registry.get_sample_value("edl_teacher_requests_total", {"outcome": name})
        for name in ("answered", "refused", "failed", "bad_answer", "abandoned")
    }
    assert counts == {name: float(name == outcome) for name in counts}
    assert metrics.registry.get_sample_value("edl_teacher_request_seconds_count") == 1


def test_batches_and_waits_are_counted() -> None:
    metrics = TeacherMetrics()
    metrics.dispatched(12, [0.02, 0.3, 0.0])
    metrics.expired()
    now = shown(metrics)
    assert (now["edl_teacher_batch_samples_count"], now["edl_teacher_batch_samples_sum"]) == (1, 12)
    assert now["edl_teacher_queue_seconds_count"] == 3
    assert now["edl_teacher_queue_seconds_sum"] == pytest.approx(0.32)
    assert now["edl_teacher_expired_total"] == 1


def test_bad_answers_are_counted_by_output() -> None:
    metrics = TeacherMetrics()
    name = "edl_teacher_output_errors_total"
    metrics.serves(["logits", "hidden"])
    assert metrics.registry.get_sample_value(name, {"output": "logits"}) == 0
    for error in (BadAnswer("NaN", "logits"), BadAnswer("NaN", "logits"), BadAnswer("rows")):
        with pytest.raises(BadAnswer), metrics.request(1):
            raise error
    assert metrics.registry.get_sample_value(name, {"output": "hidden"}) == 0
    assert metrics.registry.get_sample_value(name, {"output": "logits"}) == 2
    assert metrics.registry.get_sample_value(name, {"output": ""}) is None


def test_every_reason_begins_at_0() -> None:
    metrics = TeacherMetrics()
    for reason in REASONS:
        labels = {"reason": reason}
        assert metrics.registry.get_sample_value("edl_teacher_refused_total", labels) == 0


def test_failures_are_no_refusals() -> None:
    for error in (RetryableError("restarting"), BadAnswer("NaN"), EdlError("?")):
        assert reason_of(error) == ""


def test_teachers_in_one_process_count_apart() -> None:
    one, other = TeacherMetrics(), TeacherMetrics()
    one.labelled(8, 0.1)
    assert one.registry.get_sample_value("edl_teacher_samples_total") == 8
    assert other.registry.get_sample_value("edl_teacher_samples_total") == 0


class NanosecondClock:
    def __init__(self) -> None:
        self.ns = 0

    def __call__(self) -> int:
        return self.ns


def answer(
    statistics: Statistics, clock: NanosecondClock, samples: int, device_seconds: float = 4e-9
) -> None:
    """A request: 1 ns to read, 10 ns until it is labelled, 2 ns to put together."""
    with statistics.request() as stages:
        clock.ns += 1
        stages.read()
        clock.ns += 10
        stages.labelled(samples, device_seconds)
        clock.ns += 2


def test_times_of_requests() -> None:
    clock = NanosecondClock()
    statistics = Statistics(clock, unix_ms=lambda: 1234)
    for samples in (3, 8, 3):
        answer(statistics, clock, samples)
    model = statistics.message("net", "1")
    assert (model.name, model.version, model.last_inference) == ("net", "1", 1234)
    assert (model.inference_count, model.execution_count) == (14, 3)
    stats = model.inference_stats
    spent = {
        name: (getattr(stats, name).count, getattr(stats, name).ns)
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail")
    }
    assert spent == {
        "success": (3, 39),
        "queue": (3, 18),
        "compute_input": (3, 3),
        "compute_infer": (3, 12),
        "compute_output": (3, 6),
        "fail": (0, 0),
    }
    assert [(size.batch_size, size.compute_infer.count) for size in model.batch_stats] == [
        (3, 2),
        (8, 1),
    ]


def test_a_failed_request_counts_as_failed_only() -> None:
    clock = NanosecondClock()
    statistics = Statistics(clock)

    def fail() -> None:
        with statistics.request():
            clock.ns += 5
            raise BadAnswer("NaN")

    with pytest.raises(BadAnswer):
        fail()
    model = statistics.message("net", "1")
    assert (model.inference_stats.fail.count, model.inference_stats.fail.ns) == (1, 5)
    assert model.inference_stats.success.count == model.execution_count == 0
    assert model.last_inference == 0


def test_device_time_is_bounded_by_the_request() -> None:
    clock = NanosecondClock()
    statistics = Statistics(clock)
    answer(statistics, clock, 1, device_seconds=1.0)
    stats = statistics.message("net", "1").inference_stats
    assert (stats.compute_infer.ns, stats.queue.ns) == (10, 0)


def test_no_more_than_256_batch_sizes_are_kept() -> None:
    clock = NanosecondClock()
    statistics = Statistics(clock)
    for samples in range(1, 1000):
        answer(statistics, clock, samples)
    model = statistics.message("net", "1")
    assert len(model.batch_stats) == 256
    assert model.execution_count == 999


BOUNDS = (0.5, 1, 2.5, 10)


class Shown(Collector):
    def __init__(self, figure: Tally | Spread) -> None:
        self._figure = figure

    def collect(self) -> Iterable[Metric]:
        return [self._figure.family()]


def lines(registry: CollectorRegistry) -> list[str]:
    """All but when a figure began."""
    return [
        line for line in generate_latest(registry).decode().splitlines() if "_created" not in line
    ]


def shown_figure(figure: Tally | Spread) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Shown(figure))
    return lines(registry)


@given(st.lists(st.floats(0, 20) | st.sampled_from(BOUNDS)))
def test_a_spread_equals_a_histogram(values: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("a", "b", buckets=BOUNDS, registry=registry)
    ours = Spread("a", "b", BOUNDS)
    for value in values:
        theirs.observe(value)
        ours.add(value)
    assert shown_figure(ours) == lines(registry)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("xy"))))
def test_a_tally_equals_a_counter(counts: list[tuple[int, str]]) -> None:
    registry = CollectorRegistry()
    theirs = Counter("a", "b", ["c"], registry=registry)
    ours = Tally("a", "b", "c", ("x", "y"))
    for value in "xy":
        theirs.labels(value)
    for count, value in counts:
        theirs.labels(value).inc(count)
        ours.add(count, value)
    assert shown_figure(ours) == lines(registry)


def test_a_tally_may_have_no_label() -> None:
    registry = CollectorRegistry()
    Counter("a", "b", registry=registry).inc(3)
    ours = Tally("a", "b")
    ours.add(3)
    assert shown_figure(ours) == lines(registry)


def test_requests_in_flight() -> None:
    traffic = Traffic()

    def fail() -> None:
        with traffic.request():
            assert traffic.in_flight == 2
            raise ValueError

    with traffic.request():
        assert traffic.in_flight == 1
        with pytest.raises(ValueError):
            fail()
        assert traffic.in_flight == 1
    assert traffic.in_flight == 0


def test_answers_make_a_rate() -> None:
    now = 100.0
    traffic = Traffic(lambda: now)
    assert traffic.samples_per_second == 0.0
    for _ in range(10):
        traffic.count_answer(samples=8, device_seconds=0.16)
        now += 0.4
    assert traffic.answered == 10
    assert traffic.samples_per_second == pytest.approx(20, rel=0.2)


def test_a_callback_hears_of_each_batch() -> None:
    told: list[tuple[int, float]] = []
    traffic = Traffic(on_labelled=lambda samples, seconds: told.append((samples, seconds)))
    traffic.count_answer(8, 0.25)
    assert (told, traffic.answered) == ([(8, 0.25)], 1)


def test_it_is_quiet_after_the_last_answer() -> None:
    traffic = Traffic()
    arrived, go = threading.Event(), threading.Event()

    def answer() -> None:
        with traffic.request():
            arrived.set()
            go.wait(10)

    thread = threading.Thread(target=answer)
    thread.start()
    assert arrived.wait(10)
    assert not traffic.wait_quiet(quiet_s=0.01, timeout_s=0.05)
    go.set()
    assert traffic.wait_quiet(quiet_s=0.01, timeout_s=10)
    thread.join()


def test_waiting_for_quiet_has_a_limit() -> None:
    traffic = Traffic()
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            with traffic.request():
                pass

    thread = threading.Thread(target=keep_asking)
    thread.start()
    try:
        assert not traffic.wait_quiet(quiet_s=10, timeout_s=0.05)
    finally:
        stop.set()
        thread.join()
