"""Choice of the processes that a fleet starts and drains.

A process that dies is replaced at once. If processes die soon after their start, the pauses before
replacements grow: a model that cannot be loaded must not keep a machine busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backoff import RandomLike, RetryPause, retry_s

#: Seconds after its start at which a process counts as healthy.
HEALTHY_S = 30.0
#: Base and cap of the random pauses (`retry_s`) after processes that died before they were healthy.
BASE_S, CAP_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class FleetProcess:
    """A running process of a fleet.

    Attributes:
        name: its name.
        serves: it is ready; else it is starting.
        leaves: it drains.
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


def fleet_size(desired: int, min_size: int, max_size: int) -> int:
    """Return the size of a fleet: `desired` within the fleet's bounds, or 0 if `desired` is 0."""
    return min(max(desired, min_size), max_size) if desired > 0 else 0


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
    drain_order = sorted(staying, key=lambda process: process.serves)
    return FleetChange(drain=tuple(process.name for process in drain_order[: len(staying) - count]))


def pause_after_exit(
    pause: RetryPause, started_s: float, now: float, rng: RandomLike
) -> RetryPause:
    """Return the pause after a process ended without being drained; it was started at `started_s`.

    Processes that were started before the last counted failure do not count: one incident may kill
    several at once.
    """
    if now - started_s >= HEALTHY_S:
        return RetryPause()
    if started_s < pause.until_s:
        return pause
    pause_s = retry_s(pause.failures, rng, BASE_S, CAP_S)
    return RetryPause(pause.failures + 1, now + pause_s)
