"""Finds what a test left behind: threads, processes, named shared memory."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import psutil

#: Set in this process's environment, so that descendants are known after their parent has died.
MARK = "EDL_TEST_PROCESS"
SETTLE_S = 5.0
SHARED_MEMORY = Path("/dev/shm")
ROOT = Path(__file__).resolve().parents[1]
LINKED_ROOT = ROOT / "src" / "edl"
#: What loaders of Paddle and PyTorch call a segment: by the process that has made it.
BY_MAKER = re.compile(r"(?:paddle|torch)_(\d+)_")
#: Helpers that Python itself starts once and keeps until it ends.
KEPT_BY_PYTHON = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True)
class Belongings:
    """What exists at one moment on behalf of this process."""

    threads: frozenset[threading.Thread] = field(default_factory=frozenset)
    processes: frozenset[psutil.Process] = field(default_factory=frozenset)
    segments: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def now(cls) -> Self:
        descendants = frozenset(_descendants())
        segments = _segments({process.pid for process in descendants} | {os.getpid()})
        return cls(frozenset(threading.enumerate()), descendants, frozenset(segments))

    def since(self, before: Belongings) -> list[str]:
        """In words, what is here and was not `before`, and should have gone."""
        frames = sys._current_frames()
        threads = [
            f"thread {thread.name!r}{' (daemon)' if thread.daemon else ''}"
            for thread in self.threads - before.threads
            if thread.is_alive()
            and (not thread.daemon or _runs_our_code(frames.get(thread.ident or 0)))
        ]
        processes = [_describe(process) for process in self.processes - before.processes]
        segments = [
            f"shared memory {SHARED_MEMORY / name}" for name in self.segments - before.segments
        ]
        return sorted(threads) + sorted(text for text in processes if text) + sorted(segments)


def leaked_since(before: Belongings, settle_s: float = SETTLE_S) -> list[str]:
    """What a test left behind after `before`, once it had time to settle; ends left processes."""
    deadline = time.monotonic() + settle_s
    pause_s = 0.001
    while (found := _ours_since(before)).since(before):
        if time.monotonic() >= deadline:
            break
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, 0.05)
    else:
        return []
    leaks = found.since(before)
    for process in found.processes - before.processes:
        if _describe(process):
            with contextlib.suppress(psutil.Error):  # it ended by itself
                process.kill()
    return leaks


def _ours_since(before: Belongings) -> Belongings:
    """What exists now; of new shared memory only what nobody removes and is no stranger's."""
    now = Belongings.now()
    if not (new := now.segments - before.segments):
        return now
    remove_paddles_segments(pid for pid in _forked.pids() if not psutil.pid_exists(pid))
    return replace(now, segments=now.segments - new | without_neighbours(new))


def remove_paddles_segments(workers: Iterable[int]) -> None:
    """Remove what workers of Paddle's loader have left in /dev/shm, which is not ours to mend.

    A batch that is on its way when the loader is ended stays there at times; always, when its
    process is killed.

    Args:
        workers: process ids of workers that have ended.
    """
    for pid in workers:
        for segment in SHARED_MEMORY.glob(f"paddle_{pid}_*"):
            segment.unlink(missing_ok=True)


def mark_this_process() -> None:
    """Let the descendants of this process be recognised from now on."""
    os.environ[MARK] = str(os.getpid())
    os.register_at_fork(after_in_child=_forked.tell)


class _Forked:
    """Processes that were forked from this one and not executed anew, by whichever library.

    Each tells its id through a pipe, so that it is known after its death whose it was.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for fd in (self._read, self._write):
            os.set_blocking(fd, False)
        self._pids: set[int] = set()

    def tell(self) -> None:
        with contextlib.suppress(OSError):  # it is full: thousands were forked in one test
            os.write(self._write, os.getpid().to_bytes(8))

    def pids(self) -> frozenset[int]:
        with contextlib.suppress(BlockingIOError):  # that were all
            while told := os.read(self._read, 8):
                self._pids.add(int.from_bytes(told))
        return frozenset(self._pids)


_forked = _Forked()


def _descendants() -> set[psutil.Process]:
    me = psutil.Process()
    found = set(me.children(recursive=True))
    mark = f"{MARK}={me.pid}\0".encode()
    # This is asked twice for each test: psutil's own `environ` would take four times as long.
    for pid in psutil.pids():
        with contextlib.suppress(psutil.Error, OSError):  # ended meanwhile; another user's
            if mark in Path(f"/proc/{pid}/environ").read_bytes() and pid != me.pid:
                found.add(psutil.Process(pid))
    return found


def _describe(process: psutil.Process) -> str:
    """What a process is; empty when it is gone, or is none of a test's."""
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return f"process {process.pid}: a zombie, {process.name()}"
        command = " ".join(process.cmdline())
    except psutil.Error:
        return ""
    if any(helper in command for helper in KEPT_BY_PYTHON):
        return ""
    return f"process {process.pid}: {command[:200]}"


def _runs_our_code(frame: object) -> bool:
    """Whether a file of this project, its tests included, is anywhere on a thread's stack."""
    while frame is not None:
        path = Path(frame.f_code.co_filename)  # type: ignore[attr-defined]
        inside = path.is_relative_to(ROOT) or path.is_relative_to(LINKED_ROOT)
        if inside and ".venv" not in path.parts:
            return True
        frame = frame.f_back  # type: ignore[attr-defined]
    return False


def _segments(ours: set[int]) -> Iterator[str]:
    """Names of shared memory, without what loaders of other processes have made."""
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ()
    ours |= _forked.pids()
    for name in names:
        maker = BY_MAKER.match(name)
        if maker is None or int(maker[1]) in ours:
            yield name


def without_neighbours(names: frozenset[str]) -> frozenset[str]:
    """`names` less those that are a stranger's: of another user, a parallel run of tests.

    A stranger's is what somebody else has mapped or open, and what goes by itself meanwhile.
    """
    ours = {process.pid for process in _descendants()} | {os.getpid()}
    theirs: set[str] = set()
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        with contextlib.suppress(OSError):  # ended meanwhile; another user's
            theirs.update(Path(f"/proc/{process.pid}/maps").read_text().split())
            theirs.update(_open_files(process.pid))
    paths = {name: SHARED_MEMORY / name for name in names}
    return frozenset(
        name for name, path in paths.items() if str(path) not in theirs and path.exists()
    )


def _open_files(pid: int) -> Iterator[str]:
    """Where the descriptors of a process lead; raises OSError if it may not be asked."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            yield os.readlink(descriptor)
