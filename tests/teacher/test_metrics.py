"""Metrics, statistics and traffic of a teacher."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl.errors import BadAnswer, EdlError, RequestRefused, RetryableError, WrongInstance
from edl.teacher.metrics import Spread, Tally, TeacherMetrics, TeacherView
from edl.teacher.recording import Statistics, Traffic
from edl.teacher.request import REASONS, Overloaded, reason_of

VIEW = TeacherView(
    service="resnet", teacher_id="t1", incarnation=41, version="1.0", content_id="c0ffee",
    numerics_id="bea7", slots=4, lanes=2, micro_batch=8, in_flight=3, t_t_s=0.0125, loaded=True,
    draining=False, restarts=2, micro_batch_reductions=1, heartbeat=True,
)  # fmt: skip


def shown(metrics: TeacherMetrics) -> dict[str, float]:
    """Every sample without labels, as a scraper reads them, but for when each began."""
    text = generate_latest(metrics.registry).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {s.name: s.value for s in samples if not s.labels and "_created" not in s.name}


def test_the_view_is_exported_at_each_scrape() -> None:
    view = VIEW
    metrics = TeacherMetrics()
    metrics.watch(lambda: view)
    assert {name: value for name, value in shown(metrics).items() if value} == {
        "edl_teacher_predictor_restarts_total": 2,
        "edl_teacher_micro_batch_reductions_total": 1,
        "edl_teacher_slots": 4,
        "edl_teacher_lanes": 2,
        "edl_teacher_micro_batch_samples": 8,
        "edl_teacher_in_flight_requests": 3,
        "edl_teacher_sample_device_seconds": 0.0125,
        "edl_teacher_model_loaded": 1,
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
    ("error", "outcome", "reason"),
    [
        (RequestRefused("shape"), "refused", "malformed"),
        (WrongInstance("t2"), "refused", "wrong_instance"),
        (Overloaded("4 slots"), "refused", "overloaded"),
        (RetryableError("restarting"), "failed", ""),
        (BadAnswer("NaN"), "bad_answer", ""),
        (KeyboardInterrupt(), "abandoned", ""),
    ],
)
def test_each_request_has_one_outcome(error: BaseException, outcome: str, reason: str) -> None:
    metrics = TeacherMetrics()
    value = metrics.registry.get_sample_value
    with pytest.raises(type(error)), metrics.request(100):
        raise error
    counts = {
        name: value("edl_teacher_requests_total", {"outcome": name})
        for name in ("answered", "refused", "failed", "bad_answer", "abandoned")
    }
    assert counts == {name: float(name == outcome) for name in counts}
    assert value("edl_teacher_request_seconds_count") == 1
    assert not isinstance(error, EdlError) or reason_of(error) == reason
    assert {value("edl_teacher_refused_total", {"reason": each}) for each in REASONS} == {0}


def test_waits_are_summed() -> None:
    metrics = TeacherMetrics()
    metrics.dispatched(12, [0.02, 0.3, 0.0])
    assert shown(metrics)["edl_teacher_queue_seconds_sum"] == pytest.approx(0.32)


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


@pytest.fixture
def now() -> SimpleNamespace:
    """Time that passes when a test says so."""
    return SimpleNamespace(ns=0)


def answer(
    statistics: Statistics, now: SimpleNamespace, samples: int, device_seconds: float = 4e-9
) -> None:
    """A request: 1 ns to read, 10 ns until it is labelled, 2 ns to put together."""
    with statistics.request() as stages:
        now.ns += 1
        stages.read()
        now.ns += 10
        stages.labelled(samples, device_seconds)
        now.ns += 2


def test_times_of_requests(now: SimpleNamespace) -> None:
    statistics = Statistics(lambda: now.ns, unix_ms=lambda: 1234)
    with suppress(BadAnswer), statistics.request():
        now.ns += 5
        raise BadAnswer("NaN")
    assert statistics.message("net", "1").last_inference == 0
    for samples in (3, 8, 3):
        answer(statistics, now, samples)
    answer(statistics, now, 3, device_seconds=1.0)  # no more than the request took
    model = statistics.message("net", "1")
    assert (model.name, model.version, model.last_inference) == ("net", "1", 1234)
    assert (model.inference_count, model.execution_count) == (17, 4)
    stats = model.inference_stats
    spent = {
        name: (getattr(stats, name).count, getattr(stats, name).ns)
        for name in ("success", "queue", "compute_input", "compute_infer", "compute_output", "fail")
    }
    assert spent == {
        "success": (4, 52), "queue": (4, 18), "compute_input": (4, 4), "compute_infer": (4, 22),
        "compute_output": (4, 8), "fail": (1, 5),
    }  # fmt: skip
    sizes = [(size.batch_size, size.compute_infer.count) for size in model.batch_stats]
    assert sizes == [(3, 3), (8, 1)]


def test_no_more_than_256_batch_sizes_are_kept(now: SimpleNamespace) -> None:
    statistics = Statistics(lambda: now.ns)
    for samples in range(1, 1000):
        answer(statistics, now, samples)
    model = statistics.message("net", "1")
    assert len(model.batch_stats) == 256
    assert model.execution_count == 999


BOUNDS = (0.5, 1, 2.5, 10)


def lines(figure: Tally | Spread | Counter | Histogram) -> list[str]:
    """What a scraper reads of a metric of ours or of theirs, but for when it began."""
    families = [figure.family()] if isinstance(figure, Tally | Spread) else figure.collect()
    registry: Any = SimpleNamespace(collect=lambda: families)
    text = generate_latest(registry).decode()
    return [line for line in text.splitlines() if "_created" not in line]


@given(st.lists(st.floats(0, 20) | st.sampled_from(BOUNDS)))
def test_a_spread_equals_a_histogram(values: list[float]) -> None:
    theirs = Histogram("a", "b", buckets=BOUNDS, registry=None)
    ours = Spread("a", "b", BOUNDS)
    for value in values:
        theirs.observe(value)
        ours.add(value)
    assert lines(ours) == lines(theirs)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("xy"))))
def test_a_tally_equals_a_counter(counts: list[tuple[int, str]]) -> None:
    """With labels and without."""
    theirs, all_theirs = Counter("a", "b", ["c"], registry=None), Counter("a", "b", registry=None)
    ours, all_ours = Tally("a", "b", "c", ("x", "y")), Tally("a", "b")
    for value in "xy":
        theirs.labels(value)
    for count, value in counts:
        theirs.labels(value).inc(count)
        ours.add(count, value)
        all_theirs.inc(count)
        all_ours.add(count)
    assert lines(ours) == lines(theirs)
    assert lines(all_ours) == lines(all_theirs)


def test_answers_make_a_rate() -> None:
    now = 100.0
    traffic = Traffic(lambda: now)
    assert traffic.samples_per_second == 0.0
    for _ in range(10):
        traffic.count_answer(samples=8, device_seconds=0.16)
        now += 0.4
    assert traffic.answered == 10
    assert traffic.samples_per_second == pytest.approx(20, rel=0.2)
