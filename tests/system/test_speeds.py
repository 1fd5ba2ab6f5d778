"""Teachers at 1x, 1x and 4x the speed serve batches 1:1:4, as real processes."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from edl.distill_reader import DistilReader
from edl.mesh.local import LocalMesh
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import ROWS, SPEC, Batches
from edl.tests.system.slow_network import FACTOR_VARIABLE

#: The fastest takes so long for a batch, the others four times that: long enough that what a batch
#: costs besides, on a busy machine, hardly counts.
BATCH_S = 0.06
PACE_S = BATCH_S / ROWS
SLOWER = {"a": 4, "b": 4, "fast": 1}
TOLERANCE = 0.15


def add_teachers(mesh: LocalMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, factor in SLOWER.items():
        monkeypatch.setenv(FACTOR_VARIABLE, str(factor))  # the process takes it when it starts
        mesh.start_teacher(name, SPEC)
    for name in SLOWER:
        mesh.wait_ready(name)


@pytest.mark.serial
def test_unequal_teachers_serve_in_proportion_to_their_speeds(
    mesh: LocalMesh, set_pace: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_teachers(mesh, monkeypatch)
    set_pace(PACE_S)
    source = Batches(200)
    reader = DistilReader(
        source, service="slow", coordinator=mesh.url, teachers_min=3, teachers_max=3
    )
    with reader:
        iterator = iter(reader)
        batches = [next(iterator)]
        while len(reader.stats.teachers) < len(SLOWER):
            batches.append(next(iterator))
        settled, started = len(batches), time.monotonic()
        before = dict(reader.stats.served)
        batches += iterator
        seconds = time.monotonic() - started
        wait_for(lambda: sum(count for _, count in reader.stats.served) == source.count)
        served, t_t_s = dict(reader.stats.served), reader.stats.t_t_s
    source.check(batches)
    for name in "ab":
        assert (served["fast"] - before["fast"]) / (served[name] - before[name]) == pytest.approx(
            4, rel=TOLERANCE
        )
    assert t_t_s == pytest.approx(2 * PACE_S, rel=0.3), "the harmonic mean: speeds add up"
    assert (source.count - settled) / seconds > 0.8 * 1.5 / BATCH_S, "as much as 6 of the slow ones"
