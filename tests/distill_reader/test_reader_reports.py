"""What a reader reports of itself: callbacks, metrics, and a timeline for Perfetto."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edl.distill_reader import Callback, EnsemblePolicy, LabelStore, TeacherPool
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.runtime.addresses import bind_socket
from edl.runtime.errors import AddressInUse, LabelTimeout, PoisonBatch, RequestRefused, UsageError
from edl.tests.distill_reader.readers import ROWS, Batches, answer_nan, check_epoch, fail, reader_of
from edl.tests.distill_reader.traces import checked_events, events_of, lives, slices, track_names
from edl.tests.scripted_teacher import ScriptedTeacher, label
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system

# --- callbacks


class Recorder(Callback):
    """Keeps each call, with the thread that made it."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.threads: set[str] = set()

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("on_"):
            return super().__getattribute__(name)

        def record(*arguments: Any) -> None:
            self.calls.append((name, arguments))
            self.threads.add(threading.current_thread().name)

        return record

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in [*self.calls] if called == name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def test_joins_and_losses(teacher: ScriptedTeacher, second: ScriptedTeacher, address: str) -> None:
    recorder, source = Recorder(), Batches(40)
    both = {(teacher.address,), (second.address,)}
    options: dict[str, Any] = {"metrics_listen": address, "callbacks": [recorder]}
    with reader_of(source, teacher, second, **options) as reader:
        wait_until(lambda: len(scrape(address).get("teacher_window", {})) == 2)
        check_epoch(source, list(reader))
        wait_until(lambda: value_of(address, "batches_delivered_total") == 40)
        # A request that was late, and labelled by the other teacher, may be on its way.
        wait_until(lambda: not any(scrape(address)["teacher_requests_in_flight"].values()))
        seen = scrape(address)
        assert min(seen["teacher_window"].values()) >= 2
        quantiles = seen["teacher_turnaround_seconds"]
        for (one,) in both:
            assert 0 < quantiles["s", "0.5", one] <= quantiles["s", "0.99", one]
        assert [samples for samples, _ in recorder.of("on_batch")] == [ROWS] * 40
        rates = "teacher_samples_per_second"  # of the last seconds only
        wait_until(lambda: list(reader) and min(scrape(address)[rates].values()) > 0)
        # One that was silent for a while, and ejected, joins again.
        wait_until(lambda: {*recorder.of("on_teacher_joined")} == both and not reader.stats.ejected)
        second.stop()
        check_epoch(source, list(reader))  # a teacher that is asked nothing is not missed
        wait_until(lambda: recorder.of("on_teacher_lost") == [(second.address,)])
        wait_until(lambda: len(scrape(address).get("teacher_window", {})) == 1)
        for name, values in scrape(address).items():
            assert not any(second.address in labels for labels in values), name
    assert {*recorder.of("on_teacher_joined")} == both
    assert recorder.threads == {threading.main_thread().name, "edl-reader-callbacks"}


@pytest.mark.parametrize(("cause", "behaviour"), [("wrong", answer_nan), ("failed", fail)])
def test_an_ejection_is_told_counted_and_drawn(
    teacher: ScriptedTeacher,
    second: ScriptedTeacher,
    address: str,
    path: Path,
    cause: str,
    behaviour: Callable[[InferRequest], dict[str, Array]],
) -> None:
    source, recorder = Batches(10), Recorder()
    second.behaviour = behaviour
    options = {"metrics_listen": address, "trace": path, "callbacks": [recorder]}
    with reader_of(source, teacher, second, **options) as reader:
        while (second.address, cause) not in recorder.of("on_teacher_ejected"):
            check_epoch(source, list(reader))  # an ejection that ends at once is not told
        wait_until(lambda: value_of(address, "ejections_total", cause) >= 1)
        ejections = {c: n for (_, c), n in scrape(address)["ejections_total"].items() if n}
        assert ejections.keys() == {cause}
        second.behaviour = label
        wait_until(lambda: value_of(address, "readmissions_total") >= 1)
    events = checked_events(path)
    failed = [event for event in events if event["name"].startswith("failed: batch")]
    assert failed
    assert all(event["args"]["error"] for event in failed)
    assert any("readmitted" in event["name"] for event in events)


def test_callback_errors_logged(teacher: ScriptedTeacher, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Callback):
        def on_batch(self, samples: int, waited_s: float) -> None:
            raise RuntimeError("of the user's own")

        def on_teacher_joined(self, teacher: str) -> None:
            raise RuntimeError("of the user's own")

    source, recorder = Batches(5), Recorder()
    with reader_of(source, teacher, callbacks=[Broken(), recorder]) as reader:
        check_epoch(source, list(reader))
        wait_until(lambda: len(recorder.of("on_teacher_joined")) == 1)
    assert len(recorder.of("on_batch")) == 5
    assert caplog.text.count("on_batch of callback") == 5
    assert "on_teacher_joined of callback" in caplog.text
    assert "RuntimeError: of the user's own" in caplog.text


def test_a_callback_may_close_the_reader(teacher: ScriptedTeacher) -> None:
    made, closed = threading.Event(), threading.Event()

    class Closes(Callback):
        def on_teacher_joined(self, teacher: str) -> None:
            assert made.wait(DEADLINE_S)
            reader.close()
            closed.set()

    reader = reader_of(Batches(5), teacher, callbacks=[Closes()])
    made.set()
    assert closed.wait(DEADLINE_S)
    with pytest.raises(UsageError, match="closed"):
        iter(reader)


# --- metrics

#: Metric -> values of the labels that tell its samples apart, but the student -> value.
Scraped = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def address() -> Iterator[str]:
    """An address for a listener with SO_REUSEADDR; nobody else gets its port."""
    with bind_socket("127.0.0.1", 0) as kept:
        yield f"127.0.0.1:{kept.getsockname()[1]}"


def scrape(address: str) -> Scraped:
    """What is served now; nothing before the engine listens."""
    found: Scraped = {}
    try:
        with urlopen(f"http://{address}/metrics", timeout=DEADLINE_S) as answer:
            text = answer.read().decode()
    except URLError:
        return found
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("student") == "job/0", sample
            found.setdefault(sample.name.removeprefix("edl_reader_"), {})[
                (labels.pop("service"), *labels.values())
            ] = sample.value
    return found


def value_of(address: str, name: str, *labels: str, service: str = "s") -> float:
    """The value of a metric; -1 where it is not served."""
    return scrape(address).get(name, {}).get((service, *labels), -1.0)


def test_calls_are_counted_and_drawn(teacher: ScriptedTeacher, address: str, path: Path) -> None:
    """Those that are late, cancelled, or refused are no samples."""
    labels = threading.Event()

    def answer(request: InferRequest) -> dict[str, Array]:
        if request.inputs["x"][0, 0] == 7:
            raise RequestRefused("not this one")
        if request.inputs["x"][0, 0] == 8:
            labels.wait(DEADLINE_S)
        return label(request)

    def call(value: int) -> Array:
        return np.full((ROWS, 3), value, np.float32)

    teacher.behaviour = answer
    options: dict[str, Any] = {"metrics_listen": address, "canaries": None, "trace": path}
    with reader_of((), teacher, **options) as reader, TeacherPool.of(reader) as pool:
        pool.label(call(1))
        with pytest.raises(PoisonBatch):
            pool.label(call(7))
        cancelled = pool.submit(call(8))
        with pytest.raises(LabelTimeout):
            pool.label(call(8), 0.2)
        wait_until(lambda: value_of(address, "calls_waiting") >= 1)
        assert cancelled.cancel()
        wait_until(lambda: sum(scrape(address)["calls_total"].values()) == 4)
        labels.set()
        pool.label(call(2))
        wait_until(lambda: sum(scrape(address)["calls_total"].values()) == 5)
        seen = scrape(address)
        pool.submit(call(3))
        assert list(reader) == []
    outcomes = {"answered": 2, "failed": 1, "late": 1, "cancelled": 1}
    assert seen["calls_total"] == {("s", outcome): n for outcome, n in outcomes.items()}
    assert seen["calls_waiting"] == {("s",): 0}
    assert seen["samples_delivered_total"] == {("s",): 2 * ROWS}
    drawn = Counter(
        e["args"]["outcome"]
        for e in checked_events(path)
        if e.get("cat") == "call" and e["ph"] == "b"
    )
    assert Counter(outcomes) <= drawn
    assert drawn.total() >= 6


def test_metrics_of_two_epochs(teacher: ScriptedTeacher, address: str, tmp_path: Path) -> None:
    teacher.parameters = {"content_id": "model-1"}
    store, source = LabelStore(tmp_path / "labels.edl", 64 << 20), Batches(20)
    with reader_of(source, teacher, metrics_listen=address, store=store) as reader:
        check_epoch(source, list(reader))
        wait_until(lambda: value_of(address, "store_written_total") == 20 * ROWS)
        check_epoch(source, list(reader))
        wait_until(lambda: value_of(address, "batches_delivered_total") == 40)
        seen = scrape(address)
    whole = {name: values[("s",)] for name, values in seen.items() if ("s",) in values}
    assert whole["samples_delivered_total"] == 40 * ROWS
    assert whole["store_hits_total"] == 20 * ROWS
    assert whole["store_misses_total"] <= 20 * ROWS
    assert whole["store_bytes"] >= Path(store.path).stat().st_size > 0
    assert whole["request_seconds_count"] == 20
    assert whole["request_seconds_sum"] > 0
    assert whole["data_epoch"] == 2
    assert whole["volume_bytes"] == whole["label_bytes"] == 0
    assert whole["requests_in_flight"] == whole["stragglers"] == 0
    for failure in ("resends", "discards", "poison_batches", "store_damaged", "store_dropped"):
        assert whole[f"{failure}_total"] == 0, failure
    assert seen["threshold_bytes"] == {
        ("s", "ut"): reader.config.upper_bytes,
        ("s", "lt"): reader.config.lower_bytes,
    }
    assert seen["teachers"] == {("s", "serving"): 1, ("s", "unreachable"): 0, ("s", "leaving"): 0}
    assert sum(seen["state"].values()) == 1
    assert set(seen["ejections_total"].values()) == {0}
    assert not [name for name in seen if name.startswith("ensemble_")]


def test_ensemble_weights(teacher: ScriptedTeacher, second: ScriptedTeacher, address: str) -> None:
    options: dict[str, Any] = {
        "service": {"a": 0.7, "b": 0.3},
        "teachers": {"a": [teacher.address], "b": [second.address]},
        "ensemble": EnsemblePolicy("tolerate", missing_after_s=0.2),
        "metrics_listen": address,
    }
    with reader_of(Batches(10), **options) as reader:

        def is_weighted(a: float, b: float) -> bool:
            """After another epoch, as a slow answer leaves a batch with one service."""
            list(reader)
            weights = [value_of(address, "ensemble_weight", service=name) for name in "ab"]
            return weights == pytest.approx([a, b])

        wait_until(lambda: is_weighted(0.7, 0.3))
        second.stop()
        wait_until(lambda: is_weighted(1.0, 0.0))
        seen = scrape(address)  # once: the figures of one moment
        (partly,) = seen["partly_labelled_batches_total"].values()
        forgone = [seen["forgone_batches_total"][name,] for name in "ab"]
        assert 0 < forgone[1] <= partly == sum(forgone)
        assert Counter(service for service, *_ in seen["want"]) == {"a": 1, "b": 1}


@pytest.mark.parametrize("taken", [True, False])
def test_unusable_address_is_an_error_of_the_loop(teacher: ScriptedTeacher, taken: bool) -> None:
    """A port that is taken, or one that other machines may read without credentials."""
    listen = teacher.address if taken else "0.0.0.0:0"
    error, words = (AddressInUse, "metrics") if taken else (UsageError, "insecure")
    with (
        reader_of(Batches(3), teacher, metrics_listen=listen) as reader,
        pytest.raises(error, match=words),
    ):
        list(reader)


# --- the timeline


def test_a_run_from_source_to_step(teacher: ScriptedTeacher, path: Path) -> None:
    work_s, step_s = 0.004, 0.002

    def work(request: InferRequest) -> dict[str, Array]:
        time.sleep(work_s)  # it is drawn
        return label(request)

    teacher.behaviour = work
    source = Batches(20)
    began = time.monotonic()
    with reader_of(source, teacher, trace=path) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            time.sleep(step_s)
    check_epoch(source, batches)
    events = checked_events(path)
    times = [event["ts"] for event in events if event["ph"] != "M"]
    assert began * 1e6 <= min(times) <= max(times) <= time.monotonic() * 1e6
    pulls = slices(events, "source: pulls")
    assert [pull["name"] for pull in pulls] == [f"pull {number}" for number in range(20)]
    requests = [e for e in events if e.get("args", {}).get("request") is not None]
    assert sorted(e["name"] for e in requests) == sorted(f"batch {n}" for n in range(20))
    assert all(e["dur"] >= work_s * 1e6 for e in requests)
    lanes = {track_names(events)[e["pid"], e["tid"]] for e in requests}
    assert all(lane.startswith(f"teachers: {teacher.address}") for lane in lanes)
    loop = slices(events, "student: training loop")
    steps = [e for e in loop if e["name"] == "step"]
    assert len(steps) == 19, "the last one ends outside of the loop"
    assert all(e["dur"] >= step_s * 1e6 for e in steps)
    assert "wait for 0" in [e["name"] for e in loop]
    volume = [e["args"]["value"] for e in events if e["name"] == "volume (bytes)"]
    assert max(volume) > 0
    assert f"{teacher.address} joined" in [e["name"] for e in events]
    assert slices(events, "student: state")
    assert events[-1]["name"] == "the end"

    whole, ready = lives(events), lives(events, "ready")
    assert whole.keys() == ready.keys() == set(range(20))
    for pull in pulls:
        began_us, ended_us = whole[int(pull["name"].removeprefix("pull "))]
        assert began_us == pytest.approx(pull["ts"] + pull["dur"], abs=1.0)
        assert ended_us - began_us >= work_s * 1e6, "no label is there sooner"
    for number, (ready_us, taken_us) in ready.items():
        assert whole[number][0] < ready_us <= taken_us == whole[number][1]
    wants = [e for e in events if e["ph"] == "i" and e["name"].startswith("want ")]
    assert wants
    assert all(want["args"]["reason"] for want in wants)


def test_hedges_are_drawn(teacher: ScriptedTeacher, second: ScriptedTeacher, path: Path) -> None:
    """One teacher falls silent: what it has is asked of the other, and it is ejected."""
    labels = threading.Event()

    def fall_silent(request: InferRequest) -> dict[str, Array]:
        if second.requests > 5:
            labels.wait(DEADLINE_S)
        return label(request)

    second.behaviour = fall_silent
    second.is_ready = lambda: second.requests <= 5 or labels.wait(DEADLINE_S)  # not let in before
    try:
        options: dict[str, Any] = {"trace": path, "upper_bytes": 4000}
        with reader_of(Batches(100_000), teacher, second, **options) as reader:
            for _ in reader:
                time.sleep(0.002)  # a training step
                if reader.stats.ejected:
                    break
            assert reader.stats.ejected_for == ("silent",)
            assert reader.stats.hedges > 0
    finally:
        labels.set()
    events = checked_events(path)
    names = track_names(events)
    hedges = {e["args"]["request"] for e in events if e["name"].startswith("hedge of request")}
    drawn = {e["args"]["request"] for e in events if e["ph"] == "X" and "request" in e["args"]}
    assert hedges
    assert hedges <= drawn
    (ejected,) = [e for e in events if e.get("args") == {"cause": "silent"}]
    assert names[ejected["pid"], ejected["tid"]] == f"teachers: {second.address}"


def test_the_next_engine_continues_the_trace(teacher: ScriptedTeacher, path: Path) -> None:
    """Pauses are drawn with their reason, and batches of an epoch that was left."""
    source, batches = Batches(100), []
    with reader_of(source, teacher, trace=path, upper_bytes=1000) as reader:
        for batch in reader:
            batches.append(batch)
            if len(batches) == 20:
                wait_until(lambda: '"wait for 0"' in path.read_text())
                os.kill(reader.engine_pid, signal.SIGKILL)
                wait_until(lambda: reader.stats.engine_restarts == 1)
            if len(batches) == 60:
                wait_until(lambda: reader.stats.state == "blocked")
        check_epoch(source, batches)
        wait_until(lambda: '"pull 99"' in path.read_text())
        assert events_of(path, ended=False), "it can be looked at while it grows"
        for _ in reader:
            wait_until(lambda: reader.stats.yielded > 102)
            break
    events = checked_events(path)
    pulls = slices(events, "source: pulls")
    names = [pull["name"] for pull in pulls]
    assert len(names) == len(set(names)), "none is drawn twice"
    assert sum(event["name"] == "process_name" for event in events) == 2 * 5
    assert {*range(50, 100)} <= lives(events).keys(), "those of the second engine"
    pauses = slices(events, "source: pauses")
    assert all("above ut = 1000" in pause["args"]["reason"] for pause in pauses)
    assert any(p["ts"] > pauses[0]["ts"] + pauses[0]["dur"] for p in pulls), "it went on"
    outcomes = [e["args"]["outcome"] for e in events if (e["ph"], e["name"]) == ("b", "batch")]
    assert set(outcomes) == {"delivered", "left"}
