"""The reader's metrics as Prometheus would read them, from a real engine."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from edl.distill_reader import DistilReader, EnsemblePolicy, LabelStore
from edl.errors import AddressInUse, PoisonBatch, RequestRefused, RetryableError, UsageError
from edl.proto.arena import Array
from edl.proto.tensors import InferRequest
from edl.tests.distill_reader.test_reader import ROWS, Batches, check_epoch, until
from edl.tests.scripted_teacher import ScriptedTeacher, label

#: Metric -> values of the labels that tell its samples apart, but the student -> value.
Told = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def other() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


@pytest.fixture
def address() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def scrape(address: str) -> Told:
    """What is told now; nothing before the engine listens."""
    found: Told = {}
    try:
        with urlopen(f"http://{address}/metrics", timeout=5) as answer:
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


def told(address: str, name: str, *labels: str, service: str = "s") -> float:
    """The value of a metric; -1 where it is not told."""
    return scrape(address).get(name, {}).get((service, *labels), -1.0)


def reader_of(source: Any, listen: str, *teachers: ScriptedTeacher, **options: Any) -> DistilReader:
    options.setdefault("teachers", [teacher.address for teacher in teachers])
    options.setdefault("service", "s")
    return DistilReader(source, metrics_listen=listen, **options)


def test_what_is_served(teacher: ScriptedTeacher, address: str) -> None:
    source = Batches(20)
    with reader_of(source, address, teacher) as reader:
        check_epoch(source, list(reader))
        until(lambda: told(address, "batches_delivered_total") == 20)
        seen = scrape(address)
    whole = {name: values[("s",)] for name, values in seen.items() if ("s",) in values}
    assert whole["samples_delivered_total"] == 20 * ROWS
    assert whole["request_seconds_count"] == 20
    assert whole["request_seconds_sum"] > 0
    assert whole["data_epoch"] == 1
    assert whole["volume_bytes"] == whole["label_bytes"] == 0
    assert whole["requests_in_flight"] == whole["stragglers"] == 0
    for counted in (
        *("resends", "discards", "hedges", "readmissions", "forgone_batches", "poison_batches"),
        *("relabelled_batches", "unlabelled_batches", "partly_labelled_batches"),
    ):
        assert whole[f"{counted}_total"] == 0, counted
    for waited in ("starved", "blocked", "source_wait"):
        assert whole[f"{waited}_seconds_total"] >= 0
    assert seen["threshold_bytes"] == {
        ("s", "ut"): reader.config.upper_bytes,
        ("s", "lt"): reader.config.lower_bytes,
    }
    assert seen["teachers"] == {("s", "serving"): 1, ("s", "unreachable"): 0, ("s", "leaving"): 0}
    assert sum(seen["state"].values()) == 1
    assert seen["ejections_total"] == {
        ("s", cause): 0 for cause in ("failed", "silent", "wrong", "lied")
    }
    assert not [name for name in seen if name.startswith(("store_", "ensemble_"))]


def test_each_teacher_has_series_of_its_own_for_as_long_as_it_is_there(
    teacher: ScriptedTeacher, other: ScriptedTeacher, address: str
) -> None:
    source = Batches(40)
    names = ("samples_per_second", "requests_in_flight", "window")
    with reader_of(source, address, teacher, other) as reader:
        until(lambda: len(scrape(address).get("teacher_window", {})) == 2)
        check_epoch(source, list(reader))
        until(lambda: told(address, "batches_delivered_total") == 40)
        seen = scrape(address)
        both = {("s", teacher.address), ("s", other.address)}
        for name in names:
            assert seen[f"teacher_{name}"].keys() == both, name
        assert min(seen["teacher_samples_per_second"].values()) > 0
        assert min(seen["teacher_window"].values()) >= 2
        quantiles = seen["teacher_turnaround_seconds"]
        addresses = {teacher.address, other.address}
        assert quantiles.keys() == {
            ("s", q, one) for one in addresses for q in ("0.5", "0.95", "0.99")
        }
        for one in addresses:
            assert 0 < quantiles["s", "0.5", one] <= quantiles["s", "0.99", one]
        other.stop()
        check_epoch(source, list(reader))  # who is asked nothing is not missed
        until(lambda: len(scrape(address).get("teacher_window", {})) == 1)
        seen = scrape(address)
        for name in (*names, "turnaround_seconds"):
            assert {labels[-1] for labels in seen[f"teacher_{name}"]} == {teacher.address}, name


def test_ejections_by_cause_and_readmissions(
    teacher: ScriptedTeacher, other: ScriptedTeacher, address: str
) -> None:
    def answers_nonsense(request: InferRequest) -> dict[str, Array]:
        return {name: np.full_like(labels, np.nan) for name, labels in label(request).items()}

    def fails(request: InferRequest) -> dict[str, Array]:
        raise RetryableError("not now")

    source = Batches(10)
    for cause, behaviour in (("wrong", answers_nonsense), ("failed", fails)):
        other.behaviour = behaviour
        with reader_of(source, address, teacher, other) as reader:
            while not reader.stats.ejected:
                check_epoch(source, list(reader))
            until(lambda: told(address, "ejections_total", cause) >= 1)  # noqa: B023
            ejections = {c: n for (_, c), n in scrape(address)["ejections_total"].items() if n}
            assert ejections.keys() == {cause}
            other.behaviour = label
            until(lambda: told(address, "readmissions_total") >= 1, 20.0)


def test_poison_batches_and_those_without_labels(teacher: ScriptedTeacher, address: str) -> None:
    def refuses_one(request: InferRequest) -> dict[str, Array]:
        if request.inputs["x"].flat[0] == source.at(3).flat[0]:
            raise RequestRefused("it does not like this one")
        return label(request)

    source = Batches(10)
    teacher.behaviour = refuses_one
    with reader_of(source, address, teacher) as reader:
        with pytest.raises(PoisonBatch):
            list(reader)
        until(lambda: told(address, "poison_batches_total") == 1)
    lost = {"no_teacher": "hard_only", "no_teacher_grace_s": 0.1}
    with reader_of(source, address, teachers=["127.0.0.1:9"], **lost) as reader:
        assert all(soft is None for _, _, soft in reader)
        until(lambda: told(address, "unlabelled_batches_total") == 10)
        assert told(address, "forgone_batches_total") == 10


def test_what_a_store_does(teacher: ScriptedTeacher, address: str, tmp_path: Path) -> None:
    teacher.parameters = {"content_id": "model-1"}
    store, source = LabelStore(tmp_path / "labels.edl", 64 << 20), Batches(10)
    with reader_of(source, address, teacher, store=store) as reader:
        check_epoch(source, list(reader))
        until(lambda: told(address, "store_written_total") == 10 * ROWS)
        check_epoch(source, list(reader))
        until(lambda: told(address, "store_hits_total") == 10 * ROWS)
        seen = scrape(address)
    assert seen["store_misses_total"][("s",)] <= 10 * ROWS
    assert seen["store_bytes"][("s",)] >= Path(store.path).stat().st_size > 0
    for counted in ("evicted", "damaged", "dropped"):
        assert seen[f"store_{counted}_total"] == {("s",): 0}


def test_the_weights_of_an_ensemble(
    teacher: ScriptedTeacher, other: ScriptedTeacher, address: str
) -> None:
    options: dict[str, Any] = {
        "service": {"a": 0.7, "b": 0.3},
        "teachers": {"a": [teacher.address], "b": [other.address]},
        "ensemble": EnsemblePolicy("tolerate", missing_after_s=0.2),
    }
    with reader_of(Batches(10), address, **options) as reader:
        list(reader)
        until(lambda: told(address, "ensemble_weight", service="a") == pytest.approx(0.7))
        assert told(address, "ensemble_weight", service="b") == pytest.approx(0.3)
        other.stop()
        list(reader)
        until(lambda: told(address, "ensemble_weight", service="b") == 0)
        assert told(address, "ensemble_weight", service="a") == pytest.approx(1.0)
        partly = told(address, "partly_labelled_batches_total", service="a+b")
        assert 0 < partly == told(address, "forgone_batches_total", service="b")
        services = Counter(service for service, *_ in scrape(address)["want"])
        assert services == {"a": 1, "b": 1}


def test_a_port_that_is_taken_is_told_to_the_training_loop(teacher: ScriptedTeacher) -> None:
    with (
        reader_of(Batches(3), teacher.address, teacher) as reader,
        pytest.raises(AddressInUse, match="metrics"),
    ):
        list(reader)


def test_other_machines_may_not_read_them_by_default(teacher: ScriptedTeacher) -> None:
    with (
        reader_of(Batches(3), "0.0.0.0:0", teacher) as reader,
        pytest.raises(UsageError, match="insecure"),
    ):
        list(reader)
