"""Wait for a condition instead of sleeping."""

from __future__ import annotations

import contextlib
import faulthandler
import sys
import time
from collections.abc import Callable

import psutil

#: Far longer than any wait on a loaded machine: reaching it means a defect, not a slow run.
DEADLINE_S = 180.0


def wait_until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait until `condition` holds; raise AssertionError if it does not within `deadline_s`.

    In that case, print the stacks of all threads and the child processes to stderr.
    """
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() >= deadline:
            _show_what_waits()
            raise AssertionError(f"the condition did not hold within {deadline_s:g} s")
        time.sleep(0.002)


def _show_what_waits() -> None:
    faulthandler.dump_traceback(2, all_threads=True)  # pytest captures 2, unlike sys.stderr
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # the process has ended
            print(child.pid, child.status(), child.cmdline(), file=sys.__stderr__)
