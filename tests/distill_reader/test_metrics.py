"""The reader's metrics as Prometheus would read them, from a real engine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from edl.distill_reader import DistilReader
from edl.errors import AddressInUse, UsageError
from edl.tests.distill_reader.test_reader import ROWS, Batches, check_epoch, until
from edl.tests.scripted_teacher import ScriptedTeacher

LABELS = {"service": "s", "student": "job/0"}


@pytest.fixture
def teacher() -> Iterator[ScriptedTeacher]:
    teacher = ScriptedTeacher()
    yield teacher
    teacher.stop()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def scrape(address: str) -> dict[str, dict[str, float]]:
    """Metric -> what tells its samples apart besides `LABELS` -> value."""
    with urlopen(f"http://{address}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.items() >= LABELS.items(), sample
            rest = [value for key, value in sample.labels.items() if key not in LABELS]
            found.setdefault(sample.name, {})["".join(rest)] = sample.value
    return found


def reader_of(teacher: ScriptedTeacher, listen: str, source: Batches) -> DistilReader:
    return DistilReader(source, service="s", teachers=[teacher.address], metrics_listen=listen)


def test_what_is_served(teacher: ScriptedTeacher) -> None:
    address = f"127.0.0.1:{free_port()}"
    source = Batches(20)
    with reader_of(teacher, address, source) as reader:
        check_epoch(source, list(reader))
        total = "edl_reader_batches_delivered_total"
        until(lambda: scrape(address).get(total, {}).get("") == 20)
        told = scrape(address)
    assert told["edl_reader_samples_delivered_total"][""] == 20 * ROWS
    assert told["edl_reader_request_seconds_count"][""] == 20
    assert told["edl_reader_request_seconds_sum"][""] > 0
    assert told["edl_reader_threshold_bytes"]["ut"] == reader.config.upper_bytes
    assert told["edl_reader_threshold_bytes"]["lt"] == reader.config.lower_bytes
    assert told["edl_reader_teachers"] == {"serving": 1, "unreachable": 0, "leaving": 0}
    assert told["edl_reader_data_epoch"][""] == 1
    assert told["edl_reader_volume_bytes"][""] == told["edl_reader_label_bytes"][""] == 0
    assert sum(told["edl_reader_state"].values()) == 1
    assert {"edl_reader_resends_total", "edl_reader_discards_total"} <= told.keys()
    for state in ("starved", "blocked", "source_wait"):
        assert f"edl_reader_{state}_seconds_total" in told


def test_a_port_that_is_taken_is_told_to_the_training_loop(teacher: ScriptedTeacher) -> None:
    with (
        reader_of(teacher, teacher.address, Batches(3)) as reader,
        pytest.raises(AddressInUse, match="metrics"),
    ):
        list(reader)


def test_other_machines_may_not_read_them_by_default(teacher: ScriptedTeacher) -> None:
    with (
        reader_of(teacher, "0.0.0.0:0", Batches(3)) as reader,
        pytest.raises(UsageError, match="insecure"),
    ):
        list(reader)
