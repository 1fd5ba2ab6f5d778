"""Figures that are added to by hand are shown as prometheus_client shows its own."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from edl.teacher.tallies import Spread, Tally

BOUNDS = (0.5, 1, 2.5, 10)


class Shown(Collector):
    def __init__(self, figure: Tally | Spread) -> None:
        self._figure = figure

    def collect(self) -> Iterable[Metric]:
        return [self._figure.family()]


def lines(registry: CollectorRegistry) -> list[str]:
    """All but when a figure began."""
    return [
        line for line in generate_latest(registry).decode().splitlines() if "_created" not in line
    ]


def shown(figure: Tally | Spread) -> list[str]:
    registry = CollectorRegistry()
    registry.register(Shown(figure))
    return lines(registry)


@given(st.lists(st.floats(0, 20) | st.sampled_from(BOUNDS)))
def test_a_spread_is_a_histogram(values: list[float]) -> None:
    registry = CollectorRegistry()
    theirs = Histogram("a", "b", buckets=BOUNDS, registry=registry)
    ours = Spread("a", "b", BOUNDS)
    for value in values:
        theirs.observe(value)
        ours.add(value)
    assert shown(ours) == lines(registry)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("xy"))))
def test_a_tally_is_a_counter(counts: list[tuple[int, str]]) -> None:
    registry = CollectorRegistry()
    theirs = Counter("a", "b", ["c"], registry=registry)
    ours = Tally("a", "b", "c", ("x", "y"))
    for value in "xy":
        theirs.labels(value)
    for count, value in counts:
        theirs.labels(value).inc(count)
        ours.add(count, value)
    assert shown(ours) == lines(registry)


def test_a_tally_may_have_no_label() -> None:
    registry = CollectorRegistry()
    Counter("a", "b", registry=registry).inc(3)
    ours = Tally("a", "b")
    ours.add(3)
    assert shown(ours) == lines(registry)
