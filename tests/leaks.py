"""Find what a test left behind: threads, child processes, named shared memory.

The test process is a subreaper: orphaned descendants become its children. So each process that a
test leaves is a child or a child's descendant. Reading the children takes less than a millisecond.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing.popen_fork
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import psutil

#: Longer than a busy machine stalls any process or thread: only a leak takes so long.
SETTLE_S = 60.0
SHARED_MEMORY = Path("/dev/shm")
ROOT = Path(__file__).resolve().parents[1]
LINKED_ROOT = ROOT / "src" / "edl"
#: Segments of the loaders of Paddle and PyTorch are named by the id of the process that made them.
NAMED_BY_MAKER = re.compile(r"(?:paddle|torch)_(\d+)_")
#: Helpers that Python starts once and keeps until it ends.
PYTHON_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>


@dataclass(frozen=True)
class ProcessResources:
    """Threads, children and shared memory of this process at one moment."""

    threads: frozenset[threading.Thread] = field(default_factory=frozenset)
    children: frozenset[int] = field(default_factory=frozenset)
    segments: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def now(cls) -> Self:
        children = frozenset(_children())
        segments = _segments(children | {os.getpid()})
        return cls(frozenset(threading.enumerate()), children, frozenset(segments))

    def leaks_since(self, before: ProcessResources) -> list[str]:
        """Describe what exists now, did not exist `before`, and should be gone."""
        threads = [
            f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}"
            for thread in self.threads_since(before)
        ]
        processes = [_describe(pid) for pid in self.children - before.children - _shared.children]
        segments = [
            f"shared memory {SHARED_MEMORY / name}" for name in self.segments - before.segments
        ]
        return sorted(threads) + sorted(text for text in processes if text) + sorted(segments)

    def threads_since(self, before: ProcessResources) -> list[threading.Thread]:
        threads = self.threads - before.threads - _shared.threads
        if not threads:
            return []
        stacks = _stacks()
        return [
            thread
            for thread in threads
            if thread.is_alive()
            and (not thread.daemon or _is_ours(stacks.get(thread.ident or 0, "")))
        ]


@contextlib.contextmanager
def shared_by_tests() -> Iterator[None]:
    """Treat what starts in the body as shared by all tests of this process: it is no leak."""
    global _shared
    before = ProcessResources.now()
    yield
    now = ProcessResources.now()
    _shared = ProcessResources(
        _shared.threads | now.threads - before.threads,
        _shared.children | now.children - before.children,
    )


_shared = ProcessResources()


def leaked_since(before: ProcessResources, settle_s: float = SETTLE_S) -> list[str]:
    """Describe what a test left behind, and kill the processes among it.

    Threads and processes have `settle_s` to end by themselves.
    """
    deadline = time.monotonic() + settle_s
    pause_s = 0.001
    while True:
        found = _resources_since(before)
        leaks = found.leaks_since(before)
        if not leaks or time.monotonic() >= deadline:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    if leaks:
        stacks = _stacks()
        leaks += [
            f"thread {thread.name!r} at\n{stacks.get(thread.ident or 0, '  it has just ended')}"
            for thread in found.threads_since(before)
        ]
    for pid in found.children - before.children - _shared.children:
        if _describe(pid):
            with contextlib.suppress(psutil.Error):  # the process has ended
                psutil.Process(pid).kill()
    return leaks


def open_files(name: str = "") -> dict[tuple[str, str, int], int]:
    """Collect garbage, then return what this process has open: files, sockets, memory and others.

    Args:
        name: part of their links in /proc.

    Returns:
        Bytes by descriptor, link and inode.
    """
    gc.collect()
    found = {}
    for fd in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            if name in (link := os.readlink(fd)):
                found[fd.name, link, fd.stat().st_ino] = fd.stat().st_size
    return found


def watch_descendants() -> None:
    """Make orphaned descendants children of this process, and note forked workers of loaders."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    os.register_at_fork(after_in_child=_forked.report_pid)


def remove_paddle_segments(workers: Iterable[int]) -> None:
    """Remove segments of ended workers of Paddle's loader, which Paddle does not remove itself.

    A batch in transit sometimes stays in /dev/shm when the loader ends, and always when its process
    is killed.
    """
    for pid in workers:
        for segment in SHARED_MEMORY.glob(f"paddle_{pid}_*"):
            segment.unlink(missing_ok=True)


def _resources_since(before: ProcessResources) -> ProcessResources:
    """Return what exists now, without new shared memory that other programs use."""
    now = ProcessResources.now()
    if not (new := now.segments - before.segments):
        return now
    remove_paddle_segments(pid for pid in _forked.pids() if not psutil.pid_exists(pid))
    return replace(now, segments=now.segments - new | exclude_foreign_segments(new))


class _Forked:
    """Processes that a library forked from this one without executing another program.

    Each reports its id through a pipe, so that its segments are known as ours after its death.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._pids: set[int] = set()

    def report_pid(self) -> None:
        with contextlib.suppress(OSError):  # the pipe is full: thousands were forked in one test
            os.write(self._write, os.getpid().to_bytes(8))

    def pids(self) -> frozenset[int]:
        with contextlib.suppress(BlockingIOError):  # all have been read
            while data := os.read(self._read, 8):
                self._pids.add(int.from_bytes(data))
        return frozenset(self._pids)


_forked = _Forked()


def _children() -> set[int]:
    """Return the children of this process, including adopted ones; reap adopted zombies."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # the thread has ended
            found.update(map(int, (thread / "children").read_text().split()))
    zombies = {pid for pid in found if _is_zombie(pid)}
    if zombies:
        for pid in zombies - _started_here():
            with contextlib.suppress(ChildProcessError):  # its owner has reaped it meanwhile
                os.waitpid(pid, os.WNOHANG)
            found.discard(pid)
    return found


def _is_zombie(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] in "ZX"


def _started_here() -> set[int]:
    """Ids of the processes that an object of this process will still wait for.

    The id of a process that was waited for may belong to another process by now.
    """
    kinds = (subprocess.Popen, multiprocessing.popen_fork.Popen)
    waiting = [
        one
        for one in gc.get_objects()
        if issubclass(type(one), kinds) and getattr(one, "returncode", None) is None
    ]
    return {pid for one in waiting if (pid := getattr(one, "pid", None))}


def _describe(pid: int) -> str:
    """Describe a process; empty when it is gone, or is a helper that Python keeps."""
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"process {pid}: a zombie, {process.name()}"
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    if any(helper in command for helper in PYTHON_HELPERS):
        return ""
    return f"process {pid}: {command[:200]}"


def _stacks() -> dict[int, str]:
    """Return the stack of each thread by its identifier, as written by faulthandler.

    Walking the frames of a running thread can crash CPython 3.11.
    """
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        parts = re.split(r"^(?:Current t|T)hread 0x(\w+) .*\n", file.read(), flags=re.MULTILINE)
    return {int(number, 16): stack for number, stack in zip(parts[1::2], parts[2::2], strict=True)}


def _is_ours(stack: str) -> bool:
    """Whether a file of this project, its tests included, is anywhere on a stack."""
    paths = map(Path, re.findall(r'^  File "(.*)", line', stack, re.MULTILINE))
    return any(
        (path.is_relative_to(ROOT) or path.is_relative_to(LINKED_ROOT))
        and ".venv" not in path.parts
        for path in paths
    )


def _segments(ours: frozenset[int]) -> Iterator[str]:
    """Names of shared memory, except segments that loaders of other processes made."""
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ()
    ours |= _forked.pids()
    for name in names:
        maker = NAMED_BY_MAKER.match(name)
        if maker is None or int(maker[1]) in ours:
            yield name


def exclude_foreign_segments(names: frozenset[str]) -> frozenset[str]:
    """`names` without segments of other programs, such as a parallel test run.

    A segment belongs to another program if that program has it mapped or open, or if the segment
    disappears meanwhile. Files are compared by inode: a semaphore is mapped under another name.
    """
    me = psutil.Process()
    ours = {process.pid for process in me.children(recursive=True)} | {me.pid}
    theirs: set[int] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            theirs.update(_shared_memory_inodes(process.pid))
    foreign = set()
    for name in names:
        try:
            if (SHARED_MEMORY / name).stat().st_ino in theirs:
                foreign.add(name)
        except FileNotFoundError:
            foreign.add(name)
    return names - foreign


def _shared_memory_inodes(pid: int) -> Iterator[int]:
    """Yield inodes of shared memory that a process has mapped or open; may raise OSError."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        _, _, _, _, inode, *path = line.split(maxsplit=5)
        if path and path[0].startswith(f"{SHARED_MEMORY}/"):
            yield int(inode)
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.readlink(descriptor).startswith(f"{SHARED_MEMORY}/"):
                yield descriptor.stat().st_ino
