"""Small child programs, and waiting for their end."""

from __future__ import annotations

import sys
from textwrap import dedent
from typing import Any

import psutil

from edl.runtime.supervise import Command, start
from edl.tests.waiting import DEADLINE_S, wait_until

WAIT_S = DEADLINE_S


def python(code: str, *args: object, name: str = "child", **options: Any) -> Command:
    """A child that runs `code`; what it prints comes at once."""
    argv = (sys.executable, "-P", "-u", "-c", dedent(code), *(str(arg) for arg in args))
    return Command(name, argv, **options)


def ran(command: Command) -> tuple[int | None, list[str]]:
    """Run it to its end: its exit code, and the last lines of its output."""
    process = start(command)
    return process.wait(WAIT_S), process.tail()


def wait_gone(pids: list[int], timeout_s: float = DEADLINE_S) -> None:
    wait_until(lambda: not any(runs(pid) for pid in pids), timeout_s)


def runs(pid: int) -> bool:
    """Whether `pid` is a process that is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


#: Ends only by SIGKILL.
STUBBORN = """
    import signal, time
    from edl.runtime.supervise import end_with_parent
    end_with_parent(grace_s=float(__import__("sys").argv[1]))
    signal.signal(signal.SIGTERM, lambda *_: print("no", flush=True))
    print("ready")
    while True:
        time.sleep(60)
"""
#: Ends when told to.
DOCILE = """
    import signal, time
    from edl.runtime.supervise import end_with_parent
    end_with_parent()
    print("ready")
    while True:
        time.sleep(60)
"""


def shell_exit_code(code: int) -> int:
    """Return the exit code that a shell shows: 128 + N after signal N.

    Python ends by SIGINT itself if it came during an `exec`, such as that of a dataclass.
    """
    return 128 - code if code < 0 else code
