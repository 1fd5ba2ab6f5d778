"""Observation of a chaos run from outside: leases in Redis, stalls of the machine, leftovers."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ...coordinator.registry import Registry, connect
from ...runtime.errors import EdlError
from ...runtime.lifecycle import Periodic
from .run_trace import MembershipSnapshot
from .synthetic_samples import SERVICE

SNAPSHOT_INTERVAL_S = 0.25
STALL_CHECK_INTERVAL_S = 0.1
#: Delay of a check, in seconds, which shows that the machine did not schedule this process.
STALL_S = 0.7

#: Environment variable of all processes of a run, to find orphans.
RUN_ID_VARIABLE = "EDL_CHAOS_RUN"
SHARED_MEMORY = Path("/dev/shm")
#: Prefixes of segments of frameworks, which may belong to other programs.
_FOREIGN_PREFIXES = ("paddle_", "torch_")
_POLL_S = 0.05


class MeshMonitor:
    """Takes snapshots of the leases and measures stalls of the machine, from `start` to `stop`.

    Args:
        url: Redis URL.
        clock: returns the seconds since the run began.

    Attributes:
        snapshots: leases and assignments so far, in order of time.
        stalls: (start, end) of each time in which the machine did not schedule this process.
        max_load: greatest one-minute load average so far.
    """

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self._registry: Registry = connect(url)
        self._clock = clock
        self.snapshots: list[MembershipSnapshot] = []
        self.stalls: list[tuple[float, float]] = []
        self.max_load = 0.0
        self._last_check_s = time.monotonic()
        self._snapshot_loop = Periodic(
            "edl-chaos-snapshots", SNAPSHOT_INTERVAL_S, self._take_snapshot
        )
        self._stall_loop = Periodic("edl-chaos-stalls", STALL_CHECK_INTERVAL_S, self._check_stall)

    def start(self) -> None:
        self._last_check_s = time.monotonic()
        self._snapshot_loop.start()
        self._stall_loop.start()

    def stop(self) -> None:
        """Stop both loops. Idempotent."""
        self._stall_loop.stop()
        self._snapshot_loop.stop()
        self._registry.close()

    def _take_snapshot(self) -> None:
        self.max_load = max(self.max_load, os.getloadavg()[0])
        try:
            teachers = self._registry.members("teachers", SERVICE)
            students = self._registry.members("students", SERVICE)
            rows = self._registry.table(SERVICE).rows
        except EdlError:  # Redis is down: an empty snapshot records that
            self.snapshots.append(MembershipSnapshot(self._clock()))
            return
        self.snapshots.append(
            MembershipSnapshot(
                self._clock(),
                frozenset(one.member for one in teachers),
                frozenset(_job_name(one.member) for one in students),
                {_job_name(name): frozenset(row.teachers) for name, row in rows.items()},
            )
        )

    def _check_stall(self) -> None:
        now = time.monotonic()
        if now - self._last_check_s > STALL_CHECK_INTERVAL_S + STALL_S:
            ended_s = self._clock()
            self.stalls.append((ended_s - (now - self._last_check_s), ended_s))
        self._last_check_s = now


def _job_name(student_id: str) -> str:
    """Return the job of a student id `job/rank`; each job of a run has one rank."""
    return student_id.partition("/")[0]


@dataclass(frozen=True, slots=True)
class LeftoverCheck:
    """Finds processes and shared memory that a run leaves behind.

    Attributes:
        run_id: value of `RUN_ID_VARIABLE` in the environment of the run's processes.
        segments: names of shared memory segments from before the run.
    """

    run_id: str
    segments: frozenset[str]

    @classmethod
    def before(cls, run_id: str) -> Self:
        """Create the check and record the existing segments; call this before the run starts."""
        return cls(run_id, _segments())

    def leftovers(self, settle_s: float = 5.0) -> tuple[str, ...]:
        """Describe what the run left behind, after up to `settle_s` seconds for it to disappear."""
        deadline = time.monotonic() + settle_s
        while (found := self._find_leftovers()) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return found

    def _find_leftovers(self) -> tuple[str, ...]:
        new = _segments() - self.segments
        segments = sorted(new - _segments_in_use()) if new else []
        memory = (f"shared memory {SHARED_MEMORY / name}" for name in segments)
        return (*_processes_of_run(self.run_id), *memory)


def _segments() -> frozenset[str]:
    names = os.listdir(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else ()
    return frozenset(name for name in names if not name.startswith(_FOREIGN_PREFIXES))


def _processes_of_run(run_id: str) -> list[str]:
    """Describe all processes of the run except this one."""
    variable = f"{RUN_ID_VARIABLE}={run_id}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with contextlib.suppress(OSError):  # the process ended, or belongs to another user
            if pid != os.getpid() and variable in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ")
                found.append(f"process {pid}: {command.decode(errors='replace').strip()[:200]}")
    return found


def _segments_in_use() -> set[str]:
    """Return the names of segments that live processes use.

    Such a process is another program, or is itself reported as left behind.
    """
    paths: set[str] = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # the process ended, or belongs to another user
            paths.update((folder / "maps").read_text().split())
            for descriptor in (folder / "fd").iterdir():
                with contextlib.suppress(OSError):  # closed meanwhile
                    paths.add(os.readlink(descriptor))
    return {Path(path).name for path in paths if path.startswith(f"{SHARED_MEMORY}/")}
