"""A job that is started again asks for as many teachers as it needed, before its first batch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from edl.distill_reader import DistilReader
from edl.distill_reader.engine.profile_file import ProfileFile
from edl.mesh.local import LocalMesh
from edl.tests.ground.programs import wait_for
from edl.tests.system.conftest import ROWS, Batches, add_teachers

T_T_S = 0.004
T_S_S = 0.0015


def reader_of(mesh: LocalMesh, source: Batches, job: str, folder: Path) -> DistilReader:
    return DistilReader(source, service="slow", coordinator=mesh.url, job=job, profiles=folder)


def test_the_second_start_of_a_job_asks_for_n_at_once(
    mesh: LocalMesh, set_pace: Callable[[float], None], tmp_path: Path
) -> None:
    folder = tmp_path / "profiles"
    add_teachers(mesh, "a")
    set_pace(T_T_S)
    source = Batches(80)
    with reader_of(mesh, source, "named", folder) as reader:
        batches = []
        for batch in reader:
            batches.append(batch)
            time.sleep(T_S_S * ROWS)  # the step
    source.check(batches)
    profile = ProfileFile(folder, "slow", "named").read()
    assert profile is not None
    assert profile.needed >= 2, "ceil(4 / 1.5), on a machine that may be busy"
    for job, wanted in (("named", profile.needed), ("another", 1)):
        with reader_of(mesh, source, job, folder) as reader:
            wait_for(lambda: bool(reader.stats.teachers))
            assert reader.stats.delivered == 0
            assert reader.stats.want == wanted
