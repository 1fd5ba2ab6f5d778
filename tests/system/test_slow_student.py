"""A student slower than its teachers: its buffer is bounded, and its event log says by what."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from edl.benchmarks.pacing import ROWS, SERVICE, Repeated, batch
from edl.benchmarks.pacing.student import PacedStudent
from edl.benchmarks.pacing.teachers import CHEAP, paced
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec

BATCH_S, STEP_S = 0.02, 0.1
TEACHERS, WINDOW = 2, 2
#: `ut` and `lt`, in batches.
UPPER, LOWER = 8, 4
LABEL_BYTES = ROWS * 10 * 4
#: Pulls that were granted before a pause have begun by then.
GRANTED_S = 0.05
FOR_EVER = 1 << 40


@pytest.mark.serial
@pytest.mark.parametrize(
    "seconds", [6.0, pytest.param(60.0, marks=pytest.mark.nightly)], ids=["short", "a minute"]
)
def test_the_volume_stays_under_ut_and_pulls_stop_and_go_on(seconds: float, tmp_path: Path) -> None:
    trace, weight = tmp_path / "run.json", batch().nbytes + LABEL_BYTES
    student = PacedStudent(STEP_S)
    with LocalMesh(log_dir=tmp_path) as mesh:
        for name in "ab"[:TEACHERS]:
            mesh.add_teacher(name, TeacherSpec(SERVICE, CHEAP, options=paced(BATCH_S)))
        with DistilReader(
            Repeated(batch(), count=FOR_EVER),
            service=SERVICE,
            coordinator=mesh.url,
            teachers_min=TEACHERS,
            window=WINDOW,
            window_max=WINDOW,
            upper_bytes=UPPER * weight,
            lower_bytes=LOWER * weight,
            trace=trace,
        ) as reader:
            student.train(for_a_while(reader, seconds))
            assert reader.stats.blocked_s > seconds / 2
    events: list[dict[str, Any]] = json.loads(trace.read_text())
    pulls = [event for event in events if event["name"].startswith("pull ")]
    heaviest = max(pull["args"]["bytes"] for pull in pulls) + LABEL_BYTES
    volumes = [event["args"]["value"] for event in events if event["name"] == "volume (bytes)"]
    assert UPPER * weight < max(volumes) <= UPPER * weight + TEACHERS * WINDOW * heaviest
    *pauses, _ = [event for event in events if event["name"] == "pulling pauses"]
    assert len(pauses) > seconds / 2, "by and by: the last one ended with the reader"
    for pause in pauses:
        volume, upper = numbers(r"(\d+) bytes .* above ut = (\d+)", pause["args"]["reason"])
        assert volume > upper == UPPER * weight
        volume, lower = numbers(r"(\d+) bytes .* below lt = (\d+)", pause["args"]["goes_on"])
        assert volume < lower == LOWER * weight
        begin, end = pause["ts"] + GRANTED_S * 1e6, pause["ts"] + pause["dur"]
        assert not [pull for pull in pulls if begin < pull["ts"] < end]


def for_a_while(reader: DistilReader, seconds: float) -> Iterator[object]:
    """Its batches for so long, from the first one on: a busy machine takes its time to start."""
    end_s = math.inf
    for taken in reader:
        end_s = min(end_s, time.monotonic() + seconds)
        yield taken
        if time.monotonic() > end_s:
            return


def numbers(pattern: str, text: str) -> tuple[int, ...]:
    """What `pattern` finds in `text`, which has to fit."""
    found = re.fullmatch(pattern, text)
    assert found is not None, text
    return tuple(map(int, found.groups()))
