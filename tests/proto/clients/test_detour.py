"""How long a way that has failed is left alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edl.proto.clients.detour import FIRST_S, MOST_S, Detour

TIMES = st.floats(0, 1e9)


def test_a_way_that_never_failed_may_be_tried() -> None:
    assert Detour().is_over(0.0)


@given(TIMES, st.integers(0, 2000))
def test_each_failure_makes_it_longer_up_to_the_most(now: float, failures: int) -> None:
    pause_s = 0.0
    after = Detour()
    for _ in range(min(failures, 12)):
        after = after.failed(now)
        assert min(2 * pause_s, MOST_S) <= after.until_s - now + 1e-3
        pause_s = after.until_s - now
        assert FIRST_S - 1e-3 <= pause_s <= MOST_S + 1e-3
        assert not after.is_over(now)
        assert after.is_over(now + MOST_S + 1e-3)
    assert Detour(failures, now).failed(now).until_s <= now + MOST_S
    assert after.worked() == Detour()


def test_the_first_pauses() -> None:
    first = Detour().failed(0.0)
    second = first.failed(0.0)
    assert (first.until_s, second.until_s) == (FIRST_S, 2 * FIRST_S)
    assert not second.is_over(FIRST_S)
    assert second.is_over(2 * FIRST_S)
