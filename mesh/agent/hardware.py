"""Devices, memory, and CPU load of other processes on this machine (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...runtime.errors import UsageError

_PROC: Final = Path("/proc")
_GPUS: Final = Path("driver/nvidia/gpus")
#: Columns of busy time in the first line of /proc/stat: user, nice, system, irq, softirq. Idle,
#: iowait and steal do not count.
_BUSY_COLUMNS: Final = (0, 1, 2, 5, 6)


def find_devices(proc: Path = _PROC) -> tuple[str, ...]:
    """Return the GPUs, or without a GPU the cores that this process may use, as in `--devices`."""
    if gpus := list((proc / _GPUS).glob("*")):
        return tuple(f"gpu:{number}" for number in range(len(gpus)))
    if not hasattr(os, "sched_getaffinity"):
        return ("cpu",)  # macOS binds no process to cores
    return (f"cpu:{'+'.join(map(str, sorted(os.sched_getaffinity(0))))}",)


def memory_bytes() -> int:
    """Return the memory of the machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class OtherLoad:
    """Measures how many CPU cores are busy with processes other than this one and its descendants.

    Args:
        proc: the proc file system.
        clock: returns seconds.
        own: id of the process that, with its descendants, is not counted; None: this process.

    Raises:
        UsageError: this system does not show its load.
    """

    def __init__(
        self,
        proc: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
        own: int | None = None,
    ) -> None:
        self._proc, self._clock, self._own_pid = proc, clock, own or os.getpid()
        self._ticks_per_s = os.sysconf("SC_CLK_TCK")
        self._last_s = clock()
        self._last_cores = 0.0
        try:
            self._last_busy = self._busy_ticks()
        except (OSError, ValueError, IndexError):
            raise UsageError(
                f"{proc / 'stat'} does not show the load of this machine: omit --load"
            ) from None
        self._last_own = self._own_ticks()

    def cores(self) -> float:
        """Return the mean number of busy cores since the last call; if unknown, the last result."""
        try:
            busy, own = self._busy_ticks(), self._own_ticks()
        except (OSError, ValueError, IndexError):
            return self._last_cores
        now = self._clock()
        passed_s = now - self._last_s
        if passed_s <= 0:
            return self._last_cores
        # Descendants that have ended since the last call count as other processes; negligible.
        own_delta = sum(ticks - self._last_own.get(pid, 0) for pid, ticks in own.items())
        other_delta = max(0, busy - self._last_busy - max(0, own_delta))
        self._last_s, self._last_busy, self._last_own = now, busy, own
        self._last_cores = other_delta / self._ticks_per_s / passed_s
        return self._last_cores

    def _busy_ticks(self) -> int:
        first = (self._proc / "stat").read_text().split("\n", 1)[0].split()
        return sum(int(first[1 + column]) for column in _BUSY_COLUMNS)

    def _own_ticks(self) -> dict[int, int]:
        """Return the CPU ticks of this process and its descendants, by process id."""
        parents, ticks = {}, {}
        for entry in self._proc.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                text = (entry / "stat").read_text(errors="replace")
            except OSError:  # the process has ended
                continue
            # The program name, in parentheses, may contain any character.
            words = text.rpartition(")")[2].split()
            pid = int(entry.name)
            parents[pid], ticks[pid] = int(words[1]), int(words[11]) + int(words[12])
        own = {self._own_pid: ticks.get(self._own_pid, 0)}
        while children := {p: t for p, t in ticks.items() if parents[p] in own and p not in own}:
            own.update(children)
        return own
