"""Growth of a student's memory, across restarts of its engine."""

from __future__ import annotations

import numpy as np

from ...proto.arena import Array
from .run_trace import StudentStats, StudentTrace

#: Seconds for which a new process may still load modules.
WARM_UP_S = 8.0
#: Seconds for which a new engine may grow: its log of events fills, and each kind of fault
#: allocates once. Measured: it grows for 40 to 90 s, then stays within 1 MiB for minutes.
ENGINE_WARM_UP_S = 100.0
#: Least number of measurements, and of pairs of them, for a slope.
MIN_POINTS = 10
#: Least distance in seconds of a pair; the slope between closer measurements is mostly noise.
MIN_DISTANCE_S = 8.0
BOTH, TRAINER = "trainer and engine", "trainer"
#: Largest slopes, in bytes per second, that do not count as growth. A student receives 1000 KiB/s,
#: 200 of them labels. Within the short life of an engine, or within a minute, caches that fill may
#: cause smaller slopes; the trainer's memory over five minutes allows a tighter limit.
MAX_GROWTH = 100 << 10
MAX_GROWTH_OF_LONG_RUN = 20 << 10


def max_growth(processes: str, seconds: float) -> float:
    """Return the largest slope that does not count as growth, in bytes per second.

    Args:
        processes: `BOTH` or `TRAINER`.
        seconds: length of the run.
    """
    if processes != TRAINER:
        return MAX_GROWTH
    return max(MAX_GROWTH_OF_LONG_RUN, MAX_GROWTH * min(1.0, 60.0 / max(seconds, 1.0)))


def memory_growth(seen: StudentTrace) -> list[tuple[str, float]]:
    """Return slopes of memory without the buffer, each as (processes, bytes per second).

    They are Theil-Sen estimates: the median slope over pairs of measurements, which is robust
    against steps and outliers. Pairs for `BOTH` are from the life of one engine, as a new engine
    begins smaller; pairs for `TRAINER`, which has half of the buffer's PSS, from the whole run.
    """
    points = [one for one in seen.stats if one.trainer_bytes and one.engine_bytes]
    first_seen = _first_seen(seen.stats)
    warm = [one for one in points if one.at_s - first_seen[one.engine_pid] >= ENGINE_WARM_UP_S]
    found = []
    for processes, used, sizes, lives in (
        (
            BOTH,
            warm,
            [one.trainer_bytes + one.engine_bytes - one.volume_bytes for one in warm],
            [one.engine_pid for one in warm],
        ),
        (
            TRAINER,
            late := [one for one in points if one.at_s - seen.began_s >= WARM_UP_S],
            [one.trainer_bytes - one.volume_bytes / 2 for one in late],
            [0] * len(late),
        ),
    ):
        times = np.array([one.at_s for one in used])
        slope = median_slope(times, np.array(sizes), np.array(lives))
        if slope is not None:
            found.append((processes, slope))
    return found


def median_slope(times_s: Array, sizes: Array, lives: Array) -> float | None:
    """Return the median slope over pairs of measurements; None: there are too few pairs.

    Args:
        times_s: (n,), seconds.
        sizes: (n,), bytes.
        lives: (n,); only measurements with equal values form pairs.
    """
    if len(times_s) < MIN_POINTS:
        return None
    slopes = []
    for at in range(1, len(times_s)):
        distance_s = times_s[at] - times_s[:at]
        usable = (lives[:at] == lives[at]) & (distance_s >= MIN_DISTANCE_S)
        slopes.append((sizes[at] - sizes[:at][usable]) / distance_s[usable])
    joined = np.concatenate(slopes)
    return float(np.median(joined)) if len(joined) >= MIN_POINTS else None


def _first_seen(stats: tuple[StudentStats, ...]) -> dict[int, float]:
    """Return the time of the first statistics of each engine, by process id."""
    times: dict[int, float] = {}
    for one in stats:
        times.setdefault(one.engine_pid, one.at_s)
    return times
