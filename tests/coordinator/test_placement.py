"""Which machine gets a teacher of which service."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl.coordinator.machines.placement import (
    FRESH_S,
    HOLD_S,
    Change,
    PlacedMachine,
    TeacherDemand,
    demand_of,
    desired_of,
    place,
)

A, B = TeacherDemand("a", "ca", 1, 1), TeacherDemand("b", "cb", 1, 1)


def after(
    places: list[PlacedMachine], changes: Sequence[Change], demands: list[TeacherDemand]
) -> list[PlacedMachine]:
    """The machines when all of them have done what they were ordered."""
    contents = {demand.service: demand.content_id for demand in demands}
    there = {one.machine_id: one for one in places}
    for to in changes:
        content_id = contents.get(to.service, "")
        changed = replace(there[to.machine_id], service=to.service, content_id=content_id)
        there[to.machine_id] = changed
    return list(there.values())


SERVICES = ("a", "b", "c", "d")
some = settings(max_examples=settings().max_examples // 2)


@st.composite
def demands(draw: st.DrawFn) -> list[TeacherDemand]:
    found = []
    for name in draw(st.sets(st.sampled_from(SERVICES), min_size=1)):
        least, more = draw(st.integers(0, 3)), draw(st.integers(0, 3))
        found.append(TeacherDemand(name, f"c{name}", least, least + more, draw(st.integers(-1, 1))))
    return found


@st.composite
def machines(draw: st.DrawFn) -> list[PlacedMachine]:
    found = []
    for number in range(draw(st.integers(1, 10))):
        service = draw(st.sampled_from(("", *SERVICES)))
        content_id = draw(st.sampled_from(["old", *[f"c{service}"] * 9])) if service else ""
        serves = bool(service) and draw(st.booleans())
        available = draw(st.integers(0, 9)) > 0
        refuses = draw(st.frozensets(st.sampled_from(SERVICES), max_size=1))
        cached = draw(st.frozensets(st.sampled_from(["ca", "cb", "cc", "cd"])))
        place = PlacedMachine(f"m{number}", service, content_id, serves, available, refuses, cached)
        found.append(place)
    return found


def holding(places: Sequence[PlacedMachine], demand: TeacherDemand) -> int:
    return sum(
        one.service == demand.service
        and one.content_id == demand.content_id
        and one.available
        and demand.service not in one.refuses
        for one in places
    )


def _could_move(one: PlacedMachine, later: TeacherDemand, first: TeacherDemand) -> bool:
    has = one.available and one.service == later.service != first.service
    return has and first.service not in one.refuses


class TestPlacement:
    def test_machines_that_hold_the_content_are_preferred(self) -> None:
        places = [PlacedMachine("m"), PlacedMachine("n", cached=frozenset({"ca"}))]
        assert [c.machine_id for c in place(places, [A])] == ["n"]

    def test_which_machines_move(self) -> None:
        places = [PlacedMachine("m", "a", "ca"), PlacedMachine("n", "a", "ca", serves=True)]
        assert [c.machine_id for c in place(places, [A])] == ["m"]
        places = [
            PlacedMachine("m", "a", "ca"),
            PlacedMachine("n", "a", "ca"),
            PlacedMachine("o", "c", "cc"),
        ]
        (change,) = place(places, [A, B, TeacherDemand("c", "cc", 0, 1, priority=-5)])
        assert (change.machine_id, change.service) == ("n", "b")
        low, high = TeacherDemand("low", "cl", 1, 3), TeacherDemand("high", "ch", 0, 5, priority=1)
        places = [PlacedMachine(f"m{n}", "low", "cl", serves=True) for n in range(3)]
        changes = place(places, [low, high])
        assert [(c.machine_id, c.service) for c in changes] == [("m1", "high"), ("m2", "high")]
        places = [PlacedMachine("m", "a", "ca", serves=True, available=False), PlacedMachine("n")]
        moves = {c.machine_id: c.service for c in place(places, [A])}
        assert moves == {"m": "", "n": "a"}

    def test_known_and_withdrawn_services(self) -> None:
        assert place([PlacedMachine("m", "lost", "cl", serves=True)], [A]) == ()
        assert [
            c.service
            for c in place([PlacedMachine("m", "a", "ca")], [TeacherDemand("a", "ca", 0, 0)])
        ] == [""]
        (change,) = place([PlacedMachine("m", "a", "old", serves=True)], [A])
        assert (change.machine_id, change.service) == ("m", "a")

    @pytest.mark.parametrize(
        ("desired", "elsewhere", "expected"),
        [(0, 0, (0, 0)), (1, 0, (2, 2)), (3, 0, (2, 3)), (9, 0, (2, 4)),
         (3, 1, (1, 2)), (3, 7, (0, 0))],
    )  # fmt: skip
    def test_bounds_of_demands(self, desired: int, elsewhere: int, expected: object) -> None:
        demand = demand_of("a", "c", least=2, most=4, desired=desired, elsewhere=elsewhere)
        assert (demand.least, demand.wanted) == expected

    @pytest.mark.parametrize(
        ("said", "students", "age_s", "led_s", "count"),
        [
            (3, True, FRESH_S, HOLD_S, 3),
            (0, False, FRESH_S - 1, HOLD_S, 2),  # a deployment takes effect at once
            (0, False, FRESH_S, 0.0, 0),
            (None, False, FRESH_S, HOLD_S, 0),
            (None, False, FRESH_S - 1, HOLD_S, 2),
            (None, False, FRESH_S, HOLD_S - 1, 4),  # perhaps nobody is back yet
            (None, True, FRESH_S, HOLD_S, 4),
        ],
    )
    def test_default_counts(
        self, said: int | None, students: bool, age_s: float, led_s: float, count: int
    ) -> None:
        found = desired_of(said, least=2, has=4, students=students, age_s=age_s, led_s=led_s)
        assert found == count

    @some
    @given(machines(), demands(), st.integers(0, 4))
    def test_laws(self, places: list[PlacedMachine], asked: list[TeacherDemand], more: int) -> None:
        """Orders come to rest, waste no machine, and follow guarantees and priorities."""
        asked = [replace(demand, wanted=demand.wanted + more) for demand in asked]
        changes = place(places, asked)
        assert len({change.machine_id for change in changes}) == len(changes)
        assert place(list(reversed(places)), list(reversed(asked))) == changes
        then = after(places, changes, asked)
        assert place(then, asked) == ()
        for first in asked:
            has = holding(then, first)
            assert has <= first.wanted
            if has == first.wanted:
                continue
            idle = [one for one in then if one.available and not one.service]
            assert not [one for one in idle if first.service not in one.refuses]
            for later in asked:
                others = [one for one in then if _could_move(one, later, first)]
                beyond_least = holding(then, later) > later.least
                before = (-first.priority, first.service) < (-later.priority, later.service)
                if has < first.least:
                    assert not (others and (beyond_least or before)), (first, later)
                else:
                    assert not (others and beyond_least and before), (first, later)

    def test_free_machine_for_small_demand(self) -> None:
        """Not that of `a`, which would have to begin anew on the one that is left."""
        places = [
            PlacedMachine("m0", "a", "ca"),
            PlacedMachine("m1"),
            PlacedMachine("m2", "a", refuses=frozenset("d")),
        ]
        asked = [
            TeacherDemand("a", "ca", 0, 1),
            TeacherDemand("c", "cc", 1, 1),
            TeacherDemand("d", "cd", 0, 1),
        ]
        changes = {change.machine_id: change.service for change in place(places, asked)}
        assert changes == {"m1": "d", "m2": "c"}

    @some
    @given(machines(), demands())
    def test_no_needless_moves(
        self, places: list[PlacedMachine], asked: list[TeacherDemand]
    ) -> None:
        asked = [replace(demand, least=0, wanted=min(demand.wanted, 1)) for demand in asked]
        changes = place(places, asked)
        then = after(places, changes, asked)
        by_name = {one.machine_id: one for one in places}
        for demand in asked:
            # Taken from one that keeps less than it wants only if nothing waits any more.
            lost = [c for c in changes if by_name[c.machine_id].service == demand.service]
            needless = [c for c in lost if c.service == "" and by_name[c.machine_id].available]
            for change in needless:
                one = by_name[change.machine_id]
                current = one.content_id == demand.content_id and demand.service not in one.refuses
                assert not current or holding(then, demand) >= demand.wanted

    @some
    @given(machines(), demands())
    def test_machines_are_kept(
        self, places: list[PlacedMachine], asked: list[TeacherDemand]
    ) -> None:
        """Every machine fits every service here, and there are enough."""
        spares = [PlacedMachine(f"spare{number}") for number in range(24)]
        places = [replace(one, refuses=frozenset()) for one in places] + spares
        changes = place(places, asked)
        gained = Counter(change.service for change in changes if change.service)
        then = after(places, changes, asked)
        for demand in asked:
            assert holding(then, demand) == demand.wanted
            assert gained[demand.service] <= max(0, demand.wanted - holding(places, demand))
