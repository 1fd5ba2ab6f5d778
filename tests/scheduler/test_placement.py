"""Who gets which machine: cases, and laws that hold whatever is wished."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.scheduler.placement import (
    FRESH_S,
    HOLD_S,
    Change,
    Place,
    Wish,
    desired_of,
    place,
    wish_of,
)

A, B = Wish("a", "ca", 1, 1), Wish("b", "cb", 1, 1)


def waiting(*names: str) -> list[Place]:
    return [Place(name) for name in names]


def after(
    places: Sequence[Place], changes: Sequence[Change], wishes: Sequence[Wish]
) -> list[Place]:
    """The machines when all of them have done what they were ordered."""
    contents = {wish.service: wish.content_id for wish in wishes}
    to = {change.machine_id: change.service for change in changes}
    return [
        replace(one, service=to[one.machine_id], content_id=contents.get(to[one.machine_id], ""))
        if one.machine_id in to
        else one
        for one in places
    ]


def test_a_machine_that_waits_is_given_to_a_service_that_lacks_a_teacher() -> None:
    (change,) = place(waiting("m"), [A])
    assert (change.machine_id, change.service) == ("m", "a")
    assert "teacher 1 of 1 that a wants" in change.why


def test_nothing_changes_where_everybody_has_what_it_wants() -> None:
    assert place([Place("m", "a", "ca"), Place("n")], [A]) == ()


def test_one_that_has_the_model_goes_before_one_that_would_fetch_it() -> None:
    places = [Place("m"), Place("n", cached=frozenset({"ca"}))]
    assert [c.machine_id for c in place(places, [A])] == ["n"]


def test_a_machine_too_many_is_given_to_another_service_before_one_is_taken() -> None:
    places = [Place("m", "a", "ca"), Place("n", "a", "ca"), Place("o", "c", "cc")]
    (change,) = place(places, [A, B, Wish("c", "cc", 0, 1, priority=-5)])
    assert (change.machine_id, change.service) == ("n", "b")
    assert "taken from a" in change.why


def test_the_one_that_serves_stays_and_the_one_that_starts_goes() -> None:
    places = [Place("m", "a", "ca"), Place("n", "a", "ca", serves=True)]
    assert [c.machine_id for c in place(places, [A])] == ["m"]


def test_a_higher_priority_takes_what_is_wanted_and_leaves_the_least() -> None:
    low, high = Wish("low", "cl", 1, 3), Wish("high", "ch", 0, 5, priority=1)
    places = [Place(f"m{n}", "low", "cl", serves=True) for n in range(3)]
    changes = place(places, [low, high])
    assert [(c.machine_id, c.service) for c in changes] == [("m1", "high"), ("m2", "high")]


def test_a_machine_that_others_use_is_replaced() -> None:
    places = [Place("m", "a", "ca", serves=True, available=False), Place("n")]
    changes = {c.machine_id: c.service for c in place(places, [A])}
    assert changes == {"m": "", "n": "a"}


def test_a_machine_is_not_asked_again_for_what_it_could_not_do() -> None:
    failing = Place("m", "a", "ca", refuses=frozenset({"a"}))
    (change,) = place([failing], [A])
    assert change.service == ""
    assert "could not start" in change.why
    assert place([replace(failing, service="")], [A]) == ()
    assert [c.service for c in place([replace(failing, service="")], [A, B])] == ["b"]


def test_a_service_that_nobody_knows_keeps_its_machine() -> None:
    assert place([Place("m", "lost", "cl", serves=True)], [A]) == ()


def test_a_service_that_is_withdrawn_gives_all_back() -> None:
    assert [c.service for c in place([Place("m", "a", "ca")], [Wish("a", "ca", 0, 0)])] == [""]


def test_another_content_is_another_teacher() -> None:
    (change,) = place([Place("m", "a", "old", serves=True)], [A])
    assert (change.machine_id, change.service) == ("m", "a")


@pytest.mark.parametrize(
    ("desired", "elsewhere", "expected"),
    [(None, 0, (2, 2)), (0, 0, (0, 0)), (1, 0, (2, 2)), (3, 0, (2, 3)), (9, 0, (2, 4)),
     (3, 1, (1, 2)), (3, 7, (0, 0))],
)  # fmt: skip
def test_wishes_are_bounded_and_count_other_teachers(
    desired: int | None, elsewhere: int, expected: tuple[int, int]
) -> None:
    wish = wish_of("a", "c", least=2, most=4, desired=desired, elsewhere=elsewhere)
    assert (wish.least, wish.wanted) == expected


SERVICES = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("said", "students", "age_s", "led_s", "count"),
    [
        (3, True, FRESH_S, HOLD_S, 3),
        (0, False, FRESH_S - 1, HOLD_S, 2),  # whoever has just deployed sees it work
        (0, False, FRESH_S, 0.0, 0),
        (None, False, FRESH_S, HOLD_S, 0),
        (None, False, FRESH_S - 1, HOLD_S, 2),
        (None, False, FRESH_S, HOLD_S - 1, 4),  # perhaps nobody is back yet: it keeps what it has
        (None, True, FRESH_S, HOLD_S, 4),
    ],
)
def test_what_nobody_says_is_what_there_is_a_reason_for(
    said: int | None, students: bool, age_s: float, led_s: float, count: int
) -> None:
    found = desired_of(said, least=2, has=4, students=students, age_s=age_s, led_s=led_s)
    assert found == count


some = settings(max_examples=settings().max_examples // 2)


@st.composite
def wishes(draw: st.DrawFn) -> list[Wish]:
    found = []
    for name in draw(st.sets(st.sampled_from(SERVICES))):
        least = draw(st.integers(0, 3))
        more = draw(st.integers(0, 3))
        found.append(Wish(name, f"c{name}", least, least + more, draw(st.integers(-1, 1))))
    return found


@st.composite
def machines(draw: st.DrawFn) -> list[Place]:
    found = []
    for number in range(draw(st.integers(0, 10))):
        service = draw(st.sampled_from(("", *SERVICES)))
        old = draw(st.integers(0, 9)) == 0
        found.append(
            Place(
                f"m{number}",
                service,
                ("old" if old else f"c{service}") if service else "",
                bool(service) and draw(st.booleans()),
                draw(st.integers(0, 9)) > 0,
                draw(st.frozensets(st.sampled_from(SERVICES), max_size=1)),
                draw(st.frozensets(st.sampled_from([f"c{name}" for name in SERVICES]))),
            )
        )
    return found


def holding(places: Sequence[Place], wish: Wish) -> int:
    return sum(
        one.service == wish.service
        and one.content_id == wish.content_id
        and one.available
        and wish.service not in one.refuses
        for one in places
    )


@some
@given(machines(), wishes())
def test_orders_are_carried_out_and_then_there_are_no_more(
    places: list[Place], asked: list[Wish]
) -> None:
    changes = place(places, asked)
    assert len({change.machine_id for change in changes}) == len(changes)
    then = after(places, changes, asked)
    assert place(then, asked) == ()
    assert place(list(reversed(places)), list(reversed(asked))) == changes


@some
@given(machines(), wishes())
def test_nobody_has_too_many_and_no_machine_waits_that_is_wanted(
    places: list[Place], asked: list[Wish]
) -> None:
    then = after(places, place(places, asked), asked)
    for wish in asked:
        has = holding(then, wish)
        assert has <= wish.wanted
        for one in then:
            idle = one.available and not one.service and wish.service not in one.refuses
            assert not (idle and has < wish.wanted)


@some
@given(machines(), wishes())
def test_what_goes_first_lacks_nothing_that_a_later_one_has(
    places: list[Place], asked: list[Wish]
) -> None:
    then = after(places, place(places, asked), asked)
    for first in asked:
        if (has := holding(then, first)) >= first.wanted:
            continue
        for later in asked:
            others = [one for one in then if _could_move(one, later, first)]
            beyond_least = holding(then, later) > later.least
            if has < first.least:
                before = (-first.priority, first.service) < (-later.priority, later.service)
                assert not (others and (beyond_least or before)), (first, later)
            elif (-first.priority, first.service) < (-later.priority, later.service):
                assert not (others and beyond_least), (first, later)


def test_who_can_use_little_gets_a_machine_of_one_that_has_none_yet() -> None:
    """Not that of `a`, which would have to begin anew on the one that is left."""
    places = [Place("m0", "a", "ca"), Place("m1"), Place("m2", "a", "old", refuses=frozenset("d"))]
    asked = [Wish("a", "ca", 0, 1), Wish("c", "cc", 1, 1), Wish("d", "cd", 0, 1)]
    changes = {change.machine_id: change.service for change in place(places, asked)}
    assert changes == {"m1": "d", "m2": "c"}


def _could_move(one: Place, later: Wish, first: Wish) -> bool:
    has = one.available and one.service == later.service != first.service
    return has and first.service not in one.refuses


@some
@given(machines(), wishes())
def test_no_machine_moves_without_need(places: list[Place], asked: list[Wish]) -> None:
    changes = place(places, asked)
    then = after(places, changes, asked)
    by_name = {one.machine_id: one for one in places}
    for wish in asked:
        # Taken from one that keeps less than it wants only if nothing waits any more.
        lost = [c for c in changes if by_name[c.machine_id].service == wish.service]
        needless = [c for c in lost if c.service == "" and by_name[c.machine_id].available]
        for change in needless:
            one = by_name[change.machine_id]
            current = one.content_id == wish.content_id and wish.service not in one.refuses
            assert not current or holding(then, wish) >= wish.wanted


@some
@given(machines(), wishes())
def test_who_lacks_nothing_keeps_its_machines_where_all_have_enough(
    places: list[Place], asked: list[Wish]
) -> None:
    """And where each machine will do for each: else it may have to leave one to who needs that."""
    places = [replace(one, refuses=frozenset()) for one in places]
    changes = place(places, asked)
    gained = Counter(change.service for change in changes if change.service)
    then = after(places, changes, asked)
    if all(holding(then, wish) == wish.wanted for wish in asked):
        for wish in asked:
            assert gained[wish.service] <= max(0, wish.wanted - holding(places, wish))
