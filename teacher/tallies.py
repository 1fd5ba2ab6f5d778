"""Figures that each request adds to, shown to Prometheus at a scrape.

A counter of prometheus_client's has a lock of its own and takes as long as a tenth of a small
request. A request adds to several figures, so these are added to under one lock, by whoever holds
them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric


class Tally:
    """A count by the value of one label, or of none.

    Args:
        name: without "_total".
        text: what is counted.
        label: its name; empty: there is none.
        values: of the label, shown from the beginning.
    """

    __slots__ = ("_label", "_name", "_text", "counts")

    def __init__(self, name: str, text: str, label: str = "", values: Iterable[str] = ("",)):
        self._name, self._text, self._label = name, text, label
        self.counts = dict.fromkeys(values, 0)

    def add(self, count: int, value: str = "") -> None:
        self.counts[value] += count

    def family(self) -> Metric:
        labels = [self._label] if self._label else []
        family = CounterMetricFamily(self._name, self._text, labels=labels)
        for value, count in self.counts.items():
            family.add_metric([value] if self._label else [], count)
        return family


class Spread:
    """How values are spread: a histogram.

    Args:
        name: of the metric.
        text: what the values are.
        bounds: the greatest value of each bucket, in order.
    """

    __slots__ = ("_bounds", "_counts", "_name", "_sum", "_text")

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._text, self._bounds = name, text, bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def family(self) -> Metric:
        labels = [*map(_shown, self._bounds), "+Inf"]
        counts = accumulate(self._counts)
        family = HistogramMetricFamily(self._name, self._text)
        family.add_metric([], list(zip(labels, counts, strict=True)), self._sum)
        return family


def _shown(bound: float) -> str:
    """As prometheus_client spells a bound."""
    return str(float(bound))
