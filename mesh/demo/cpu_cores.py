"""CPU cores of the demo: their assignment to processes, and the core-seconds of each role."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class CoreAssignment:
    """Cores of the student, and cores of all other processes.

    Attributes:
        student: the single core of the training process, in all modes but "online_all_cores".
        others: cores of all other processes; the student's core if the machine has only one core.
    """

    student: frozenset[int]
    others: frozenset[int]

    @classmethod
    def divide(cls, available: Iterable[int]) -> Self:
        """Assign one core to the student, the rest to the mesh."""
        first, *rest = sorted(available)
        return cls(frozenset({first}), frozenset(rest or [first]))


class CpuMeter:
    """Counts core-seconds of processes and their descendants, by role, since its creation.

    The CPU time of a process cannot be read after its death, so call `sample` regularly, and before
    each kill.

    Args:
        roles: process ids by role; CPU time before the creation of the meter does not count.
    """

    def __init__(self, roles: Mapping[str, Iterable[int]]) -> None:
        self._role_of = {pid: role for role, pids in roles.items() for pid in pids}
        self._latest: dict[tuple[str, psutil.Process], float] = {}
        self.sample()
        self._baseline = dict(self._latest)

    def add(self, role: str, pid: int) -> None:
        """Add a process that started after the meter's creation; all its CPU time counts."""
        self._role_of[pid] = role

    def sample(self) -> None:
        """Read the CPU time of all live processes."""
        for pid, role in list(self._role_of.items()):  # another thread may call `add`
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        times = process.cpu_times()
                        self._latest[role, process] = times.user + times.system

    def seconds(self, role: str) -> float:
        """Return the core-seconds of a role at the last sample."""
        return sum(
            used_s - self._baseline.get((process_role, process), 0.0)
            for (process_role, process), used_s in self._latest.items()
            if process_role == role
        )
