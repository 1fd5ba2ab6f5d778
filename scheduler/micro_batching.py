"""Which micro-batch a device is fastest at: what to time next, and what to choose in the end.

The sizes are tried from the smallest up, for as long as the next may still be faster. Then those
that may be the fastest take turns, so that whatever slows the machine down for a while slows all of
them. Lower quartiles are compared: what gets in the way makes a run longer, never shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: A size's seconds per sample against the best so far: above it is out, by few runs and by more.
_OUT, _OUT_LATER = 1.3, 1.1
#: Runs after which a size can be out, and after which the closer limit holds.
_LOOK_RUNS, _LATER_RUNS = 5, 25
#: Runs that are enough on a quiet machine.
RUNS = 31
#: Sizes so close to the best are equal, and the smallest of them is chosen: it needs least memory.
_TIE = 1.01

Times = Mapping[int, Sequence[float]]


def next_size(times: Times, sizes: Sequence[int], longest_s: float, runs: int = RUNS) -> int | None:
    """The size to time next.

    Args:
        times: the seconds of each run so far, by size.
        sizes: candidates, ascending.
        longest_s: a size that would likely run longer is not tried.
        runs: of each size that may be the fastest, where there are several.

    Returns:
        None when enough is known.
    """
    tried = [size for size in sizes if times.get(size)]
    if not tried:
        return sizes[0]
    for size in tried:
        if len(times[size]) < _LOOK_RUNS:
            return size
    cost = {size: per_sample_s(size, times[size]) for size in tried}
    best = min(cost.values())
    larger = [size for size in sizes if size > tried[-1]]
    falling_behind = len(tried) > 1 and all(cost[size] > _OUT * best for size in tried[-2:])
    if larger and not falling_behind and larger[0] * best <= longest_s:
        return larger[0]
    rivals = [size for size in tried if cost[size] <= _limit(len(times[size])) * best]
    fewest = min(rivals, key=lambda size: len(times[size]))
    return fewest if len(rivals) > 1 and len(times[fewest]) < runs else None


def choose(times: Times) -> int:
    """The size of the least time per sample; raises ValueError where nothing was timed."""
    cost = {size: per_sample_s(size, runs) for size, runs in times.items() if runs}
    best = min(cost.values())
    return min(size for size in cost if cost[size] <= _TIE * best)


def per_sample_s(size: int, runs: Sequence[float]) -> float:
    """Seconds per sample: the lower quartile of runs of `size` samples each."""
    return sorted(runs)[(len(runs) - 1) // 4] / size


def _limit(runs: int) -> float:
    return _OUT if runs < _LATER_RUNS else _OUT_LATER
