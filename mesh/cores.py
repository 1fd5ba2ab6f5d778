"""CPU cores that this process and its children may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator


def available_cores() -> set[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS has no affinity


def pin_process(cores: Iterable[int], pid: int | None = None) -> None:
    """Keep all threads of a process, and threads that they start, on `cores` (Linux only).

    Args:
        cores: numbers of the cores.
        pid: id of the process; None: this process.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    # /proc also lists threads of native libraries.
    for thread in os.listdir(f"/proc/{pid or os.getpid()}/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has just ended
            os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def on_cores(cores: Iterable[int]) -> Iterator[None]:
    """Keep the calling thread on `cores` in the body (Linux only).

    Threads and processes that it starts there stay on `cores` afterwards, too.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
