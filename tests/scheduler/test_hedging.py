"""Late and silent teachers: expected times, hedges, stragglers."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.reader_core import hedging
from edl.scheduler.reader_core.hedging import (
    CLEARED,
    LASTING_S,
    SHARE,
    SLOWER,
    BusyTeacher,
    Flight,
    Hedging,
    Straggling,
)
from edl.scheduler.reader_core.request_pacing import LEAST_S, MOST_STRETCH, Turnarounds, began

BUSY = "abc"  # teachers that need 0.1 s for a request of 32 rows


def known(**seconds: float) -> Turnarounds:
    """Times of teachers that have answered 20 requests of 32 rows."""
    times = Turnarounds()
    for name, per_request_s in seconds.items():
        answer(times, name, 20, per_request_s)
    return times


def answer(times: Turnarounds, teacher: str, count: int, seconds: float) -> None:
    for _ in range(count):
        times.answered(teacher, 32, seconds)


def flights(*batches: int, sent_at: float = 0.0) -> tuple[Flight, ...]:
    return tuple(Flight(100 + batch, 32, batch, sent_at) for batch in batches)


class Decision(NamedTuple):
    hedge: tuple[int, ...]
    late: frozenset[str]
    silent: frozenset[str]


def look(
    *teachers: BusyTeacher,
    now: float,
    times: Turnarounds | None = None,
    hedging: Hedging | None = None,
    sent: int = 0,
    awaited: int | None = None,
) -> Decision:
    """One look; unless it is told otherwise by one that has saved up enough."""
    hedging = hedging or Hedging(tokens=8.0)
    hedging.elapse(now)
    hedge = hedging.find_late(teachers, times or known(a=0.1, b=0.1, c=0.1), sent, awaited, now)
    return Decision(tuple(hedge), hedging.late, hedging.silent)


def busy(now: float, name: str = "b") -> BusyTeacher:
    """A teacher that is in time: it has just answered, and works on what was sent lately."""
    return BusyTeacher(name, flights(8, 9, sent_at=now - 0.1), answered_at=now)


class TestLate:
    def test_late_is_three_times_the_usual_of_the_same_teacher(self) -> None:
        assert not look(BusyTeacher("a", flights(1, 2)), busy(0.29), now=0.29).late
        decision = look(BusyTeacher("a", flights(1, 2)), busy(0.31), now=0.31)
        assert decision.late == {"a"}
        assert decision.hedge == (101,), "the first of them is delivered first"
        assert not decision.silent
        teacher = BusyTeacher("a", flights(1, 2), answered_at=0.25)
        assert not look(teacher, busy(0.5), now=0.5).late
        times, slow = known(a=1.0, b=0.1, c=0.1), BusyTeacher("a", flights(1, 2))
        assert not look(slow, busy(2.9), now=2.9, times=times).late
        assert look(slow, busy(3.1), now=3.1, times=times).late == {"a"}

    def test_awaited_batch_is_late_sooner(self) -> None:
        teacher, other = BusyTeacher("a", flights(1, 2)), busy(0.16)
        assert look(teacher, other, now=0.16, awaited=1).hedge == (101,)
        assert not look(teacher, other, now=0.16, awaited=2 + 5).hedge
        times, slow = known(a=1.0, b=0.1), BusyTeacher("a", flights(1))
        assert look(slow, BusyTeacher("b", ()), now=0.2, times=times, awaited=1).hedge == (101,)
        assert not look(slow, busy(0.3), now=0.3, times=times, awaited=1).hedge

    def test_nothing_is_late_too_soon(self) -> None:
        times = known(a=0.001, b=0.001)
        other = BusyTeacher("b", ())
        assert not look(BusyTeacher("a", flights(1)), other, now=0.09, times=times, awaited=1).late
        assert look(BusyTeacher("a", flights(1)), other, now=0.11, times=times, awaited=1).late
        nothing = Turnarounds()
        assert not look(
            BusyTeacher("a", flights(1)), BusyTeacher("b", ()), now=99.0, times=nothing
        ).late
        teacher = BusyTeacher("a", flights(1, 7), window=2, answered_at=0.55)
        assert not look(teacher, busy(0.59), now=0.59).late
        assert look(teacher, busy(0.62), now=0.62).hedge == (101,)

    def test_hedged_requests_are_hedged_again_only_when_both_are_silent(self) -> None:
        flight = replace(flights(1)[0], also_at=frozenset("b"))
        assert not look(BusyTeacher("a", (flight,)), busy(99.0), now=99.0).hedge
        at_a, at_b = (replace(flights(1)[0], also_at=frozenset(other)) for other in "ba")
        teachers = (BusyTeacher("a", (at_a,)), BusyTeacher("b", (at_b,)))
        assert look(*teachers, busy(99.0, "c"), now=99.0).hedge == (101,)
        at_a, at_b = (replace(flight, also_at=flight.also_at | {"c"}) for flight in (at_a, at_b))
        teachers = (BusyTeacher("a", (at_a,)), BusyTeacher("b", (at_b,)))
        assert not look(*teachers, busy(99.0, "c"), now=99.0).hedge


class TestSilence:
    def test_requests_of_silent_teachers_need_no_budget(self) -> None:
        decision = look(BusyTeacher("a", flights(5, 6)), busy(99.0), now=99.0, hedging=Hedging())
        assert decision.silent == {"a"}
        assert decision.hedge == (105, 106)
        teacher = BusyTeacher("a", flights(1, 2))
        assert look(teacher, busy(0.59), now=0.59).silent == frozenset()
        assert look(teacher, busy(0.61), now=0.61).silent == {"a"}
        decision = look(
            BusyTeacher("a", flights(1)), BusyTeacher("b", ()), now=99.0, hedging=Hedging()
        )
        assert decision.hedge == (101,)
        teachers = [BusyTeacher("a", flights(7)), BusyTeacher("c", flights(3)), busy(99.0)]
        assert look(*teachers, now=99.0).hedge == (103, 107), "what is delivered first"

    def test_leaving_teachers_do_not_help_and_silence_of_all_is_no_silence(self) -> None:
        leaving = BusyTeacher("a", flights(1), usable=False)
        assert look(leaving, busy(99.0), now=99.0).hedge == (101,)
        assert not look(BusyTeacher("c", flights(1)), replace(leaving, flights=()), now=99.0).hedge
        everybody = [BusyTeacher(name, flights(index)) for index, name in enumerate(BUSY)]
        decision = look(*everybody, now=99.0)
        assert decision.late == set(BUSY)
        assert not decision.silent
        assert not decision.hedge

    def test_unobserved_time_does_not_count(self) -> None:
        """The engine was stopped for 60 s: the answers lie in its sockets."""
        teachers, hedging = (
            (BusyTeacher("a", flights(1)), BusyTeacher("b", ())),
            Hedging(tokens=8.0),
        )
        hedging.elapse(0.0)
        for now in (60.0, 60.25):
            assert not look(*teachers, now=now, hedging=hedging).late
        assert look(*teachers, now=60.35, hedging=hedging).hedge == (101,)


class TestBudget:
    def test_earns_one_in_twenty(self) -> None:
        teacher, hedging = BusyTeacher("a", flights(1, 2)), Hedging()
        decision = look(teacher, busy(0.4), now=0.4, hedging=hedging, sent=19)
        assert decision.late == {"a"}
        assert not decision.hedge
        for tick in range(3):  # a hedge is paid once
            now = 0.4 + tick * 0.05
            assert look(teacher, busy(0.4), now=now, hedging=hedging, sent=20).hedge == (101,)
            assert hedging.tokens == pytest.approx(0.0)
        hedged = replace(teacher, flights=(replace(teacher.flights[0], also_at=frozenset("b")),))
        assert not look(hedged, busy(0.55), now=0.55, hedging=hedging, sent=20).hedge

    @given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 2), st.booleans()), min_size=20))
    def test_hedges_stay_within_one_in_twenty(self, looks: list[tuple[int, int, bool]]) -> None:
        hedging, sent = Hedging(), 0
        late: list[int] = []
        hedged: set[int] = set()
        for tick, (more, begun, first_ends) in enumerate(looks):
            now, sent = 0.05 * tick, sent + more
            late += range(10 * tick, 10 * tick + begun)
            also = {number: frozenset("b" if number in hedged else "") for number in late}
            held = (Flight(one, 32, one, now - 0.4, also_at=also[one]) for one in late)
            teacher = BusyTeacher("a", tuple(held))
            decision = look(teacher, busy(now), now=now, hedging=hedging, sent=sent)
            assert not decision.silent
            hedged |= set(decision.hedge)
            assert len(hedged) <= SHARE * sent
            if first_ends:
                del late[:1]


class TestTurnarounds:
    def test_expected_times(self) -> None:
        times = Turnarounds()
        assert times.expected_s("a", 32) is None
        assert times.pool_s(32) is None
        assert times.stretch == 1.0
        times = known(slow=1.0, fast=0.1)
        assert times.expected_s("slow", 32) == pytest.approx(1.0)
        assert times.expected_s("fast", 32) == pytest.approx(0.1)
        assert times.stretch == pytest.approx(1.0)
        times = known(a=0.1, b=0.2, c=5.0)
        assert times.expected_s("new", 32) == pytest.approx(0.2)
        times.forget("b")
        assert times.expected_s("b", 32) == pytest.approx(0.1)
        times = known(a=0.32)
        assert times.expected_s("a", 64) == pytest.approx(0.64)
        assert times.expected_s("a", 1) == pytest.approx(0.32)

    def test_stretch_and_new_speeds(self) -> None:
        times = Turnarounds()
        answer(times, "a", 200, 0.1)
        for _ in range(30):
            times.answered("b", 32, 0.05)
            times.answered("b", 32, 0.15)
        assert 1.3 < times.stretch < 2.5
        times = known(a=0.1)
        answer(times, "a", 1, 60.0)
        expected_s = times.expected_s("a", 32)
        assert expected_s is not None
        assert expected_s < 0.15
        answer(times, "a", 20, 1.0)
        assert times.expected_s("a", 32) == pytest.approx(1.0, rel=0.25)

    def test_measurements(self) -> None:
        times = Turnarounds()
        for rows, seconds in ((0, 1.0), (1, -1.0), (1, nan), (1, inf), (1, 0.0)):
            times.answered("a", rows, seconds)
        assert times.get("a") is None
        assert began(10.0, -inf) == 10.0
        assert began(10.0, 12.0) == 12.0
        times = Turnarounds()
        for _ in range(50):
            times.answered("merges", 32, 0.2)
            times.answered("merges", 32, 0.0)
        assert times.expected_s("merges", 32) == pytest.approx(0.1, rel=0.1)

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 999), st.floats(0, 1e6))))
    def test_expectations_are_bounded(self, answers: list[tuple[str, int, float]]) -> None:
        times = Turnarounds()
        for teacher, rows, seconds in answers:
            times.answered(teacher, rows, seconds)
        assert 1 <= times.stretch <= MOST_STRETCH
        greatest = max((s / r for _, r, s in answers), default=0.0)
        for name in "abc":
            if (known := times.get(name)) is not None:
                assert LEAST_S <= known.seconds_per_row <= max(greatest * (1 + 1e-9), LEAST_S)


Speeds = dict[str, float]
FAST = {"a": 0.01, "b": 0.01, "c": 0.011}
SLOW = {**FAST, "slow": 0.1}
NOBODY: frozenset[str] = frozenset()


def follow(
    speeds: Speeds, for_s: float, seen: Straggling | None = None, now: float = 0.0
) -> Straggling:
    seen = seen or Straggling()
    for tick in range(round(for_s / 0.5) + 1):
        seen = hedging.name_stragglers(speeds, NOBODY, seen, now + tick * 0.5)
    return seen


class TestStragglers:
    def test_lasting_slowness_is_named(self) -> None:
        assert follow(SLOW, LASTING_S - 0.5).named == NOBODY
        assert follow(SLOW, LASTING_S).named == {"slow"}
        seen = hedging.name_stragglers(FAST, NOBODY, follow(SLOW, 3.0), 3.5)
        assert follow(SLOW, 3.0, seen, 4.0).named == NOBODY
        assert follow({"a": 0.01, "b": 0.05}, 6.0).named == {"b"}
        assert follow({"a": 99.0}, 6.0).named == NOBODY

    def test_names_are_cleared(self) -> None:
        between = {**FAST, "slow": 0.01 * (SLOWER + CLEARED) / 2}
        seen = follow(between, 6.0, follow(SLOW, 6.0), 6.5)
        assert seen.named == {"slow"}
        assert hedging.name_stragglers({**FAST, "slow": 0.015}, NOBODY, seen, 13.0).named == NOBODY
        seen = hedging.name_stragglers(FAST, {"b"}, Straggling(), 0.0)
        assert seen.named == {"b"}
        assert hedging.name_stragglers(FAST, NOBODY, seen, 0.5).named == NOBODY

    @given(st.dictionaries(st.sampled_from("abcdefgh"), st.floats(1e-6, 1e3), max_size=8))
    def test_half_of_a_pool_is_not_slow(self, speeds: dict[str, float]) -> None:
        named = follow(speeds, 6.0).named
        assert len(speeds) - len(named) >= len(speeds) // 2
