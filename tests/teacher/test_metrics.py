"""Metrics, statistics and traffic of a teacher."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from edl import __version__
from edl.runtime.errors import BadAnswer, EdlError, RequestRefused, RetryableError, WrongInstance
from edl.teacher.identity import InstanceIdentity, TeacherView
from edl.teacher.predictor_jobs import PredictorReady
from edl.teacher.recorder import Recorder
from edl.teacher.request import REASONS, TeacherOverloaded, reason_of
from edl.tests.teacher.bench import timing
from edl.tests.teacher.fakes import SPEC

VIEW = TeacherView(
    InstanceIdentity("resnet", "t1", 41), PredictorReady(SPEC, 0.0125, 8), slots=4, device_count=2,
    in_flight=3, t_t_s=0.0125, accepting=True, restarts=2, micro_batch_reductions=1,
    registry_answers=True,
)  # fmt: skip


def shown(recorder: Recorder) -> dict[str, float]:
    """Every sample without labels, as a scraper reads them, but for when each began."""
    text = generate_latest(recorder.metric_registry).decode()
    samples = [one for family in text_string_to_metric_families(text) for one in family.samples]
    return {s.name: s.value for s in samples if not s.labels and "_created" not in s.name}


def test_the_view_is_exported_at_each_scrape() -> None:
    view = VIEW
    recorder = Recorder()
    recorder.export_view(lambda: view)
    assert {name: value for name, value in shown(recorder).items() if value} == {
        "edl_teacher_predictor_restarts_total": 2,
        "edl_teacher_micro_batch_reductions_total": 1,
        "edl_teacher_slots": 4,
        "edl_teacher_devices": 2,
        "edl_teacher_micro_batch_samples": 8,
        "edl_teacher_in_flight_requests": 3,
        "edl_teacher_sample_device_seconds": 0.0125,
        "edl_teacher_model_loaded": 1,
        "edl_teacher_heartbeat_answering": 1,
    }
    labels = {"service": "resnet", "teacher_id": "t1", "version": __version__, "incarnation": "41"}
    sample = recorder.metric_registry.get_sample_value(
        "edl_teacher_info", {**labels, "content_id": "c0ffee", "numerics_id": SPEC.numerics_id}
    )
    assert sample == 1
    leaving = InstanceIdentity("resnet", "t1", 41, draining=True)
    view = replace(VIEW, identity=leaving, registry_answers=False)
    assert shown(recorder)["edl_teacher_draining"] == 1
    assert shown(recorder)["edl_teacher_heartbeat_answering"] == 0
    view = replace(VIEW, model=None, registry_answers=None)
    unknown = ("sample_device_seconds", "micro_batch_samples", "heartbeat_answering")
    assert not {f"edl_teacher_{name}" for name in unknown} & set(shown(recorder))


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (RequestRefused("shape"), "refused", "malformed"),
        (WrongInstance("t2"), "refused", "wrong_instance"),
        (TeacherOverloaded("4 slots"), "refused", "overloaded"),
        (RetryableError("restarting"), "failed", ""),
        (BadAnswer("NaN"), "bad_answer", ""),
        (KeyboardInterrupt(), "abandoned", ""),
    ],
)
def test_each_request_has_one_outcome(error: BaseException, outcome: str, reason: str) -> None:
    recorder = Recorder()
    value = recorder.metric_registry.get_sample_value
    with pytest.raises(type(error)), timing(recorder):
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
    recorder = Recorder()
    recorder.dispatched(12, [0.02, 0.3, 0.0])
    assert shown(recorder)["edl_teacher_queue_seconds_sum"] == pytest.approx(0.32)


def test_bad_answers_are_counted_by_output() -> None:
    recorder = Recorder()
    name = "edl_teacher_output_errors_total"
    recorder.create_output_series(["logits", "hidden"])
    assert recorder.metric_registry.get_sample_value(name, {"output": "logits"}) == 0
    for error in (BadAnswer("NaN", "logits"), BadAnswer("NaN", "logits"), BadAnswer("rows")):
        with pytest.raises(BadAnswer), timing(recorder):
            raise error
    assert recorder.metric_registry.get_sample_value(name, {"output": "hidden"}) == 0
    assert recorder.metric_registry.get_sample_value(name, {"output": "logits"}) == 2
    assert recorder.metric_registry.get_sample_value(name, {"output": ""}) is None


@pytest.fixture
def now() -> SimpleNamespace:
    return SimpleNamespace(ns=0)


def answer(
    recorder: Recorder, now: SimpleNamespace, samples: int, device_seconds: float = 4e-9
) -> None:
    """A request: 1 ns to read, 10 ns until it is labelled, 2 ns to put together."""
    with timing(recorder) as request:
        now.ns += 1
        request.inputs_read()
        now.ns += 10
        request.labels_ready(samples, device_seconds)
        now.ns += 2


def test_times_of_requests(now: SimpleNamespace) -> None:
    recorder = Recorder(lambda: now.ns, unix_s=lambda: 1.234)
    with suppress(BadAnswer), timing(recorder):
        now.ns += 5
        raise BadAnswer("NaN")
    assert recorder.statistics("net", "1").last_inference == 0
    for samples in (3, 8, 3):
        answer(recorder, now, samples)
    answer(recorder, now, 3, device_seconds=1.0)  # no more than the request took
    model = recorder.statistics("net", "1")
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
    recorder = Recorder(lambda: now.ns)
    for samples in range(1, 1000):
        answer(recorder, now, samples)
    model = recorder.statistics("net", "1")
    assert len(model.batch_stats) == 256
    assert model.execution_count == 999


def test_answers_make_a_rate(now: SimpleNamespace) -> None:
    now.ns = 100 * 10**9
    recorder = Recorder(lambda: now.ns)
    assert recorder.samples_per_second == 0.0
    for _ in range(10):
        with timing(recorder) as one:
            one.labels_ready(samples=8, device_seconds=0.16)
        now.ns += 4 * 10**8
    assert recorder.labelled_requests == 10
    assert recorder.samples_per_second == pytest.approx(20, rel=0.2)
