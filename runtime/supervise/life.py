"""The life pipe, by which a child learns of its parent's death, and what forked ones let go.

The parent holds the only write end of one pipe; every child it starts inherits the read end. The
kernel closes the write end however the parent dies, and the children read end of file. A worker
that the user's program *forks* (Paddle's DataLoader does) would hold a copy of the write end and so
keep the children alive: `own_fd` names descriptors that such a worker must let go.
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

from ..standard_streams import hold_standard_fds

#: Environment variable in which a child finds the descriptor of its read end.
LIFE_VARIABLE = "EDL_LIFE_FD"
ORPHAN_GRACE_S = 10.0
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

_lock = threading.Lock()
_pipe: tuple[int, int] | None = None  # (read end, write end)
_watched: int | None = None  # the read end of our parent's pipe
# Descriptor -> (device, inode): a number that was closed and given to another file is not ours.
_owned: dict[int, tuple[int, int]] = {}


def life_fd() -> int:
    """The read end of this process's life pipe, for its children to inherit."""
    global _pipe
    with _lock:
        if _pipe is None:
            hold_standard_fds()
            _pipe = os.pipe()
            for fd in _pipe:
                own_fd(fd)
        return _pipe[0]


def own_fd(fd: int) -> None:
    """Let children that are forked, and not executed anew, lose descriptor `fd`.

    Nothing has to be said when `fd` is closed: a number that stands for another file by then is
    left alone.
    """
    status = os.fstat(fd)
    _owned[fd] = (status.st_dev, status.st_ino)


def end_with_parent(grace_s: float = ORPHAN_GRACE_S, *, at_once: bool = False) -> bool:
    """Let this process end when its parent does; a program of ours calls it first thing.

    When the parent is gone, this process gets SIGTERM and, `grace_s` later, its whole process group
    gets SIGKILL. Returns False, and does nothing, when it was not started by `supervise`.

    A SIGINT that was ignored when this process started is handled again: a child of `supervise` has
    a session of its own, so no Ctrl-C of a terminal reaches it, only a SIGINT that is meant for it.

    Args:
        grace_s: time to put things in order.
        at_once: there is nothing to put in order: have the kernel kill this process, too, as soon
            as the *thread* that started it ends. For programs that load code which may hold the
            interpreter's lock for ever, under which no thread of ours can do anything.
    """
    global _watched
    fd = take_life_fd()
    if fd is None:
        return False
    _watched = fd
    if (
        signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        and threading.current_thread() is threading.main_thread()
    ):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if at_once:
        die_with_starter()
    threading.Thread(
        target=_wait_for_orphanhood, args=(fd, grace_s), name="edl-life", daemon=True
    ).start()
    return True


def parent_has_ended() -> bool:
    """Whether it has, of a process that called `end_with_parent` and that `supervise` started."""
    if _watched is None:
        return False
    poller = select.poll()
    poller.register(_watched, select.POLLIN)
    return bool(poller.poll(0))


def die_with_starter() -> None:
    """Have the kernel kill this process when the thread that started it ends (Linux only)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def take_life_fd() -> int | None:
    """The read end that this process was started with, kept from its own children; None: none."""
    value = os.environ.pop(LIFE_VARIABLE, None)
    if value is None:
        return None
    fd = int(value)
    try:
        is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:  # a program between us and `supervise` passed the variable on, not the pipe
        return None
    if not is_pipe:
        return None
    os.set_inheritable(fd, False)
    return fd


def _wait_for_orphanhood(fd: int, grace_s: float) -> None:
    os.read(fd, 1)  # nobody ever writes: this returns at the parent's death
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace_s)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def _let_go_after_fork() -> None:
    global _lock, _pipe
    _lock, _pipe = threading.Lock(), None
    null = os.open(os.devnull, os.O_RDWR)
    for fd, identity in _owned.items():
        with contextlib.suppress(OSError):  # closed in the parent already
            status = os.fstat(fd)
            if (status.st_dev, status.st_ino) == identity:
                # Replaced, not closed: the object that holds this number will close it once more,
                # and must not hit a file that was opened under it meanwhile.
                os.dup2(null, fd, inheritable=False)
    os.close(null)
    _owned.clear()


os.register_at_fork(after_in_child=_let_go_after_fork)
