"""Which cores a process, and the children that it starts, may use."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator


def available_cores() -> set[int]:
    """Numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))  # macOS: nothing is pinned there


def pin_process(cores: Iterable[int]) -> None:
    """Keep every thread of this process, and those that they start, on `cores`."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in os.listdir("/proc/self/task"):  # those of libraries too, which Python cannot name
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(thread), cores)


@contextlib.contextmanager
def children_on(cores: Iterable[int]) -> Iterator[None]:
    """Children that the calling thread starts in here run on `cores`."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
