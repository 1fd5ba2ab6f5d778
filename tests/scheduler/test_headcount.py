"""Which processes a fleet starts and lets go."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.headcount import CAP_S, HEALTHY_S, Deaths, Hand, died, moves, wanted

HANDS = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=8).map(
    lambda hands: [Hand(str(i), serves, leaves) for i, (serves, leaves) in enumerate(hands)]
)


@given(HANDS, st.integers(0, 8))
def test_it_comes_out_even_and_nobody_comes_while_one_goes(hands: list[Hand], count: int) -> None:
    staying = [hand.name for hand in hands if not hand.leaves]
    found = moves(hands, count, Deaths(), 0.0)
    assert len(staying) + found.start - len(found.drain) == count
    assert found.start == 0 or not found.drain
    assert set(found.drain) <= set(staying)


def test_those_that_nobody_misses_are_let_go_first() -> None:
    hands = [Hand("a"), Hand("b", serves=True), Hand("c", serves=True), Hand("d")]
    assert moves(hands, 3, Deaths(), 0.0).drain == ("d",)
    assert moves(hands, 1, Deaths(), 0.0).drain == ("d", "a", "c")


def test_a_fleet_keeps_its_own_bounds_and_ends_with_the_need() -> None:
    assert [wanted(n, 2, 4) for n in (0, 1, 3, 9)] == [0, 2, 3, 4]


@given(st.integers(0, 1 << 30))
def test_pauses_grow_and_end_with_one_that_stays(seed: int) -> None:
    rng, deaths, now = random.Random(seed), Deaths(), 0.0
    for _ in range(50):
        deaths = died(deaths, 0.1, now, rng)
        assert deaths.retry_at <= now + CAP_S
        now = max(now, deaths.retry_at)
    assert now > CAP_S
    assert moves([], 1, Deaths(1, now + 1.0), now).start == 0
    assert moves([], 1, Deaths(1, now), now).start == 1
    assert died(deaths, HEALTHY_S, now, rng) == Deaths()


def test_the_first_death_is_made_good_at_once() -> None:
    assert died(Deaths(), 1.0, 5.0, random.Random(1)).retry_at == 5.0
