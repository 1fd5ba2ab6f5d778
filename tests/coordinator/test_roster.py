"""The roster: registry changes and reports in, assignments out, in virtual time."""

from __future__ import annotations

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.registry import Changes
from edl.coordinator.roster import Roster
from edl.proto import coordinator_pb2 as pb

TTL_S = 6.0
GRACE_S = TTL_S * 4 / 3


class World:
    """A registry and a roster over one clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.registry = MemoryRegistry(clock=lambda: self.now)
        self.roster = Roster("s", TTL_S, 1_000_000, self.now)

    def teacher(self, name: str, incarnation: int = 1, state: str = "serving") -> None:
        facts = {"incarnation": str(incarnation), "address": f"{name}:1", "state": state}
        self.registry.register("teachers", "s", name, facts, TTL_S)

    def look(self, *, sweep: bool = True) -> dict[str, pb.Assignment]:
        if sweep:
            self.registry.sweep("teachers", "s")
        self.roster.apply(self.registry.changes("teachers", "s", self.roster.cursor), self.now)
        self.roster.reconcile(self.registry.names("teachers", "s"), self.now)
        self.roster.give_up_missing(self.now)
        return self.told()

    def told(self) -> dict[str, pb.Assignment]:
        return dict(self.roster.assignments())

    def report(self, student: str = "j/0", want: int = 2, **fields: object) -> None:
        report = pb.StudentReport(student_id=student, want=want, **fields)  # type: ignore[arg-type]
        self.roster.reported(report, self.now)

    def sleep(self, seconds: float, *beating: str) -> None:
        self.now += seconds
        for name in beating:
            assert self.registry.beat("teachers", "s", name, TTL_S, incarnation=1)


@pytest.fixture
def world() -> World:
    return World()


def ids(assignment: pb.Assignment) -> list[str]:
    return [teacher.teacher_id for teacher in assignment.teachers]


def test_a_student_gets_what_it_wants_with_all_it_needs_to_call(world: World) -> None:
    for name in ("a", "b", "c"):
        world.teacher(name)
    world.look()
    world.report(want=2)
    told = world.told()["j/0"]
    assert ids(told) == ["a", "b"]
    assert told.teachers[0].address == "a:1"
    assert told.teachers[0].incarnation == 1
    assert (told.term, told.counter, told.live_teachers) == (1_000_000, 1, 3)
    assert told.reason


def test_nothing_is_told_twice(world: World) -> None:
    world.teacher("a")
    world.look()
    world.report(want=1)
    assert world.told()
    world.report(want=1)
    world.sleep(0.1, "a")
    assert world.look() == {}
    world.registry.beat("teachers", "s", "a", TTL_S, incarnation=1, facts={"t_t_seconds": "9"})
    assert world.look() == {}
    world.roster.subscribed("j/0")
    assert ids(world.told()["j/0"]) == ["a"]


def test_the_epoch_only_grows(world: World) -> None:
    seen = []
    world.report(want=3)
    seen += [(t.term, t.counter) for t in world.told().values()]
    for name in ("a", "b", "c"):
        world.teacher(name)
        seen += [(t.term, t.counter) for t in world.look().values()]
    assert seen == sorted(set(seen))
    assert len(seen) == 4


def test_a_manager_with_a_slow_clock_outbids_what_readers_follow(world: World) -> None:
    world.teacher("a")
    world.look()
    world.report(want=1, term=5_000_000, counter=17)
    told = world.told()["j/0"]
    assert (told.term, told.counter) > (5_000_000, 17)


def test_one_that_is_swept_is_lost_and_one_that_leaves_is_not(world: World) -> None:
    for name in ("a", "b", "c"):
        world.teacher(name)
    world.look()
    world.report(want=3)
    world.told()
    world.registry.leave("teachers", "s", "a")
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost)) == (["b", "c"], [])
    world.sleep(TTL_S - 1, "c")
    world.sleep(2)
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost), told.live_teachers) == (["c"], ["b"], 1)


def test_the_lost_are_remembered_for_three_ttls(world: World) -> None:
    world.teacher("a")
    world.look()
    world.report(want=1)
    world.told()
    world.sleep(TTL_S + 0.1)
    assert list(world.look()["j/0"].lost) == ["a"]
    world.sleep(TTL_S)
    world.teacher("b")
    assert list(world.look()["j/0"].lost) == ["a"]
    world.sleep(2 * TTL_S)
    world.roster.expire(world.now)
    world.report(want=1)
    world.teacher("c")
    assert list(world.look()["j/0"].lost) == ["b"]


def test_a_lost_teacher_that_comes_back_is_not_called_lost(world: World) -> None:
    world.teacher("a")
    world.look()
    world.report(want=1)
    world.told()
    world.sleep(TTL_S + 0.1)
    world.look()
    world.teacher("a")
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost)) == (["a"], [])


def test_a_teacher_that_started_anew_is_told_by_its_incarnation(world: World) -> None:
    world.teacher("a", 1)
    world.look()
    world.report(want=1)
    world.told()
    world.teacher("a", 2)
    told = world.look()["j/0"]
    assert [(t.teacher_id, t.incarnation) for t in told.teachers] == [("a", 2)]
    assert list(told.lost) == []


def test_a_draining_teacher_is_revoked_and_one_that_serves_takes_its_place(world: World) -> None:
    for name in ("a", "b"):
        world.teacher(name)
    world.look()
    world.report(want=1)
    assert ids(world.told()["j/0"]) == ["a"]
    world.registry.beat("teachers", "s", "a", TTL_S, incarnation=1, facts={"state": "draining"})
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost), told.live_teachers) == (["b"], [], 1)


def test_a_teacher_that_was_draining_when_it_was_first_seen_is_never_assigned(
    world: World,
) -> None:
    world.teacher("a", state="draining")
    world.look()
    world.report(want=1)
    assert ids(world.told()["j/0"]) == []


def test_a_student_that_goes_gives_its_teachers_to_another(world: World) -> None:
    world.teacher("a")
    world.teacher("b")
    world.look()
    world.report("j/0", want=2)
    world.report("k/0", want=2)
    told = world.told()
    assert sorted(ids(told["j/0"]) + ids(told["k/0"])) == ["a", "b"]
    world.roster.gone("j/0", world.now)
    assert sorted(ids(world.told()["k/0"])) == ["a", "b"]


def test_a_student_that_is_silent_for_a_ttl_is_gone(world: World) -> None:
    world.teacher("a")
    world.look()
    world.report("j/0", want=1)
    world.sleep(TTL_S - 0.1, "a")
    assert world.roster.expire(world.now) == []
    world.report("j/0", want=1)
    world.sleep(TTL_S - 0.1)
    assert world.roster.expire(world.now) == []
    world.sleep(0.2)
    assert world.roster.expire(world.now) == ["j/0"]
    assert world.roster.students == {}


def test_an_emptied_registry_takes_nobody_away_and_heals(world: World) -> None:
    for name in ("a", "b"):
        world.teacher(name)
    world.look()
    world.report(want=2)
    world.told()
    world.registry.clear()
    assert world.look() == {}
    world.sleep(TTL_S / 3)
    world.teacher("a")
    assert world.look() == {}
    world.sleep(GRACE_S - TTL_S / 3 - 0.1, "a")
    assert world.look() == {}
    world.sleep(0.2, "a")
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost)) == (["a"], ["b"])


def test_after_an_outage_old_deadlines_condemn_nobody_before_the_grace_is_over(
    world: World,
) -> None:
    world.teacher("a")
    world.look()
    world.report(want=1)
    world.told()
    world.sleep(3 * TTL_S + 1)  # all has expired meanwhile
    world.roster.forgive(world.now)
    assert world.look(sweep=False) == {}
    world.teacher("a")
    assert world.look() == {}
    assert ids_of(world) == ["a"]


def ids_of(world: World) -> list[str]:
    return list(world.roster.students["j/0"].assigned)


def test_a_new_manager_strips_nobody_of_teachers_that_are_yet_to_register(world: World) -> None:
    world.report(want=2, teachers=["a", "b"], term=1, counter=1)
    told = world.told()["j/0"]
    assert ids(told) == ["a", "b"]
    assert [t.address for t in told.teachers] == ["", ""]
    assert told.live_teachers == 0
    world.sleep(1)
    world.teacher("a")
    told = world.look()["j/0"]
    assert sorted((t.teacher_id, t.address) for t in told.teachers) == [("a", "a:1"), ("b", "")]
    assert list(told.lost) == []
    world.sleep(GRACE_S - 0.9, "a")
    told = world.look()["j/0"]
    assert (ids(told), list(told.lost)) == (["a"], ["b"])


def test_an_old_manager_does_not_believe_in_teachers_that_nobody_knows(world: World) -> None:
    world.sleep(GRACE_S + 1)
    world.report(want=1, teachers=["ghost"])
    assert ids(world.told()["j/0"]) == []


def test_what_a_student_holds_it_keeps(world: World) -> None:
    for name in ("a", "b", "c"):
        world.teacher(name)
    world.look()
    world.report(want=1, teachers=["c"])
    assert ids(world.told()["j/0"]) == ["c"]


def test_changes_of_strangers_are_harmless(world: World) -> None:
    world.roster.apply(Changes(5, lost=("x",), left=("y",)), world.now)
    world.registry.register("teachers", "s", "odd", {"incarnation": "1", "slots": "many"}, TTL_S)
    world.report(want=1)
    assert ids(world.look()["j/0"]) == ["odd"]
