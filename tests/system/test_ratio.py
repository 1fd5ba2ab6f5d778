"""The number of teachers follows n = ceil(t_t / t_s) and the buffer, never the source."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.system.conftest import ROWS, Batches, add_teachers

STEP_S = 0.04
T_S = STEP_S / ROWS


class Training(threading.Thread):
    """A student whose step takes `STEP_S`, until it is told to stop."""

    def __init__(self, reader: DistilReader) -> None:
        super().__init__(daemon=True)
        self.reader = reader
        self.stop = threading.Event()

    def run(self) -> None:
        for _ in self.reader:
            if self.stop.wait(STEP_S):
                return


def student_status(mesh: LocalMesh) -> dict[str, Any]:
    """What `edl status --json` says of the one student."""
    command = [sys.executable, "-P", "-m", "edl", "status", "--json", "--coordinator", mesh.url]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    (service,) = json.loads(output)["services"]
    (student,) = service["students"]
    return dict(student)


def wait_for_needed(mesh: LocalMesh, needed: int, timeout_s: float = 20.0) -> dict[str, Any]:
    deadline = time.monotonic() + timeout_s
    while (student := student_status(mesh))["needed"] != needed:
        assert time.monotonic() < deadline, f"n is {student['needed']}, not {needed}: {student}"
    return student


@pytest.mark.serial
def test_n_triples_when_a_teacher_is_throttled_to_a_third(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a")
    set_pace(0.8 * T_S)
    with DistilReader(Batches(100_000), service="slow", coordinator=mesh.url) as reader:
        training = Training(reader)
        training.start()
        try:
            assert wait_for_needed(mesh, 1)["want"] == 1
            set_pace(3 * 0.8 * T_S)
            assert wait_for_needed(mesh, 3)["want"] >= 3
        finally:
            training.stop.set()
            training.join(10)


class SlowSource(Batches):
    """Yields a batch only every tenth of a second: slower than step and teacher."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            time.sleep(0.1)
            yield batch


@pytest.mark.serial
def test_a_slow_source_never_raises_the_want(
    mesh: LocalMesh, set_pace: Callable[[float], None]
) -> None:
    add_teachers(mesh, "a", "b", "c")
    set_pace(0.8 * T_S)
    wants = set()
    with DistilReader(SlowSource(60), service="slow", coordinator=mesh.url) as reader:
        for _ in reader:
            wants.add(reader.stats.want)
        stats = reader.stats
    assert wants <= {0, 1}
    assert stats.source_wait_s > 1.0, "the wait is told as the source's"
    assert stats.starved_s < stats.source_wait_s
