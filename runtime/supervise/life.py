"""The life pipe: its end of file tells children that their parent has died.

The parent holds the only write end of a pipe; each child that it starts inherits the read end. The
kernel closes the write end when the parent dies, in whatever way, and the children read end of
file. A worker that the user's program *forks* (as Paddle's DataLoader does) would keep a copy of
the write end open, and so keep the children alive: `drop_fd_on_fork` registers descriptors that
forked workers must not keep.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import stat
import sys
import threading
import time

from ..standard_streams import open_standard_fds

#: Environment variable in which a child finds the descriptor of its read end.
LIFE_VARIABLE = "EDL_LIFE_FD"
ORPHAN_GRACE_S = 10.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_lock = threading.Lock()
_pipe: tuple[int, int] | None = None  # (read end, write end)
_watched: int | None = None  # the read end of the parent's pipe
# Descriptor -> (device, inode), to recognise a descriptor number that has been reused since.
_dropped_on_fork: dict[int, tuple[int, int]] = {}


def life_fd() -> int:
    """Return the read end of the life pipe of this process, for its children to inherit."""
    global _pipe
    with _lock:
        if _pipe is None:
            open_standard_fds()
            _pipe = os.pipe()
            for fd in _pipe:
                drop_fd_on_fork(fd)
        return _pipe[0]


def drop_fd_on_fork(fd: int) -> None:
    """Register descriptor `fd`: processes that are forked without exec replace it by /dev/null.

    A descriptor need not be unregistered when it is closed: if its number has been reused for
    another file, that file is not touched.
    """
    status = os.fstat(fd)
    _dropped_on_fork[fd] = (status.st_dev, status.st_ino)


def end_with_parent(grace_s: float = ORPHAN_GRACE_S, *, at_once: bool = False) -> bool:
    """End this process when its parent ends; our programs call this at their start.

    After the parent has died, this process gets SIGTERM and, `grace_s` later, its whole process
    group gets SIGKILL. If it was suspended (SIGSTOP), the kernel resumes it (Linux only).

    In the main thread of a process that was started with SIGINT ignored, this function restores
    Python's handler (KeyboardInterrupt). A child of `supervise` has its own session, so Ctrl-C in a
    terminal does not reach it: each SIGINT that it gets was meant for this process.

    Args:
        grace_s: seconds for an orderly end.
        at_once: no orderly end is needed: the kernel also kills this process as soon as the
            *thread* that started it ends. For programs with code that may hold the GIL for ever, in
            which the thread that watches the pipe may never run.

    Returns:
        False, without effect, if `supervise` did not start this process.
    """
    global _watched
    fd = inherit_life_fd()
    if fd is None:
        return False
    _watched = fd
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    set_death_signal(signal.SIGKILL if at_once else signal.SIGCONT)
    threading.Thread(
        target=_wait_for_parent_exit, args=(fd, grace_s), name="edl-life", daemon=True
    ).start()
    return True


def parent_has_ended() -> bool:
    """Return whether the parent has ended; False unless `end_with_parent` returned True."""
    if _watched is None:
        return False
    poller = select.poll()
    poller.register(_watched, select.POLLIN)
    return bool(poller.poll(0))


def set_death_signal(number: signal.Signals) -> None:
    """Have the kernel send a signal when the thread that started this process ends (Linux only).

    SIGKILL kills this process; SIGCONT resumes it if it is suspended.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)


def inherit_life_fd() -> int | None:
    """Return the read end that this process has inherited, or None. Its children get no copy."""
    value = os.environ.pop(LIFE_VARIABLE, None)
    if value is None:
        return None
    fd = int(value)
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # a program between us and `supervise` passed only the variable on
        return None
    if not is_pipe:
        return None
    os.set_inheritable(fd, False)
    return fd


def _wait_for_parent_exit(fd: int, grace_s: float) -> None:
    os.read(fd, 1)  # nothing is ever written: this returns when the parent dies
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _drop_fds_after_fork() -> None:
    global _lock, _pipe
    _lock, _pipe = threading.Lock(), None
    null = os.open(os.devnull, os.O_RDWR)
    for fd, identity in _dropped_on_fork.items():
        with contextlib.suppress(OSError):  # closed in the parent already
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == identity:
                # Replaced, not closed: the Python object of this descriptor will close the number
                # later, and must not close another file that has got the number meanwhile.
                os.dup2(null, fd, inheritable=False)
    os.close(null)
    _dropped_on_fork.clear()


os.register_at_fork(after_in_child=_drop_fds_after_fork)
