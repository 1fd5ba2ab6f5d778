"""Choice of the processes that a fleet starts and drains.

A process that dies is replaced at once. While processes keep dying young, they are replaced after
growing pauses: a model that cannot be loaded must not keep a machine busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backoff import RandomLike, RetryPause, retry_s

#: Seconds after which a process counts as healthy.
HEALTHY_S = 30.0
#: Bounds of the pause before a process that died young is replaced.
BASE_S, CAP_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """A running process of a fleet.

    Attributes:
        name: its name.
        serves: it is ready; else it is starting.
        leaves: it was told to finish and end.
    """

    name: str
    serves: bool = False
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class FleetChange:
    """What a fleet should change now.

    Attributes:
        start: number of processes to start.
        drain: names of processes to drain.
    """

    start: int = 0
    drain: tuple[str, ...] = ()


def fleet_size(desired: int, least: int, most: int) -> int:
    """Return the size of a fleet: 0 for 0, else `desired` within the fleet's bounds."""
    return min(max(desired, least), most) if desired > 0 else 0


def fleet_change(
    processes: Sequence[FleetProcess], count: int, pause: RetryPause, now: float
) -> FleetChange:
    """Return the change that gives the fleet `count` processes.

    Processes that are not ready are drained first, the newest first.

    Args:
        processes: running processes, the oldest first.
        count: desired number.
        pause: pause after processes that died, from `pause_after_exit`.
        now: seconds of a clock that does not go back.
    """
    staying = [process for process in reversed(processes) if not process.leaves]
    missing = count - len(staying)
    if missing > 0:
        return FleetChange(start=missing if now >= pause.until_s else 0)
    least_missed = sorted(staying, key=lambda process: process.serves)
    return FleetChange(
        drain=tuple(process.name for process in least_missed[: len(staying) - count])
    )


def pause_after_exit(pause: RetryPause, ran_s: float, now: float, rng: RandomLike) -> RetryPause:
    """Return the pause after a process ended unasked, after `ran_s` seconds."""
    if ran_s >= HEALTHY_S:
        return RetryPause()
    pause_s = retry_s(pause.failures, rng, BASE_S, CAP_S)
    return RetryPause(pause.failures + 1, max(pause.until_s, now + pause_s))
