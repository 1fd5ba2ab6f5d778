"""The check that every test runs under sees what it should, and forgives what it should."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from multiprocessing import shared_memory
from pathlib import Path

import pytest

from edl.supervise import start
from edl.tests.ground.programs import WAIT_S, python, runs
from edl.tests.leaks import ProcessResources, leaked_since
from edl.tests.waiting import wait_until

SHORT_S = 0.05


def test_a_thread_is_found_while_it_runs_but_no_librarys_own_daemon() -> None:
    before, end = ProcessResources.now(), threading.Event()
    daemon = threading.Thread(target=lambda: end.wait(WAIT_S), name="watcher", daemon=True)
    plain = threading.Thread(target=end.wait, name="worker")
    library = threading.Thread(target=end.wait, daemon=True)  # none of our code on its stack
    for thread in (daemon, plain, library):
        thread.start()
    watcher, worker, *stacks = leaked_since(before, SHORT_S)
    assert (watcher, worker) == ("thread 'watcher' (daemon)", "thread 'worker'")
    assert len(stacks) == 2
    (at,) = (stack for stack in stacks if stack.startswith("thread 'watcher' at\n"))
    assert "end.wait(WAIT_S)" in at
    end.set()
    assert leaked_since(before) == []
    library.join()


@pytest.mark.system
def test_a_child_and_an_orphan_are_found_and_ended() -> None:
    before = ProcessResources.now()
    code = "import subprocess as s; print(s.Popen(['sleep', '60'], start_new_session=True).pid)"
    parent = start(python(code))
    parent.wait(WAIT_S)
    wait_until(lambda: all(thread.name != "edl-watch-child" for thread in threading.enumerate()))
    orphan, child = int(parent.tail()[0]), subprocess.Popen(["sleep", "60"])
    found = {f"process {pid}: sleep 60" for pid in (orphan, child.pid)}
    assert set(leaked_since(before, SHORT_S)) == found
    wait_until(lambda: not runs(orphan))
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (leak,) = leaked_since(before, SHORT_S)
    assert leak.startswith(f"process {child.pid}: a zombie")
    assert child.wait(WAIT_S) == -signal.SIGKILL


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


@pytest.mark.system
@pytest.mark.parametrize("how", ["open", "mapped", "semaphore"])
def test_shared_memory_that_another_program_uses_is_forgiven(tmp_path: Path, how: str) -> None:
    stranger = """
        import mmap, os, sys, time
        path = f"/dev/shm/edl-test-{os.getpid()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 64)
        if sys.argv[2] != "open":
            memory = mmap.mmap(fd, 64)
            os.closerange(3, 256)  # that of the mapping, too
        if sys.argv[2] == "semaphore":  # the C library gives it its name when it is mapped
            os.link(path, path + "-named")
            os.unlink(path)
            path += "-named"
        with open(sys.argv[1], "w") as file:
            file.write(f"{path}\\n")
        time.sleep(60)
    """
    observer = """
        import sys
        from edl.tests.leaks import ProcessResources, leaked_since
        before = ProcessResources.now()
        print("ready", flush=True)
        sys.stdin.readline()
        print(ProcessResources.now().leaks_since(before), leaked_since(before, 0.05), sep="\\n")
    """
    note = tmp_path / "note"
    argv = python(observer).argv
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline() == "ready\n"
        other = start(python(stranger, note, how))  # not a child of the observer
        wait_until(lambda: note.exists() and note.read_text().endswith("\n"))
        path = note.read_text().strip()
        seen, leaked = watching.communicate("go\n")[0].splitlines()
    other.kill()
    other.wait()
    Path(path).unlink()
    assert f"shared memory {path}" in seen
    assert leaked == "[]"
