"""How far a prediction is from what came: one figure with its interval."""

from __future__ import annotations

from ..report import Estimate


def error_of(ratios: Estimate) -> Estimate:
    """Percent that it is off, from what came in times of what was predicted: 0 is exact.

    Args:
        ratios: over the windows of one measurement.
    """
    ends = (abs(ratios.low - 1), abs(ratios.high - 1))
    least = 0.0 if ratios.low <= 1 <= ratios.high else min(ends)
    percents = (100 * error for error in (abs(ratios.value - 1), least, max(ends)))
    return Estimate(*(round(percent, 2) for percent in percents))
