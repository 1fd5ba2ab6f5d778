"""Estimators: equal to the plain computation over the latest measurements, in bounded memory."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.rates import LowQuantile, RecentMean, RecentMedian, RecentRate

measurement = st.floats(0, 1e6)


@given(
    measurements=st.lists(measurement, max_size=60),
    size=st.integers(1, 20),
    q=st.floats(0, 1),
)
def test_the_quantile_is_that_of_the_latest(measurements: list[float], size: int, q: float) -> None:
    estimate = LowQuantile(size, q)
    assert estimate.value is None
    for count, value in enumerate(measurements, 1):
        estimate.add(value)
        latest = sorted(measurements[max(0, count - size) : count])
        assert len(estimate) == len(latest)
        assert estimate.value == latest[math.floor(q * (len(latest) - 1))]


def test_a_low_quantile_of_steps_ignores_those_that_were_hindered() -> None:
    steps = LowQuantile(size=10, q=0.2)
    for seconds in (0.10, 0.11, 5.0, 0.10, 7.0, 0.12, 6.0, 0.11, 9.0, 4.0):
        steps.add(seconds)
    assert steps.value == 0.10


def test_a_median_follows_a_throttled_teacher_after_half_its_memory() -> None:
    median = RecentMedian(size=6)
    for _ in range(20):
        median.add(0.1)
    for _ in range(3):
        median.add(0.3)
    assert median.value == 0.1
    median.add(0.3)
    assert median.value == 0.3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_no_measurement_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="measurement"):
        RecentMedian().add(bad)


@pytest.mark.parametrize(("size", "q"), [(0, 0.5), (5, -0.1), (5, 1.1)])
def test_settings_out_of_range_are_refused(size: int, q: float) -> None:
    with pytest.raises(ValueError, match="needs size"):
        LowQuantile(size, q)


def test_a_steady_rate_is_seen_as_it_is_from_the_first_second_on() -> None:
    rate = RecentRate(horizon_s=4.0)
    assert rate.value(100.0) == 0.0
    for tick in range(1, 1001):  # 32 samples each 0.1 s
        rate.add(32, 100 + tick / 10)
        if tick > 10:
            assert rate.value(100 + tick / 10) == pytest.approx(320, rel=0.12)


def test_a_rate_falls_to_nothing_when_nothing_happens() -> None:
    rate = RecentRate(horizon_s=4.0)
    for tick in range(100):
        rate.add(1, tick / 10)
    assert rate.value(11.9) == pytest.approx(5, rel=0.15)
    assert rate.value(20.0) == 0.0


def test_a_rate_remembers_no_more_the_faster_things_happen() -> None:
    rate = RecentRate(horizon_s=1.0)
    for tick in range(20_000):
        rate.add(1, tick / 10_000)
    assert len(rate._steps) <= RecentRate.STEPS
    assert rate.value(2.0) == pytest.approx(10_000, rel=0.05)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_horizon_is_above_0_s(bad: float) -> None:
    with pytest.raises(ValueError, match="horizon"):
        RecentRate(bad)


@given(st.integers(1, 20), st.lists(st.floats(0, 1e6), max_size=60))
def test_the_mean_is_that_of_the_latest(size: int, measurements: list[float]) -> None:
    mean = RecentMean(size)
    assert mean.value is None
    for count, measurement in enumerate(measurements, 1):
        mean.add(measurement)
        latest = measurements[:count][-size:]
        assert len(mean) == len(latest)
        assert mean.value == pytest.approx(sum(latest) / len(latest))
    with pytest.raises(ValueError, match="not a measurement"):
        mean.add(float("nan"))
    with pytest.raises(ValueError, match="size >= 1"):
        RecentMean(0)
