"""What a teacher shows to Prometheus: names, values, and nothing of another teacher's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl.errors import BadAnswer, EdlError, RequestRefused, RetryableError, WrongInstance
from edl.teacher.metrics import TeacherMetrics, TeacherView
from edl.teacher.refusals import REASONS, Overloaded, reason_of

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


def test_the_view_is_shown_as_it_is_at_the_scrape() -> None:
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


def test_what_is_not_known_is_not_shown() -> None:
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


def test_a_batch_is_counted_once_and_the_wait_of_each_of_its_requests() -> None:
    metrics = TeacherMetrics()
    metrics.dispatched(12, [0.02, 0.3, 0.0])
    metrics.expired()
    now = shown(metrics)
    assert (now["edl_teacher_batch_samples_count"], now["edl_teacher_batch_samples_sum"]) == (1, 12)
    assert now["edl_teacher_queue_seconds_count"] == 3
    assert now["edl_teacher_queue_seconds_sum"] == pytest.approx(0.32)
    assert now["edl_teacher_expired_total"] == 1


def test_answers_are_counted_by_the_output_that_was_no_label() -> None:
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


def test_every_reason_stands_at_0_before_it_first_happens() -> None:
    metrics = TeacherMetrics()
    for reason in REASONS:
        labels = {"reason": reason}
        assert metrics.registry.get_sample_value("edl_teacher_refused_total", labels) == 0
    assert set(REASONS) == {
        "unauthenticated",
        "forbidden",
        "malformed",
        "too_large",
        "rate_limited",
        "wrong_instance",
        "version",
        "overloaded",
    }


def test_a_failure_of_ours_is_no_refusal() -> None:
    for error in (RetryableError("restarting"), BadAnswer("NaN"), EdlError("?")):
        assert reason_of(error) == ""


def test_two_teachers_in_one_process_count_apart() -> None:
    one, other = TeacherMetrics(), TeacherMetrics()
    one.labelled(8, 0.1)
    assert one.registry.get_sample_value("edl_teacher_samples_total") == 8
    assert other.registry.get_sample_value("edl_teacher_samples_total") == 0
