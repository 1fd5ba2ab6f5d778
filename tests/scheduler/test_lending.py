"""A machine is given back at once, and taken again only when it has been let be for a while."""

from __future__ import annotations

import random
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.lending import Attempts, LendingConfig, LendingMemory, lend

OWNED = LendingConfig(most_load=1.0, quiet_s=10.0, mean_s=0.0)


def looks(loads: list[float], config: LendingConfig = OWNED) -> list[bool]:
    """Whether it was lent at each look, one a second."""
    memory, lent = LendingMemory(), []
    for now, load in enumerate(loads):
        found, memory = lend(load, None, memory, float(now), config)
        lent.append(found.lent)
    return lent


def test_a_load_takes_it_and_quiet_gives_it_back() -> None:
    lent = looks([0.2, 1.5, *[0.1] * 12])
    assert lent == [True, False, *[False] * 10, True, True]


def test_quiet_is_below_half_of_the_threshold_and_without_a_break() -> None:
    assert not any(looks([2.0, *[0.6] * 30])[0:])
    assert looks([2.0, *[0.1] * 9, 0.7, *[0.1] * 9]) == [False] * 20


def test_a_short_load_counts_for_little() -> None:
    config = LendingConfig(most_load=1.0, mean_s=3.0)
    assert all(looks([0.0, 2.0, 0.0, 0.0, 2.0, 0.0], config))
    assert not all(looks([0.0, 2.0, 2.0, 2.0, 2.0], config))


def test_without_a_threshold_no_load_matters() -> None:
    assert all(looks([64.0] * 5, LendingConfig()))


@pytest.mark.parametrize(("until", "left_s"), [(30.0, 25.0), (inf, 0.0)])
def test_who_asks_has_it_until_the_time_is_over(until: float, left_s: float) -> None:
    found, memory = lend(0.0, until, LendingMemory(), 5.0, OWNED)
    assert (found.lent, found.until_s) == (False, left_s)
    assert "edl agent yield" in found.why
    assert lend(0.0, 30.0, memory, 30.0, OWNED)[0].lent
    assert lend(0.0, None, memory, 6.0, OWNED)[0].lent


@given(st.lists(st.floats(0, 4), min_size=1, max_size=60))
def test_it_is_never_lent_above_the_threshold_nor_soon_after(loads: list[float]) -> None:
    lent = looks(loads)
    for at, is_lent in enumerate(lent):
        # Never while others have it, nor within the quiet time after they had.
        assert not (is_lent and any(load > 1.0 for load in loads[max(0, at - 9) : at + 1]))


def test_attempts_wait_longer_each_time_and_begin_anew_after_a_success() -> None:
    rng, attempts, waits = random.Random(0), Attempts(), []
    for _ in range(8):
        attempts = attempts.failed("a", 100.0, rng, base_s=10.0, cap_s=300.0)
        waits.append(attempts.wait_s("a", 100.0))
    bounds = [min(300.0, 10.0 * 2**n) for n in range(8)]
    assert all(b / 2 <= wait <= b for wait, b in zip(waits, bounds, strict=True))
    assert attempts.blocked(101.0) == ("a",)
    assert attempts.wait_s("b", 101.0) == 0.0
    assert attempts.blocked(100.0 + 301) == ()
    assert attempts.succeeded("a").blocked(100.0) == ()
    again = attempts.succeeded("a").failed("a", 0.0, rng, base_s=10.0, cap_s=300.0)
    assert again.wait_s("a", 0.0) <= 10.0
