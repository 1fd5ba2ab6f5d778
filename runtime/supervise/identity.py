"""Which process a number means: it and its start, so that no signal ever reaches a stranger.

Numbers of processes are given away again. What was written down of one holds only as long as the
process of that number is the one that began at that moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: Seconds between two looks whether a process is still there.
_LOOK_S: Final = 0.02
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
#: Of /proc/PID/stat, behind the program's name: the state, and the start in ticks since the boot.
_STATE, _START = 0, 19


@dataclass(frozen=True, slots=True)
class Identity:
    """One process, for as long as it runs.

    Attributes:
        pid: its number.
        started: when it began: ticks since which boot of the machine.
    """

    pid: int
    started: str

    @property
    def runs(self) -> bool:
        """Whether it is there; a zombie is not."""
        return identity_of(self.pid) == self

    def send(self, number: int) -> bool:
        """Send it a signal; False: it has ended, and nobody got any."""
        if self.pid == os.getpid() or self.pid < 1:
            return False
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except OSError:  # before Linux 5.3: the moment between look and signal has to be risked
            return self._kill(number)
        try:  # the descriptor stands for one process, which is now looked at
            if not self.runs:
                return False
            signal.pidfd_send_signal(fd, number)
        except (ProcessLookupError, PermissionError):
            return False
        finally:
            os.close(fd)
        return True

    def _kill(self, number: int) -> bool:
        if not self.runs:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, number)
            return True
        return False


def identity_of(pid: int) -> Identity | None:
    """The process of this number now; None where there is none, or it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
        boot = _BOOT.read_text().strip()
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name may hold anything
    return None if fields[_STATE] in "ZX" else Identity(pid, f"{boot}/{fields[_START]}")


def wait_gone(identities: Iterable[Identity], timeout_s: float) -> list[Identity]:
    """Wait until none of them runs; returns those that still do after `timeout_s`."""
    left = list(identities)
    deadline = time.monotonic() + timeout_s
    while left := [one for one in left if one.runs]:
        if time.monotonic() >= deadline:
            break
        time.sleep(_LOOK_S)
    return left
