"""Which core does what, and how many core-seconds each part of the mesh has used."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import psutil


@dataclass(frozen=True, slots=True)
class Cores:
    """Who may run where.

    Attributes:
        student: the one core of the training process, the same in all modes.
        others: the cores of everything else; the same core again where there is only one.
    """

    student: frozenset[int]
    others: frozenset[int]

    @classmethod
    def divide(cls, available: Iterable[int]) -> Self:
        """One core for the student, the rest for the mesh."""
        first, *rest = sorted(available)
        return cls(frozenset({first}), frozenset(rest or [first]))


class CpuMeter:
    """Core-seconds of child processes with all their descendants, by role, since it was made.

    A process that dies takes its figures with it: `sample` now and then, and before a kill.

    Args:
        roles: for each role, the process ids that it has now; what they used so far is left out.
    """

    def __init__(self, roles: Mapping[str, Iterable[int]]) -> None:
        self._role_of: dict[int, str] = {}
        self._baseline: dict[psutil.Process, float] = {}
        self._latest: dict[psutil.Process, tuple[str, float]] = {}
        for role, pids in roles.items():
            for pid in pids:
                self._role_of[pid] = role
        self.sample()
        self._baseline = {process: used for process, (_, used) in self._latest.items()}

    def add(self, role: str, pid: int) -> None:
        """A process that began after the meter: all that it uses counts."""
        self._role_of[pid] = role

    def sample(self) -> None:
        """Read the figures of all processes that live."""
        for pid, role in list(self._role_of.items()):  # another thread may add one
            with contextlib.suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                for process in (root, *root.children(recursive=True)):
                    self._read(process, role)

    def seconds(self, role: str) -> float:
        """Core-seconds of a role, as of the last sample."""
        return sum(
            used - self._baseline.get(process, 0.0)
            for process, (own, used) in self._latest.items()
            if own == role
        )

    def _read(self, process: psutil.Process, role: str) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            self._latest[process] = (role, times.user + times.system)
