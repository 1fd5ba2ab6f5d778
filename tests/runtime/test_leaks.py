"""The check that every test runs under sees what it should, and forgives what it should."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from edl.tests.leaks import ProcessResources, leaked_since
from edl.tests.runtime.programs import WAIT_S, python, ran, runs
from edl.tests.waiting import wait_until

SHORT_S = 0.05


def test_a_thread_is_found_while_it_runs_but_no_librarys_own_daemon() -> None:
    before, end = ProcessResources.now(), threading.Event()
    daemon = threading.Thread(target=lambda: end.wait(WAIT_S), name="watcher", daemon=True)
    plain = threading.Thread(target=end.wait, name="worker")
    library = threading.Thread(target=end.wait, daemon=True)  # none of our code on its stack
    for thread in (daemon, plain, library):
        thread.start()
    wait_until(lambda: len(leaked_since(before, SHORT_S)) == 4)  # the daemon runs our code, too
    watcher, worker, *stacks = leaked_since(before, SHORT_S)
    assert (watcher, worker, len(stacks)) == ("thread 'watcher' (daemon)", "thread 'worker'", 2)
    (at,) = (stack for stack in stacks if stack.startswith("thread 'watcher' at\n"))
    assert "test_leaks.py" in at
    end.set()
    assert leaked_since(before) == []
    library.join()


@pytest.mark.system
def test_a_child_and_an_orphan_are_found_and_ended() -> None:
    before = ProcessResources.now()
    code = "import subprocess as s; print(s.Popen(['sleep', '60'], start_new_session=True).pid)"
    _, (pid,) = ran(python(code))
    wait_until(lambda: all(thread.name != "edl-watch-child" for thread in threading.enumerate()))
    orphan, child = int(pid), subprocess.Popen(["sleep", "60"])
    found = {f"process {pid}: sleep 60" for pid in (orphan, child.pid)}
    assert set(leaked_since(before, SHORT_S)) == found
    wait_until(lambda: not runs(orphan))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (leak,) = leaked_since(before, SHORT_S)
    assert leak.startswith(f"process {child.pid}: a zombie")
    assert child.wait(WAIT_S) == -signal.SIGKILL


@pytest.mark.system
def test_an_orphan_with_the_id_of_an_earlier_child_is_reaped() -> None:
    before = ProcessResources.now()
    earlier = subprocess.Popen(["true"])
    assert earlier.wait(WAIT_S) == 0
    code = "import subprocess as s; print(s.Popen(['sleep', '0']).pid, flush=True)"
    _, (pid,) = ran(python(code))
    earlier.pid = int(pid)  # as if the system had given this id again
    wait_until(lambda: not runs(earlier.pid))
    assert leaked_since(before) == []


def test_named_shared_memory_is_found() -> None:
    before = ProcessResources.now()
    segment = shared_memory.SharedMemory(create=True, size=64)
    assert leaked_since(before, SHORT_S) == [f"shared memory /dev/shm/{segment.name}"]
    segment.unlink()
    segment.close()  # not before: parallel test runs recognise a foreign segment by its use
    assert leaked_since(before) == []


def test_shared_memory_belongs_to_the_process_that_forked_its_maker() -> None:
    def segment(pid: int) -> Path:
        path = Path(f"/dev/shm/paddle_{pid}_{os.getpid()}")
        path.touch()
        return path

    before = ProcessResources.now()
    stranger, mine = segment(1), segment(os.getpid())
    if (pid := os.fork()) == 0:
        segment(os.getpid())
        os._exit(0)
    os.waitpid(pid, 0)
    try:
        assert f"shared memory /dev/shm/paddle_{pid}_{pid}" in ProcessResources.now().leaks_since(
            before
        )
        assert leaked_since(before, settle_s=0) == [f"shared memory {mine}"]
        assert not Path(f"/dev/shm/paddle_{pid}_{pid}").exists(), "its maker has ended"
    finally:
        stranger.unlink()
        mine.unlink()
