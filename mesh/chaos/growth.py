"""Whether memory grows, though now and then an engine dies and another begins small."""

from __future__ import annotations

import numpy as np

from ...proto.arena import Array
from .trace import Figures, Seen

#: A process that has just begun still loads.
WARM_S = 8.0
#: An engine fills what it keeps for so long: the latest events, and memory for each kind of fault.
#: Measured: it grows for 40 to 90 s, as it meets faults, and stays within 1 MiB for minutes then.
ENGINE_WARM_S = 100.0
#: Fewer measurements say nothing.
LEAST_POINTS = 10
#: Pairs of measurements closer than this say more about noise than about growth.
LEAST_APART_S = 8.0
BOTH, TRAINER = "trainer and engine", "trainer"


def growth(seen: Seen) -> list[tuple[str, float]]:
    """Slopes of memory less volume, in bytes per second, each with what it is of.

    Theil and Sen's regression: the median slope over pairs of measurements, which no step and no
    outlier moves. Trainer and engine together are compared within one life of the engine, as each
    new one begins smaller; the trainer, which shares the buffer with it, over the whole run.
    """
    points = [figures for figures in seen.figures if figures.trainer_bytes and figures.engine_bytes]
    births = _births(seen.figures)
    warm = [one for one in points if one.at_s - births[one.engine_pid] >= ENGINE_WARM_S]
    found = []
    for what, used, sizes, lives in (
        (
            BOTH,
            warm,
            [one.trainer_bytes + one.engine_bytes - one.volume_bytes for one in warm],
            [one.engine_pid for one in warm],
        ),
        (
            TRAINER,
            late := [one for one in points if one.at_s - seen.began_s >= WARM_S],
            [one.trainer_bytes - one.volume_bytes / 2 for one in late],
            [0] * len(late),
        ),
    ):
        times = np.array([one.at_s for one in used])
        slope = median_slope(times, np.array(sizes), np.array(lives))
        if slope is not None:
            found.append((what, slope))
    return found


def median_slope(times_s: Array, sizes: Array, lives: Array) -> float | None:
    """The median slope over pairs of points of one life; None where there are too few.

    Args:
        times_s: (n,), in seconds.
        sizes: (n,), in bytes.
        lives: (n,), what tells apart pieces that are not compared with each other.
    """
    if len(times_s) < LEAST_POINTS:
        return None
    slopes = []
    for at in range(1, len(times_s)):
        apart_s = times_s[at] - times_s[:at]
        usable = (lives[:at] == lives[at]) & (apart_s >= LEAST_APART_S)
        slopes.append((sizes[at] - sizes[:at][usable]) / apart_s[usable])
    joined = np.concatenate(slopes)
    return float(np.median(joined)) if len(joined) >= LEAST_POINTS else None


def _births(figures: tuple[Figures, ...]) -> dict[int, float]:
    births: dict[int, float] = {}
    for one in figures:
        births.setdefault(one.engine_pid, one.at_s)
    return births
