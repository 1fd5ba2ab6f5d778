"""Which core does what, and whose core-seconds are whose: checked against the kernel."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from edl.mesh.cores import available_cores, children_on, pin_process
from edl.mesh.demo.cores import Cores, CpuMeter

SPIN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
needs_affinity = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="this system pins no processes"
)


@contextmanager
def program(code: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def test_the_student_has_one_core_and_the_mesh_the_rest() -> None:
    assert Cores.divide({5, 2, 7}) == Cores(frozenset({2}), frozenset({5, 7}))
    assert Cores.divide({4}) == Cores(frozenset({4}), frozenset({4}))


@needs_affinity
def test_children_start_on_the_named_cores_and_we_stay_where_we_were() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    show = "import os; print(sorted(os.sched_getaffinity(0)), flush=True)"
    with children_on({last}), program(show) as child:
        assert line_of(child) == f"[{last}]"
    assert os.sched_getaffinity(0) == before == available_cores()


@needs_affinity
def test_every_thread_of_the_process_is_pinned() -> None:
    before = os.sched_getaffinity(0)
    ready, release = threading.Event(), threading.Event()

    def stay() -> None:
        ready.set()
        release.wait(20)

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert ready.wait(20)
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
    assert 0.25 <= meter.seconds("old") < 0.6
    assert meter.seconds("idle") == 0
