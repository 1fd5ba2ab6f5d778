"""Who is named as a straggler: the much slower, when it lasts; the silent, at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.stragglers import CLEARED, LASTING_S, SLOWER, Straggling, look

FAST = {"a": 0.01, "b": 0.01, "c": 0.011}
NOBODY: frozenset[str] = frozenset()


def follow(
    speeds: dict[str, float], before: Straggling, start: float, seconds: float
) -> Straggling:
    for tick in range(round(seconds / 0.5) + 1):
        before = look(speeds, NOBODY, before, start + tick * 0.5)
    return before


def test_one_ten_times_slower_is_named_within_seconds() -> None:
    speeds = {**FAST, "slow": 0.1}
    assert follow(speeds, Straggling(), 0.0, LASTING_S - 0.5).named == NOBODY
    assert follow(speeds, Straggling(), 0.0, LASTING_S).named == {"slow"}


def test_what_does_not_last_is_not_told() -> None:
    seen = follow({**FAST, "slow": 0.1}, Straggling(), 0.0, 3.0)
    seen = look(FAST, NOBODY, seen, 3.5)
    assert follow({**FAST, "slow": 0.1}, seen, 4.0, 3.0).named == NOBODY


def test_it_is_cleared_when_it_is_clearly_faster() -> None:
    seen = follow({**FAST, "slow": 0.1}, Straggling(), 0.0, 6.0)
    seen = follow({**FAST, "slow": 0.01 * (SLOWER + CLEARED) / 2}, seen, 6.5, 6.0)
    assert seen.named == {"slow"}
    assert look({**FAST, "slow": 0.015}, NOBODY, seen, 13.0).named == NOBODY


def test_the_silent_are_named_at_once_and_no_longer() -> None:
    seen = look(FAST, {"b"}, Straggling(), 0.0)
    assert seen.named == {"b"}
    assert look(FAST, NOBODY, seen, 0.5).named == NOBODY


def test_of_two_the_slower_is_named_and_alone_nobody_is() -> None:
    assert follow({"a": 0.01, "b": 0.05}, Straggling(), 0.0, 6.0).named == {"b"}
    assert follow({"a": 99.0}, Straggling(), 0.0, 6.0).named == NOBODY


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1e-6, 1e3), max_size=8))
def test_at_least_half_of_a_pool_rounded_down_is_not_slow(speeds: dict[str, float]) -> None:
    named = follow(speeds, Straggling(), 0.0, 6.0).named
    assert len(speeds) - len(named) >= len(speeds) // 2
