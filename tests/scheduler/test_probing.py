"""Pauses before a teacher is asked again, and how often it has to say what it has."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.backoff import delay_s
from edl.scheduler.probing import FULL_PAUSE_S, REFUSED_PAUSE_S, TELLINGS, outputs, pause_s

failures = st.integers(0, 50)
seeds = st.integers(0, 2**32 - 1)


@given(failures, seeds)
def test_the_first_retry_is_made_at_once_and_later_ones_back_off(count: int, seed: int) -> None:
    pause = pause_s(count, random.Random(seed))
    assert pause == (delay_s(count, random.Random(seed)) if count else 0.0)


@given(failures, seeds)
def test_who_does_not_let_us_in_is_asked_rarely_from_the_first_time_on(
    count: int, seed: int
) -> None:
    assert pause_s(count, random.Random(seed), refused=True) >= REFUSED_PAUSE_S


@given(failures, seeds, st.floats(-10, 1e9), st.booleans())
def test_who_is_full_is_asked_when_it_has_room_however_often_it_was(
    count: int, seed: int, room_in_s: float, refused: bool
) -> None:
    pause = pause_s(count, random.Random(seed), refused=refused, room_in_s=room_in_s)
    assert pause == min(max(room_in_s, 0.0), FULL_PAUSE_S)


class TestOutputs:
    @given(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.randoms())
    def test_what_is_said_alike_often_enough_is_believed(
        self, names: list[str], order: random.Random
    ) -> None:
        told = [names]
        while outputs(told) == "ask":
            told.append(order.sample(names, len(names)))
        assert outputs(told) == "believe"
        assert len(told) == TELLINGS

    def test_one_more_or_one_less_is_a_contradiction(self) -> None:
        assert outputs([["a"], ["a", "b"]]) == "contradiction"
        assert outputs([["a", "a"], ["a"]]) == "contradiction"
        assert outputs([["a"], ["b"]]) == "contradiction"
