"""`kill -9` of a program that has started others, at any moment: nothing of it stays."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from edl.benchmarks.paced.teachers import CHEAP, paced
from edl.mesh.local import LocalMesh
from edl.tests.runtime.programs import runs
from edl.tests.system.coordinator_process import edl_output
from edl.tests.system.teacher_process import unique
from edl.tests.system.test_students import JOB_FILE
from edl.tests.waiting import wait_until

NIGHTLY = os.environ.get("EDL_TEST_TIER") == "nightly"
#: Moments at which each program is killed.
MOMENTS = 50 if NIGHTLY else 2
#: Orphans have 12 s to end; this machine may be busy.
GONE_S = 60.0
#: Most programs have started all their processes by then.
LATEST_S = 12.0

EXAMPLES = Path(__file__).parents[2] / "examples"
MESH = "services: {spirals: {model: 'spirals_teacher:network', teachers: 2}}\n"
JOB = "kind: job\nname: killed\ncommand: sleep 1000\nmax_nodes: 2\n"


def children() -> set[int]:
    """The processes below this one; it is the parent of orphans."""
    return {one.pid for one in psutil.Process().children(recursive=True) if runs(one.pid)}


def describe(pid: int) -> str:
    try:
        return " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return f"process {pid}, which has ended"


def of_up(_: LocalMesh, folder: Path) -> tuple[object, ...]:
    file = folder / "mesh.yaml"
    file.write_text(f"folder: {EXAMPLES}\n{MESH}")
    return "up", file, "--keep"


def of_local_agent(mesh: LocalMesh, _: Path) -> tuple[object, ...]:
    service = ("--service", "killed", "--model", CHEAP, "--teachers", "min=1,max=2")
    options = " ".join(map(str, paced(0.01)))
    return "agent", "--local", *service, "--redis", mesh.url, "--teacher-options", options


def of_jobs(mesh: LocalMesh, folder: Path) -> tuple[object, ...]:
    file = folder / "job.yaml"
    file.write_text(JOB)
    edl_output("apply", "-f", file, url=mesh.url)
    return "agent", "jobs", "--slots", 2, "--folder", folder / "jobs", "--redis", mesh.url


def of_node(_: LocalMesh, folder: Path) -> tuple[object, ...]:
    return "student", "train", JOB_FILE, "--checkpoint", folder / "checkpoints", "--steps", 10**6


def of_demo(_: LocalMesh, folder: Path) -> tuple[object, ...]:
    return "demo", "--quick", "--picture", folder / "demo.png"


PROGRAMS = [of_up, of_local_agent, of_jobs, of_node, of_demo]


@pytest.mark.timeout(MOMENTS * 100)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_nothing_outlives_a_killed_program(
    program: Callable[[LocalMesh, Path], tuple[object, ...]],
    shared_mesh: LocalMesh,
    tmp_path: Path,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("EDL_QUEUE", unique("killed"))
    words = program(shared_mesh, tmp_path)
    before = children()
    for _ in range(MOMENTS):
        moment_s = rng.uniform(0.0, LATEST_S)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "edl", *map(str, words)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(moment_s)
        process.kill()  # it alone
        process.wait()
        try:
            wait_until(lambda: not children() - before, GONE_S)
        except AssertionError:
            left = [describe(pid) for pid in children() - before]
            raise AssertionError(f"killed after {moment_s:.2f} s, it left {left}") from None
