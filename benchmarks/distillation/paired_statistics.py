"""Statistics of paired figures: two ways of training, compared seed by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Paired:
    """Statistics of the differences of pairs.

    Attributes:
        mean: mean difference.
        low: lower end of the 95 % interval of the mean, by Student's t.
        high: upper end of the interval.
        p: p-value of the two-sided paired t-test of mean 0; 1 if all differences are 0.
    """

    mean: float
    low: float
    high: float
    p: float

    @classmethod
    def of(cls, a: Sequence[float], b: Sequence[float]) -> Self:
        """Compare `a[i] - b[i]`.

        Raises:
            ValueError: there are fewer than two pairs, or the lengths differ.
        """
        if len(a) != len(b) or len(a) < 2:
            raise ValueError(f"pairs are needed, two or more: {len(a)} and {len(b)} figures")
        differences = [x - y for x, y in zip(a, b, strict=True)]
        mean, spread = statistics.mean(differences), statistics.stdev(differences)
        if spread == 0:  # the test would divide by 0
            return cls(mean, mean, mean, 1.0 if mean == 0 else 0.0)
        from scipy import stats

        half = float(stats.t.ppf(0.975, len(a) - 1)) * spread / math.sqrt(len(a))
        p = float(stats.ttest_rel(a, b).pvalue)
        return cls(mean, mean - half, mean + half, p)
