"""Terms, and when a lease that has run out means a death."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.leadership import (
    Watch,
    grace_s,
    heard,
    is_ahead,
    led_still,
    next_term,
    sweep_until_ms,
)

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000
times = st.integers(0, NOW_MS)


@given(times, times, times)
def test_a_term_is_above_all_that_were_in_force(time_ms: int, stored: int, reported: int) -> None:
    term = next_term(time_ms, stored, reported)
    assert term >= time_ms
    assert term > stored
    assert term > reported or reported > time_ms + DAY_MS


def test_two_leaders_within_a_millisecond_have_two_terms() -> None:
    first = next_term(NOW_MS, 0, 0)
    assert next_term(NOW_MS, first, 0) == first + 1


def test_a_clock_that_fell_behind_is_made_up_for() -> None:
    assert next_term(NOW_MS - 3_600_000, 0, NOW_MS) == NOW_MS + 1


def test_a_term_beyond_a_day_is_not_heeded() -> None:
    assert next_term(NOW_MS, 0, 1 << 62) == NOW_MS
    assert next_term(NOW_MS, 0, 1 << 62, NOW_MS + 5) == NOW_MS + 6, "it hides no other"
    assert not is_ahead((1 << 62, 0), (NOW_MS, 3), NOW_MS)


@pytest.mark.parametrize(
    ("reported", "ahead"),
    [((NOW_MS, 4), True), ((NOW_MS, 3), False), ((NOW_MS - 1, 9), False), ((NOW_MS + 1, 0), True)],
)
def test_a_reader_is_ahead_by_term_then_counter(reported: tuple[int, int], ahead: bool) -> None:
    assert is_ahead(reported, (NOW_MS, 3), NOW_MS) == ahead


def test_leases_are_believed_after_a_time_of_grace_without_a_gap() -> None:
    grace = grace_s(6.0, 3)
    assert grace == pytest.approx(8.0)
    assert sweep_until_ms(Watch(), 1000.0, grace, 4.0) is None
    watch = heard(Watch(), "a", NOW_MS, 0.0, gap_s=4.0)
    for now in range(1, 9):
        time_ms = NOW_MS + 1000 * now
        watch = heard(watch, "a", time_ms, float(now), gap_s=4.0)
        until_ms = sweep_until_ms(watch, now, grace, 4.0)
        assert until_ms == (time_ms + 4000 if now >= 8 else None), "no later: it may hang"
    assert sweep_until_ms(watch, 12.5, grace, 4.0) is None, "it may have been away since"


def test_a_gap_and_another_server_begin_it_anew() -> None:
    watch = heard(heard(Watch(), "a", NOW_MS, 0.0, 4.0), "a", NOW_MS, 3.0, 4.0)
    assert watch.since_s == 0.0
    assert heard(watch, "a", NOW_MS, 7.5, 4.0).since_s == 7.5
    assert heard(watch, "b", NOW_MS, 3.5, 4.0).since_s == 3.5


def test_a_service_is_led_on_for_a_while_after_its_last_member() -> None:
    assert led_still({"a": 1.0, "b": 5.0}, 6.0, 5.0) == {"b": 5.0}
