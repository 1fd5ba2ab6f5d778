"""Identities of processes: pid and start time, so that no signal reaches another process.

The kernel reuses pids. A stored pid is valid only while the process with that pid has the stored
start time. Without pidfds, a pid may still be reused between the check and the signal.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Seconds between checks whether a process still runs.
_POLL_S: Final = 0.02
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
#: Positions among the fields of /proc/PID/stat behind the program's name: of the state, and of the
#: start in ticks since the boot.
_STATE, _START = 0, 19


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for as long as it runs.

    Attributes:
        pid: its process id.
        started: "BOOT_ID/TICKS": the boot of the machine, and clock ticks from the boot to the
            start of the process.
    """

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        """Whether the process still runs; a zombie does not."""
        return identity_of(self.pid) == self

    def send(self, number: int) -> bool:
        """Send a signal; return False if the process has ended, is this one, or refuses signals."""
        if self.pid == os.getpid() or self.pid < 1:
            return False
        with open_pidfd(self.pid) as fd:
            if not self.runs:  # else the descriptor may refer to another process with this pid
                return False
            try:
                if fd is None:  # the pid may be reused between check and signal
                    os.kill(self.pid, number)
                else:
                    signal.pidfd_send_signal(fd, number)
            except (ProcessLookupError, PermissionError):
                return False
        return True


@contextlib.contextmanager
def open_pidfd(pid: int) -> Iterator[int | None]:
    """Yield a descriptor that refers to one process, and becomes readable when the process ends.

    None: there is no such process, no descriptor is free, or the system has no pidfds (Linux before
    5.3, or a container that forbids them).
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def identity_of(pid: int) -> Identity | None:
    """Return the identity of the process with this pid now; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name may contain anything
    return None if fields[_STATE] in "ZX" else Identity(pid, f"{boot}/{fields[_START]}")


def wait_gone(identities: Iterable[Identity], timeout_s: float) -> list[Identity]:
    """Wait until all processes have ended; return those that still run after `timeout_s`."""
    running = list(identities)
    deadline = time.monotonic() + timeout_s
    while running := [identity for identity in running if identity.runs]:
        if time.monotonic() >= deadline:
            break
        time.sleep(_POLL_S)
    return running
