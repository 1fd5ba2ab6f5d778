"""`python -m edl.runtime.supervise GRACE_S PROGRAM ARGS...` ends PROGRAM when its parent dies.

It stands between us and a program that knows nothing of life pipes: passes signals on to it, ends
as it ended, and is itself watched by the kernel, so that the program dies even when the guard is
killed. Of an orphan nothing stays in its process group.
"""

from __future__ import annotations

import os
import signal
import sys

from .life import LIFE_VARIABLE, die_with_starter, end_with_parent, parent_has_ended

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
NOT_EXECUTABLE = 127  # as shells have it


def guard(grace_s: float, argv: list[str]) -> int:
    """Run `argv` as a child of this process; returns its exit code, -N after signal N."""
    # None of them ends the guard before there is a program to pass it on to.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = _start(argv, before)
    for number in PASSED_ON:
        signal.signal(number, lambda number, _: os.kill(child, number))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    end_with_parent(grace_s)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    for number in PASSED_ON:  # while the zombie still holds the id, so that no stranger is hit
        signal.signal(number, signal.SIG_IGN)
    if parent_has_ended() and os.getpgrp() == os.getpid():
        # A shell that has ended leaves what it has started, which nobody but us is here to end.
        os.killpg(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _start(argv: list[str], mask: set[int | signal.Signals]) -> int:
    life = os.environ.get(LIFE_VARIABLE)
    guard_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        die_with_starter()
        if os.getppid() != guard_pid:  # it died before the kernel was asked
            os._exit(NOT_EXECUTABLE)
        if life is not None:
            os.set_inheritable(int(life), False)
        # Python ignores the first two, and a shell's background job SIGINT: undo both.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        environment = {key: value for key, value in os.environ.items() if key != LIFE_VARIABLE}
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(NOT_EXECUTABLE)


def _end_like(returncode: int) -> None:
    """End with the exit code, or by the signal, that the program ended with."""
    if returncode >= 0:
        sys.exit(returncode)
    if -returncode != signal.SIGKILL:
        signal.signal(-returncode, signal.SIG_DFL)
    os.kill(os.getpid(), -returncode)


if __name__ == "__main__":
    _end_like(guard(float(sys.argv[1]), sys.argv[2:]))
