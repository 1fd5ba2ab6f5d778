"""Processes of the demo and of chaos runs: cores, core-seconds, leftovers."""

from __future__ import annotations

import mmap
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edl.mesh.chaos import monitoring
from edl.mesh.chaos.monitoring import RUN_ID_VARIABLE, LeftoverCheck
from edl.mesh.cores import available_cores, on_cores, pin_process
from edl.mesh.demo.cpu_cores import CoreAssignment, CpuMeter
from edl.runtime.supervise import start
from edl.tests.runtime.programs import DOCILE, WAIT_S, python
from edl.tests.waiting import DEADLINE_S, wait_until

pytestmark = pytest.mark.system
SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins no processes"
)


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@needs_affinity
def test_children_start_on_the_named_cores_and_we_stay_where_we_were() -> None:
    assert CoreAssignment.divide({5, 2, 7}) == CoreAssignment(frozenset({2}), frozenset({5, 7}))
    assert CoreAssignment.divide({4}) == CoreAssignment(frozenset({4}), frozenset({4}))
    before = os.sched_getaffinity(0)
    last = max(before)
    with on_cores({last}):
        child = start(python("import os; print(sorted(os.sched_getaffinity(0)))"))
    child.expect(rf"^\[{last}\]$", WAIT_S)
    child.stop()
    assert os.sched_getaffinity(0) == before == available_cores()


@needs_affinity
def test_every_thread_of_the_process_is_pinned() -> None:
    before = os.sched_getaffinity(0)
    ready, release = threading.Event(), threading.Event()

    def stay() -> None:
        ready.set()
        release.wait(DEADLINE_S)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert ready.wait(DEADLINE_S)
        assert thread.native_id is not None
        pin_process({min(before)})
        assert os.sched_getaffinity(thread.native_id) == {min(before)}
        assert os.sched_getaffinity(0) == {min(before)}
    finally:
        pin_process(before)
        release.set()
        thread.join()


def test_core_seconds_are_counted_by_role_with_descendants_and_without_the_past() -> None:
    ask = f"{SPIN}print('ready', flush=True)\ninput()\n{SPIN}print('done', flush=True)\ninput()"
    parent = (
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SPIN + 'input()'!r}])\n"
        "child.wait()"
    )
    with program(ask) as old:
        assert line_of(old) == "ready"
        meter = CpuMeter({"old": [old.pid], "idle": []})
        assert meter.seconds("old") == 0
        with program(parent) as new:
            meter.add("new", new.pid)
            assert old.stdin is not None
            old.stdin.write("\n")
            old.stdin.flush()
            assert line_of(old) == "done"

            def new_has_worked() -> bool:
                meter.sample()
                return meter.seconds("new") >= 0.25

            wait_until(new_has_worked)
        used = meter.seconds("new")
        meter.sample()
        assert meter.seconds("new") == used  # what a dead process used is not forgotten
    assert 0.25 <= meter.seconds("old") < 0.6  # process time: of what it did since
    assert meter.seconds("idle") == 0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /dev/shm, which other tests and programs use at the same time."""
    monkeypatch.setattr(monitoring, "SHARED_MEMORY", tmp_path)
    return tmp_path


@pytest.mark.usefixtures("memory")
def test_a_process_of_the_run_is_found_until_it_ends() -> None:
    run_id = secrets.token_hex(8)
    before = LeftoverCheck.before(run_id)
    stranger, ours = (
        start(python(DOCILE, env={RUN_ID_VARIABLE: one})) for one in ("another", run_id)
    )
    try:
        ours.expect("ready", WAIT_S)
        stranger.expect("ready", WAIT_S)
        (left,) = before.leftovers(settle_s=0.0)
        assert left.startswith(f"process {ours.pid}: ")
        ours.kill()
        assert before.leftovers(settle_s=10.0) == ()
    finally:
        ours.stop()
        stranger.stop()


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_new_shared_memory_is_found_until_another_process_uses_it(memory: Path, how: str) -> None:
    code = """
        import mmap, os, sys, time
        fd = os.open(sys.argv[1], os.O_RDWR)
        if sys.argv[2] == "mapped":
            memory = mmap.mmap(fd, 0)
            os.closerange(3, 256)  # that of the mapping, too
        print("ready")
        time.sleep(60)
    """
    segment = memory / "segment"
    before = LeftoverCheck.before(secrets.token_hex(8))
    segment.write_bytes(bytes(mmap.PAGESIZE))
    assert f"shared memory {segment}" in before.leftovers(settle_s=0.0)
    later = LeftoverCheck.before(secrets.token_hex(8))
    assert f"shared memory {segment}" not in later.leftovers(settle_s=0.0)
    stranger = start(python(code, segment, how))
    try:
        stranger.expect("ready", WAIT_S)
        assert f"shared memory {segment}" not in before.leftovers(settle_s=0.0)
    finally:
        stranger.stop()
