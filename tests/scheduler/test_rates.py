"""Rates, ratios, pauses and limits."""

from __future__ import annotations

import itertools
import math
import pickle
import random
from dataclasses import dataclass
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.admission import RateLimit, TokenBucket, full_bucket, take_token
from edl.scheduler.backoff import RetryPause, ceiling_s, delay_s, next_retry_s, retry_s
from edl.scheduler.rates import (
    ROUNDING,
    RecentMean,
    RecentMedian,
    RecentQuantile,
    RecentRate,
    harmonic_mean_t_t,
    teachers_needed,
    time_ratio,
)
from edl.scheduler.reachability import (
    EQUAL_ANSWERS,
    FULL_PAUSE_S,
    REFUSED_PAUSE_S,
    believed_outputs,
    pause_s,
)

MEASUREMENTS = st.lists(st.floats(0, 1e6), max_size=60)


class TestRates:
    @given(MEASUREMENTS, st.integers(1, 20), st.floats(0, 1))
    def test_quantile(self, measurements: list[float], size: int, q: float) -> None:
        estimate = RecentQuantile(size, q)
        assert estimate.value is None
        for count, value in enumerate(measurements, 1):
            estimate.add(value)
            latest = sorted(measurements[max(0, count - size) : count])
            assert len(estimate) == len(latest)
            assert estimate.value == latest[math.floor(q * (len(latest) - 1))]

    def test_median_follows_after_half_its_memory(self) -> None:
        median = RecentMedian(size=6)
        for _ in range(20):
            median.add(0.1)
        for _ in range(3):
            median.add(0.3)
        assert median.value == 0.1
        median.add(0.3)
        assert median.value == 0.3

    def test_invalid_measurements_are_refused(self) -> None:
        for bad in (math.nan, math.inf):
            for estimate in (RecentMedian(), RecentMean(3)):
                with pytest.raises(ValueError, match="measurement"):
                    estimate.add(bad)

    def test_rate_is_seen_and_forgotten(self) -> None:
        rate = RecentRate(horizon_s=4.0)
        assert rate.value(100.0) == 0.0
        for tick in range(1, 1001):  # 32 samples each 0.1 s
            rate.add(32, 100 + tick / 10)
            if tick > 10:
                assert rate.value(100 + tick / 10) == pytest.approx(320, rel=0.12)
        rate = RecentRate(horizon_s=4.0)
        for tick in range(100):
            rate.add(1, tick / 10)
        assert rate.value(11.9) == pytest.approx(5, rel=0.15)
        assert rate.value(20.0) == 0.0

    def test_fast_events_are_counted_in_bounded_memory(self) -> None:
        rates = {count: RecentRate(horizon_s=1.0) for count in (1000, 20_000)}
        for count, rate in rates.items():
            for tick in range(count):
                rate.add(1, 2 * tick / count)
            assert rate.value(2.0) == pytest.approx(count / 2, rel=0.05)
        few, many = (len(pickle.dumps(rate)) for rate in rates.values())
        assert many < 1.5 * few

    @given(MEASUREMENTS, st.integers(1, 20))
    def test_mean(self, measurements: list[float], size: int) -> None:
        mean = RecentMean(size)
        assert mean.value is None
        for count, measurement in enumerate(measurements, 1):
            mean.add(measurement)
            latest = measurements[:count][-size:]
            assert len(mean) == len(latest)
            assert mean.value == pytest.approx(sum(latest) / len(latest))

    def test_mean_of_unequal_batches(self) -> None:
        mean = RecentMean(3)
        for seconds, rows in ((9.0, 1), (1.0, 8), (3.0, 4), (2.0, 3)):
            mean.add(seconds, rows)
        assert mean.value == pytest.approx(6 / 15)


seconds = st.floats(min_value=1e-6, max_value=1e3)


class TestRatio:
    @given(t_t=seconds, t_s=seconds)
    def test_teachers_needed(self, t_t: float, t_s: float) -> None:
        n = teachers_needed(t_t, t_s)
        ratio = t_t / t_s
        assert n >= 1
        assert n >= ratio * (1 - ROUNDING)
        assert n - 1 < ratio

    def test_floating_point_error_needs_no_teacher(self) -> None:
        """2.1 / 0.3 is 7.000000000000001 in floating point."""
        for t_t, t_s in itertools.product(range(1, 101), repeat=2):
            assert teachers_needed(t_t / 10, t_s / 10) == math.ceil(Fraction(t_t, t_s))

    @pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
    def test_invalid_times_are_refused(self, bad: float) -> None:
        for times in ((bad, 1.0), (1.0, bad)):
            with pytest.raises(ValueError, match="seconds per sample"):
                teachers_needed(*times)
        with pytest.raises(ValueError, match="seconds per sample"):
            harmonic_mean_t_t([1.0, bad])

    def test_pooled_time_and_impossible_times(self) -> None:
        # 10 and 2.5 samples a second together do as much as two of 6.25.
        assert harmonic_mean_t_t([0.1, 0.4]) == pytest.approx(1 / 6.25)
        with pytest.raises(ValueError, match="at least one teacher"):
            harmonic_mean_t_t([])
        for t_t, t_s in ((1e-320, 1e300), (1e300, 1e-320)):
            with pytest.raises(ValueError, match="float"):
                time_ratio(t_t, t_s)

    @given(st.lists(seconds, min_size=1, max_size=64))
    def test_pooled_time(self, times: list[float]) -> None:
        pooled = harmonic_mean_t_t(times)
        assert len(times) / pooled == pytest.approx(math.fsum(1 / t for t in times))
        assert min(times) * (1 - 1e-9) <= pooled <= max(times) * (1 + 1e-9)


@dataclass(frozen=True)
class Draws:
    """Always draws the same number."""

    number: float

    def random(self) -> float:
        return self.number


class TestBackoff:
    def test_ceiling_doubles_until_the_cap(self) -> None:
        half = Draws(0.5)
        delays = [delay_s(attempt, half, base_s=0.2, cap_s=1.0) for attempt in range(5)]
        assert delays == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])
        half, rest, ends = Draws(0.5), RetryPause(), []
        for _ in range(4):
            rest = rest.failed(100.0, half, base_s=2.0, cap_s=6.0)
            ends.append(rest.until_s)
        assert ends == [101.0, 102.0, 103.0, 103.0]
        assert [retry_s(failures, half, 0.2, 1.0) for failures in range(3)] == [0.0, 0.2, 0.4]
        assert [ceiling_s(attempt, 1.0, 60.0) for attempt in range(4)] == [1.0, 2.0, 4.0, 8.0]
        assert ceiling_s(10**6, 1.0, 60.0) == 60.0

    @given(attempt=st.integers(0, 100), number=st.floats(0, 1, exclude_max=True))
    def test_a_part_that_is_sure(self, attempt: int, number: float) -> None:
        wait_s = RetryPause(attempt).failed(0.0, Draws(number), 10.0, 300.0, min_share=0.5).until_s
        assert ceiling_s(attempt, 10.0, 300.0) / 2 <= wait_s <= ceiling_s(attempt, 10.0, 300.0)

    def test_nothing_negative(self) -> None:
        for attempt, base_s, cap_s in ((-1, 0.1, 1), (0, -0.1, 1), (0, 0.1, -1)):
            with pytest.raises(ValueError, match="must not be negative"):
                delay_s(attempt, Draws(0.5), base_s, cap_s)

    def test_next_attempt(self) -> None:
        rests = [RetryPause(), RetryPause(3, 130.0), RetryPause(2, 104.0)]
        assert next_retry_s(rests, 100.0, 60.0) == 4.0
        assert next_retry_s(rests, 105.0, 60.0) == 0.0, "it rested while others were tried"
        assert next_retry_s(rests[:2], 105.0, 60.0) == 25.0
        assert next_retry_s(rests[:2], 105.0, 5.0) == 5.0
        assert next_retry_s(rests[:1], 105.0, 60.0) == 60.0, (
            "who does well waits for what wakes all"
        )


class TestOutputs:
    @given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.randoms())
    def test_repeated_outputs_are_believed(self, names: list[str], order: random.Random) -> None:
        told = [names]
        while believed_outputs(told) == "ask":
            told.append(order.sample(names, len(names)))
        assert believed_outputs(told) == "believe"
        assert len(told) == EQUAL_ANSWERS

    def test_contradictions(self) -> None:
        assert believed_outputs([["a"], ["a", "b"]]) == "contradiction"
        assert believed_outputs([["a", "a"], ["a"]]) == "contradiction"
        assert believed_outputs([["a"], ["b"]]) == "contradiction"


failures = st.integers(0, 50)
seeds = st.integers(0, 2**32 - 1)


class TestProbing:
    @given(failures, seeds, st.none() | st.floats(-10, 1e9), st.booleans())
    def test_pauses(
        self, count: int, seed: int, retry_after_s: float | None, refused: bool
    ) -> None:
        """The first retry is at once; refusal means a long pause; a full teacher names it."""
        pause = pause_s(count, random.Random(seed), refused=refused, retry_after_s=retry_after_s)
        if retry_after_s is not None:
            assert pause == min(max(retry_after_s, 0.0), FULL_PAUSE_S)
        elif refused:
            assert pause >= REFUSED_PAUSE_S
        else:
            assert pause == (delay_s(count, random.Random(seed)) if count else 0.0)


RATES = st.builds(
    RateLimit, per_second=st.floats(0.01, 1000.0), burst=st.integers(1, 100).map(float)
)
GAPS = st.lists(st.floats(0.0, 5.0), min_size=5, max_size=50)


def passed_at(rate: RateLimit, times: list[float]) -> list[float]:
    """Those of `times` at which something passed."""
    bucket, out = full_bucket(rate, times[0] if times else 0.0), []
    for now in times:
        bucket, ok = take_token(rate, bucket, now)
        if ok:
            out.append(now)
    return out


class TestLimits:
    @given(RATES, GAPS)
    def test_at_most_burst_and_rate(self, rate: RateLimit, gaps: list[float]) -> None:
        times = passed_at(rate, list(itertools.accumulate(gaps)))
        for first, last in itertools.combinations(range(len(times)), 2):
            stretch_s = times[last] - times[first]
            assert last - first + 1 <= rate.burst + rate.per_second * stretch_s + 1e-6

    @given(RATES, st.lists(st.floats(0.0, 5.0), min_size=1, max_size=100))
    def test_below_the_rate_nothing_is_refused(self, rate: RateLimit, extra: list[float]) -> None:
        # A little more than one period, so that rounding refuses nobody.
        times = list(itertools.accumulate(1.001 / rate.per_second + more for more in extra))
        assert passed_at(rate, times) == times

    @given(RATES, GAPS)
    def test_burst_after_a_pause(self, rate: RateLimit, gaps: list[float]) -> None:
        bucket = full_bucket(rate, 0.0)
        for now in itertools.accumulate(gaps):
            bucket, _ = take_token(rate, bucket, now)
        rested = bucket.at + rate.burst / rate.per_second * 1.001 + 1e-3
        answers = []
        for _ in range(int(rate.burst) + 1):
            bucket, ok = take_token(rate, bucket, rested)
            answers.append(ok)
        assert answers == [True] * int(rate.burst) + [False]

    @given(RATES, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
    def test_clock_that_goes_back(self, rate: RateLimit, tokens: float, back: float) -> None:
        bucket = TokenBucket(min(tokens, rate.burst), 1000.0)
        after, _ = take_token(rate, bucket, 1000.0 - back)
        assert after.tokens <= bucket.tokens
        assert after.at == bucket.at

    def test_refusal_takes_nothing(self) -> None:
        rate = RateLimit(1.0, 2.0)
        bucket, ok = take_token(rate, TokenBucket(0.5, 0.0), 0.0)
        assert (bucket, ok) == (TokenBucket(0.5, 0.0), False)
        assert take_token(rate, bucket, 0.5)[1]
