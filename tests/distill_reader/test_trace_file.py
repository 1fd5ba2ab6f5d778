"""The file of a timeline: what was cut off, what goes on, what is too large, a full disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from edl.distill_reader.trace_file import TraceFile, create_trace, older
from edl.tests.distill_reader.traces import Event, events_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def event(number: int) -> Event:
    return {"name": f"e{number}", "ph": "i", "pid": 1, "tid": 0, "ts": number}


def names(events: list[Event]) -> list[str]:
    return [event["name"] for event in events]


@pytest.mark.parametrize("cut", range(1, 60))
def test_an_event_that_is_cut_off_is_dropped(path: Path, cut: int) -> None:
    create_trace(path)
    file = TraceFile(path, 1 << 20)
    for number in range(3):
        file.add(event(number))
    file.flush()
    whole = path.read_bytes()  # as a process that is killed leaves it
    file.close(event(3))
    path.write_bytes(whole[:-cut])
    again = TraceFile(path, 1 << 20)
    again.add(event(7))
    again.close(event(8))
    told = names(events_of(path))
    assert told == [f"e{number}" for number in range(len(told) - 2)] + ["e7", "e8"]
    assert len(told) >= 3, "no more is lost than the event that was cut"


def test_an_array_that_was_ended_goes_on(path: Path) -> None:
    create_trace(path)
    for number in range(3):
        file = TraceFile(path, 1 << 20)
        file.add(event(number))
        file.close({**event(number), "name": "the end"})
    assert names(events_of(path)) == ["e0", "e1", "e2", "the end"]


def test_a_new_trace_forgets_the_one_before(path: Path) -> None:
    for _ in range(2):
        create_trace(path)
        older(path).touch()
    create_trace(path)
    assert path.read_text() == "[\n"
    assert not older(path).exists()


def test_a_full_disk_ends_the_trace_and_nothing_else(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    create_trace(path)
    file = TraceFile(path, 1 << 20)
    with monkeypatch.context() as patch:
        patch.setattr("edl.distill_reader.trace_file.os.write", full)
        file.add(event(0))
        file.flush()
    file.add(event(1))
    file.close(event(2))
    assert caplog.text.count("ends here: [Errno 28]") == 1
    assert events_of(path, ended=False) == []


def test_every_part_of_a_trace_is_a_file_like_the_first(path: Path) -> None:
    """Two parts are kept, each of them whole, with the names of its tracks and the rights."""
    create_trace(path)
    os.chmod(path, 0o644)
    trace, number = TraceFile(path, 4000), 0
    trace.name_track("process_name", "source", 7)
    while not older(path).exists() or number < 100:
        trace.add({**event(number), "args": {"text": "x" * 100}})
        trace.flush()
        number += 1
    trace.close(event(number))
    parts = [events_of(older(path)), events_of(path)]
    assert all(names(part)[0] == "process_name" for part in parts)
    assert names(parts[1])[-1] == f"e{number}", "the latest are always there"
    assert path.stat().st_size + older(path).stat().st_size <= 4000 + 2 * 200
    assert path.stat().st_mode & 0o777 == older(path).stat().st_mode & 0o777 == 0o644


def test_failed_rotation_ends_the_trace_once(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    create_trace(path)
    trace = TraceFile(path, 4000)
    older(path).mkdir()
    for _ in range(100):
        trace.add({"name": "x" * 100})
        trace.flush()
    trace.close({"name": "the end"})
    assert caplog.text.count("ends here") == 1
    older(path).rmdir()
    events_of(path)
