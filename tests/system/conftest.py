"""Whole meshes of real processes, with teachers whose speed the test commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edl.mesh.local import LocalMesh, TeacherSpec
from edl.tests.system.slow_network import FEATURES, MODEL, SECONDS_VARIABLE, labels_of

ROWS = 8
TTL_S = 2.0

SPEC = TeacherSpec("slow", MODEL, ttl_s=TTL_S)


class Batches:
    """A re-iterable of (x, number) batches, each different and known."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield self.at(number), np.full(ROWS, number)

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
