"""The token bucket: what passes is bounded, and who keeps below the rate is never refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.limits import Bucket, Rate, full, take

RATES = st.builds(
    Rate,
    per_second=st.floats(0.01, 1000.0),
    burst=st.integers(1, 100).map(float),
)
GAPS = st.lists(st.floats(0.0, 5.0), max_size=100)


def passed(rate: Rate, times: list[float]) -> list[float]:
    """Those of `times` at which something passed."""
    bucket, out = full(rate, times[0] if times else 0.0), []
    for now in times:
        bucket, ok = take(rate, bucket, now)
        if ok:
            out.append(now)
    return out


@given(RATES, GAPS)
def test_over_any_stretch_no_more_passes_than_the_burst_and_the_rate(
    rate: Rate, gaps: list[float]
) -> None:
    times = passed(rate, list(itertools.accumulate(gaps)))
    for first, last in itertools.combinations(range(len(times)), 2):
        stretch_s = times[last] - times[first]
        assert last - first + 1 <= rate.burst + rate.per_second * stretch_s + 1e-6


@given(RATES, st.lists(st.floats(0.0, 5.0), min_size=1, max_size=100))
def test_who_keeps_below_the_rate_is_never_refused(rate: Rate, extra: list[float]) -> None:
    # A little more than one period, so that rounding refuses nobody.
    times = list(itertools.accumulate(1.001 / rate.per_second + more for more in extra))
    assert passed(rate, times) == times


@given(RATES, GAPS)
def test_a_burst_passes_after_a_pause_and_not_one_more(rate: Rate, gaps: list[float]) -> None:
    bucket = full(rate, 0.0)
    for now in itertools.accumulate(gaps):
        bucket, _ = take(rate, bucket, now)
    rested = bucket.at + rate.burst / rate.per_second * 1.001 + 1e-3
    answers = []
    for _ in range(int(rate.burst) + 1):
        bucket, ok = take(rate, bucket, rested)
        answers.append(ok)
    assert answers == [True] * int(rate.burst) + [False]


@given(RATES, st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_a_clock_that_goes_back_adds_nothing(rate: Rate, tokens: float, back: float) -> None:
    bucket = Bucket(min(tokens, rate.burst), 1000.0)
    after, _ = take(rate, bucket, 1000.0 - back, cost=0.5)
    assert after.tokens <= bucket.tokens
    assert after.at == bucket.at


def test_a_refusal_takes_nothing() -> None:
    rate = Rate(1.0, 2.0)
    bucket, ok = take(rate, Bucket(1.5, 0.0), 0.0, cost=2.0)
    assert (bucket, ok) == (Bucket(1.5, 0.0), False)
    assert take(rate, bucket, 0.5, cost=2.0)[1]


@pytest.mark.parametrize("wrong", [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.5), (float("inf"), 1.0)])
def test_a_rate_that_lets_nothing_or_everything_pass_is_refused(
    wrong: tuple[float, float],
) -> None:
    with pytest.raises(ValueError, match="rate"):
        Rate(*wrong)
