"""Event files of a training, for TensorBoard."""

from __future__ import annotations

import struct
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from tensorboardX.proto.event_pb2 import Event  # which loads torch

from edl.runtime.errors import UsageError
from edl.student.show.events import EventFiles
from edl.tests.student.show.test_show import STEP

pytestmark = pytest.mark.system


def events(folder: Path) -> list[Event]:
    found = []
    for file in sorted(folder.iterdir()):  # as TensorBoard reads them
        data, at = file.read_bytes(), 0
        while at < len(data):
            (length,) = struct.unpack_from("<Q", data, at)
            found.append(Event.FromString(data[at + 12 : at + 12 + length]))
            at += length + 16
    return found


def test_event_files_hold_each_step_of_rank_0(tmp_path: Path) -> None:
    elsewhere = EventFiles(str(tmp_path / "none"))
    elsewhere.begin(1, 2, 0, 0)
    elsewhere.progress(1, STEP)
    elsewhere.close()
    assert events(tmp_path / "none") == [], "rank 0 is at another node"
    files = EventFiles(str(tmp_path / "events"))
    files.begin(1, 2, 0, 100)
    for step in (1, 2, 2, 3):
        files.progress(0, replace(STEP, step=step))
        files.progress(1, replace(STEP, step=step, rows=10, losses={"total": 5.5}))
    files.close()
    values = [
        (event.step, one.tag, one.simple_value)
        for event in events(tmp_path / "events")
        for one in event.summary.value
    ]
    steps = [step for step, tag, _ in values if tag == "loss/total"]
    assert steps == [1, 2, 3]
    told = {tag: value for step, tag, value in values if step == 3}
    assert told["loss/total"] == pytest.approx(2.5)
    assert told["metrics/accuracy"] == pytest.approx(0.875)
    assert (told["world/ranks"], told["world/total_batch"], told["labels/teachers"]) == (2, 64, 6)
    assert told["speed/samples_per_s"] == 4096
    assert told["speed/step_s/rank_1"] == pytest.approx(0.2)


def test_steps_that_are_redone_make_older_ones_void(tmp_path: Path) -> None:
    files = EventFiles(str(tmp_path))
    files.begin(1, 1, 0, 0)
    for step in range(1, 6):
        files.progress(0, replace(STEP, step=step))
    files.begin(2, 1, 3, 0)
    files.progress(0, replace(STEP, step=3))  # told late
    files.progress(0, replace(STEP, step=4))
    files.close()
    found = events(tmp_path)
    assert [one.step for one in found if one.session_log.status == 1] == [4]
    steps = [one.step for one in found if "loss/hard" in {part.tag for part in one.summary.value}]
    assert steps == [1, 2, 3, 4, 5, 4]


def test_a_full_disk_blocks_no_training_and_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[str] = []

    def full_at_first(path: str) -> BinaryIO:
        opened.append(path)
        return open(path if len(opened) > 1 else "/dev/full", "wb")

    monkeypatch.setattr("tensorboardX.record_writer.open_file", full_at_first)
    files = EventFiles(str(tmp_path), pause_s=0)
    files.begin(1, 1, 0, 0)
    for step in range(1, 400):  # more than a file keeps in memory
        files.progress(0, replace(STEP, step=step))
    files.close()
    assert f"event files cannot be written to {tmp_path}: " in caplog.text
    assert len(opened) == 2
    assert [one.step for one in events(tmp_path)][-1] == 399


def test_unusable_place_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to"):
        EventFiles(str(tmp_path / "file" / "events"))
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError, match=r"pip install .*\[events\]"):
        EventFiles(str(tmp_path / "events"))
