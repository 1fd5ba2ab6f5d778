"""How many teachers one student needs: n = ceil(t_t / t_s), times in seconds per sample (ADR-0002).

The paper (section 3.2) prints the ratio and calls both terms throughputs, which would be upside
down: its own figure 3 needs five P4 for one V100. With times per sample it is right.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, isfinite
from typing import Final

#: A quotient of two floats may exceed the exact one by so much of itself: 2.1 / 0.3 > 7.
ROUNDING: Final = 1e-9


def teachers_needed(t_t: float, t_s: float) -> int:
    """The `n` of the paper's Algorithm 1, line 1: at least 1.

    Args:
        t_t: seconds per sample of one teacher, unhindered.
        t_s: seconds per sample of the student's step, unhindered.

    Raises:
        ValueError: a time is not positive and finite, or their ratio is not finite.
    """
    return rounded_up(time_ratio(t_t, t_s))


def rounded_up(ratio: float) -> int:
    """The least integer not below `ratio` (above 0), floating-point error aside."""
    return ceil(ratio * (1 - ROUNDING))


def time_ratio(t_t: float, t_s: float) -> float:
    """t_t / t_s, above 0: how many teachers' time one student's time is worth.

    Raises:
        ValueError: as for `teachers_needed`.
    """
    _require_seconds(t_t, "t_t")
    _require_seconds(t_s, "t_s")
    ratio = t_t / t_s
    if not 0 < ratio < float("inf"):
        raise ValueError(f"t_t / t_s = {t_t} / {t_s} is beyond what a float can say")
    return ratio


def pooled_t_t(seconds: Sequence[float]) -> float:
    """The seconds per sample of the average teacher of a pool of unequal ones.

    Speeds add up, times do not: k teachers of the pooled time label as many samples per second as
    the k given ones. So it is the harmonic mean.

    Args:
        seconds: seconds per sample of each teacher.

    Raises:
        ValueError: there is no teacher, or a time is not positive and finite.
    """
    if not seconds:
        raise ValueError("no teacher, no pooled time")
    for value in seconds:
        _require_seconds(value, "t_t")
    fastest = min(seconds)  # as the unit, so that no reciprocal overflows
    return fastest * (len(seconds) / sum(fastest / value for value in seconds))


def _require_seconds(value: float, name: str) -> None:
    if not (isfinite(value) and value > 0):
        raise ValueError(f"{name} is a time in seconds per sample, above 0; not {value}")
