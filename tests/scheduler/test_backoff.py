"""Backoff: full jitter below a ceiling that doubles up to a cap."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.backoff import Rest, delay_s, next_s


@dataclass(frozen=True)
class Draws:
    """Always draws the same number."""

    number: float

    def random(self) -> float:
        return self.number


def test_the_ceiling_doubles_until_the_cap() -> None:
    half = Draws(0.5)
    delays = [delay_s(attempt, half, base_s=0.2, cap_s=1.0) for attempt in range(5)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


@given(attempt=st.integers(0, 10**9), number=st.floats(0, 1, exclude_max=True))
def test_any_number_of_attempts_stays_below_the_cap(attempt: int, number: float) -> None:
    assert 0 <= delay_s(attempt, Draws(number), base_s=0.1, cap_s=5.0) < 5.0


def test_clients_that_fail_together_come_back_apart(rng: random.Random) -> None:
    delays = sorted(delay_s(10, rng, cap_s=1.0) for _ in range(400))
    assert delays[40] < 0.25  # full jitter: from 0 on, not from half the ceiling on
    assert delays[-40] > 0.75


@pytest.mark.parametrize(("attempt", "base_s", "cap_s"), [(-1, 0.1, 1), (0, -0.1, 1), (0, 0.1, -1)])
def test_nothing_negative(attempt: int, base_s: float, cap_s: float) -> None:
    with pytest.raises(ValueError, match="nothing negative"):
        delay_s(attempt, Draws(0.5), base_s, cap_s)


def test_what_fails_rests_longer_each_time_and_not_at_all_once_it_does_well() -> None:
    half, rest, ends = Draws(0.5), Rest(), []
    for _ in range(4):
        rest = rest.after(False, 100.0, half, base_s=1.0, cap_s=6.0)
        ends.append(rest.until_s)
    assert ends == [101.0, 102.0, 103.0, 103.0]
    assert rest.after(True, 100.0, half) == Rest()


def test_the_first_whose_rest_is_over_is_waited_for() -> None:
    rests = [Rest(), Rest(3, 130.0), Rest(2, 104.0)]
    assert next_s(rests, 100.0, 60.0) == 4.0
    assert next_s(rests, 105.0, 60.0) == 0.0, "it rested while others were tried"
    assert next_s(rests[:2], 105.0, 60.0) == 25.0
    assert next_s(rests[:2], 105.0, 5.0) == 5.0
    assert next_s(rests[:1], 105.0, 60.0) == 60.0, "who does well waits for what wakes all"
