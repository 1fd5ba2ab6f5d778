"""Whole meshes of real processes, with teachers whose speed the test commands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.coordinator.heartbeat import BEATS_PER_TTL
from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh, TeacherSpec
from edl.scheduler.leadership import grace_s
from edl.tests.system.coordinator_process import LEASES_ONLY, Coordinator, Members, ready, serve
from edl.tests.system.slow_network import FEATURES, MODEL, SECONDS_VARIABLE, labels_of

ROWS = 8
TTL_S = 2.0
#: Of a manager that has just begun to lead, or whose Redis was away; if it takes a teacher from
#: anybody, it is then.
GRACE_S = grace_s(TTL_S, BEATS_PER_TTL)
#: More batches than any test has time for.
FOR_EVER = 1 << 40

SPEC = TeacherSpec("slow", MODEL, ttl_s=TTL_S)


class Batches:
    """A re-iterable of (x, number) batches, each different and known.

    Args:
        count: of an epoch; without it, an epoch goes on until its `rest` is asked for.
    """

    def __init__(self, count: int = FOR_EVER) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        number = 0
        while number < self.count:
            yield self.at(number), np.full(ROWS, number)
            number += 1
        self.count = number

    def end(self) -> None:
        """Let an epoch without a count end; from then on `count` is what there was."""
        self.count = 0

    def rest(self, iterator: Iterator[Any], for_s: float = 0.5) -> list[Any]:
        """The end of an epoch without a count: batches `for_s` seconds, in which all would show.

        From then on `count` is what there was.
        """
        batches, end = [], time.monotonic() + for_s
        while time.monotonic() < end:
            batches.append(next(iterator))
        self.end()
        return [*batches, *iterator]

    @staticmethod
    def at(number: int) -> Any:
        values = np.arange(ROWS * FEATURES, dtype=np.float32) + 1000 * number
        return values.reshape(ROWS, FEATURES)

    def check(self, batches: list[Any]) -> None:
        """Each batch once, in order, with the labels of that batch, bit for bit."""
        assert [int(numbers[0]) for _, numbers, _ in batches] == list(range(self.count))
        for x, numbers, soft in batches:
            np.testing.assert_array_equal(x, self.at(int(numbers[0])))
            np.testing.assert_array_equal(soft, labels_of(x))


@pytest.fixture
def set_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Commands the seconds per sample of every teacher of the test."""
    file = tmp_path / "seconds"

    def set_pace(seconds_per_sample: float) -> None:
        new = file.with_suffix(".new")
        new.write_text(str(seconds_per_sample))
        new.replace(file)  # at once: a teacher reads either the old or the new one

    set_pace(0.0)
    monkeypatch.setenv(SECONDS_VARIABLE, str(file))
    return set_pace


@pytest.fixture
def mesh(set_pace: Callable[[float], None], tmp_path: Path) -> Iterator[LocalMesh]:
    """A coordinator; the test adds its teachers."""
    with LocalMesh(log_dir=tmp_path, coordinator_options=["--ttl", str(TTL_S)]) as mesh:
        yield mesh


def add_teachers(mesh: LocalMesh, *names: str) -> None:
    """Start teachers side by side and wait until each serves."""
    for name in names:
        mesh.start_teacher(name, SPEC)
    for name in names:
        mesh.wait_ready(name)


def is_busy(reader: DistilReader, teacher: str) -> bool:
    """Whether a teacher has requests in flight at this moment: figures may be a little old."""
    reader._pipeline.engine.ask_for_figures()
    return dict(reader.stats.in_flight).get(teacher, 0) > 0


@pytest.fixture
def coordinator() -> Iterator[Coordinator]:
    process = serve("--redis-port", 0, *LEASES_ONLY)
    yield ready(process)
    process.stop()


@pytest.fixture
def members(coordinator: Coordinator) -> Iterator[Members]:
    with ExitStack() as undo:
        yield Members(coordinator.url, undo)
