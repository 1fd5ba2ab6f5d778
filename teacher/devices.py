"""Where predictors run: the devices of one teacher, as `--devices` names them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ..errors import UsageError

#: More than any machine has.
_MAX_CORES = 1 << 16


@dataclass(frozen=True, slots=True)
class Device:
    """One device, which has a predictor process of its own.

    Attributes:
        name: as backends know it: "cpu" or "gpu:N".
        cores: the CPUs that the process is bound to, one thread on each; empty: any, and the number
            of threads is a setting of its own.
    """

    name: str = "cpu"
    cores: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read "cpu", "cpu:0-3", "cpu:0-1+4-5" or "gpu:N"; raises UsageError."""
        kind, colon, numbers = text.strip().partition(":")
        try:
            if kind == "cpu":
                return cls("cpu", _cores(numbers) if colon else ())
            if kind == "gpu":
                return cls(f"gpu:{_number(numbers) if colon else 0}")
        except ValueError:
            pass
        raise UsageError(
            f"unknown device {text.strip()!r}: write cpu, cpu:FIRST-LAST (cores, more of them with "
            "+, as cpu:0-1+4-5) or gpu:N"
        )

    def __str__(self) -> str:
        if not self.cores:
            return self.name
        return f"{self.name}:{'+'.join(_ranges(self.cores))}"


def parse_devices(text: str) -> tuple[Device, ...]:
    """Read a list as "cpu:0-1,cpu:2-3,gpu:0".

    Raises:
        UsageError: it is no such list, or two of its devices want the same core.
    """
    devices = tuple(Device.parse(part) for part in text.split(","))
    cores = [core for device in devices for core in device.cores]
    if twice := sorted({core for core in cores if cores.count(core) > 1}):
        raise UsageError(f"devices {text!r}: core {twice[0]} stands there twice")
    return devices


def check_cores(devices: Sequence[Device]) -> None:
    """Raise UsageError where a core is named that this process may not use."""
    cores = {core for device in devices for core in device.cores}
    if not cores:
        return
    if not hasattr(os, "sched_setaffinity"):
        raise UsageError("this system binds no process to cores: write cpu instead of cpu:CORES")
    usable = sorted(os.sched_getaffinity(0))
    if missing := sorted(cores - set(usable)):
        raise UsageError(
            f"core {missing[0]} cannot be used: this process has cores {', '.join(_ranges(usable))}"
        )


def _cores(text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        first, dash, last = part.partition("-")
        span = range(_number(first), _number(last if dash else first) + 1)
        if not span or len(span) > _MAX_CORES:
            raise ValueError(part)
        cores.extend(span)
    return tuple(cores)


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(text)
    return int(text)


def _ranges(cores: Sequence[int]) -> list[str]:
    """Runs of neighbours, as "0-1"."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
