"""A guard: `python -m edl.runtime.supervise GRACE_S PROGRAM ARGS...` runs a foreign program.

A foreign program does not watch the life pipe, so the guard watches it: if the process that started
the guard dies, the guard's whole process group ends. The guard forwards signals and ends like the
program, with its exit code or by its signal. If the guard is killed, the kernel kills the program.
"""

from __future__ import annotations

import os
import signal
import sys

from .life import LIFE_VARIABLE, end_with_parent, parent_has_ended, set_death_signal

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EXIT_NOT_STARTED = 127  # a shell's exit code if it does not find the program


def guard(grace_s: float, argv: list[str]) -> int:
    """Run `argv` as a child of this process; return its exit code, -N after signal N."""
    set_death_signal(signal.SIGCONT)
    # If SIGCHLD were ignored, the kernel would not keep the child's exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Blocked signals stay pending until `sigwait` takes them. With handlers instead, a signal just
    # before a system call that waits for the child would be handled only after the wait.
    awaited = {signal.SIGCHLD, *FORWARDED}
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    child = _start(argv, previous_mask)
    end_with_parent(grace_s)
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        number = signal.sigwait(awaited)
        if number != signal.SIGCHLD:
            os.kill(child, number)
    if parent_has_ended() and os.getpgrp() == os.getpid():
        # If the child is a shell, its own children may still run; only this process can end them.
        os.killpg(os.getpid(), signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _start(argv: list[str], mask: set[int | signal.Signals]) -> int:
    life_fd = os.environ.get(LIFE_VARIABLE)
    guard_pid = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        set_death_signal(signal.SIGKILL)
        if os.getppid() != guard_pid:  # the guard died before the call of prctl
            os._exit(_EXIT_NOT_STARTED)
        if life_fd is not None:
            os.set_inheritable(int(life_fd), False)
        # Python ignores the first two, background jobs ignore SIGINT, and nohup ignores SIGHUP.
        for number in (signal.SIGPIPE, signal.SIGXFSZ, *FORWARDED):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        environment = {key: value for key, value in os.environ.items() if key != LIFE_VARIABLE}
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        print(f"cannot run {argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
    os._exit(_EXIT_NOT_STARTED)


def _end_like(returncode: int) -> None:
    """End with the exit code or by the signal of the program."""
    if returncode >= 0:
        sys.exit(returncode)
    if -returncode != signal.SIGKILL:
        signal.signal(-returncode, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-returncode})
    os.kill(os.getpid(), -returncode)


if __name__ == "__main__":
    _end_like(guard(float(sys.argv[1]), sys.argv[2:]))
