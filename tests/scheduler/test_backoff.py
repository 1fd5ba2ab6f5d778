"""Backoff: full jitter below a ceiling that doubles up to a cap."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.backoff import delay_s


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
