"""The error of a prediction, with its interval."""

from __future__ import annotations

from ..report import Estimate


def error_of(ratios: Estimate) -> Estimate:
    """Return the error of a prediction in percent; 0 is exact.

    Args:
        ratios: measured rate / predicted rate, estimated over the windows of one measurement.
    """
    ends = (abs(ratios.low - 1), abs(ratios.high - 1))
    least = 0.0 if ratios.low <= 1 <= ratios.high else min(ends)
    percents = (100 * error for error in (abs(ratios.value - 1), least, max(ends)))
    return Estimate(*(round(percent, 2) for percent in percents))
