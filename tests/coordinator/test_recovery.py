"""A registry that is emptied, away or stale: nobody is stripped, and terms grow."""

from __future__ import annotations

import pytest

from edl.coordinator.registry import FACTS_TTLS
from edl.tests.coordinator.test_leader import sets, settled, unwritable

from .world import GRACE_S, SERVICE, TTL_S, World


@pytest.fixture
def world() -> World:
    return World(managers=2)


def test_an_emptied_registry_strips_nobody_and_the_term_grows(world: World) -> None:
    settled(world)
    before, epoch = sets(world), world.students[0].stream.epoch
    world.registry.clear()
    world.run(GRACE_S)
    assert sets(world) == before
    assert set(world.registry.table(SERVICE).rows) == {"j/0", "j/1"}
    assert world.students[0].stream.epoch > epoch
    world.run(2 * TTL_S)
    assert sets(world) == before
    assert not world.log("lost")
    assert not world.log("gone")


def test_an_emptied_registry_and_new_managers_believe_the_readers(world: World) -> None:
    settled(world)
    before = sets(world)
    for manager in list(world.managers):
        world.kill(manager)
    world.registry.clear()
    fresh = World(managers=2)
    fresh.registry, world.managers = world.registry, []
    for number, student in enumerate(world.students):
        manager = type(fresh.managers[0])(world, f"n{number}:1", None)
        world.managers.append(manager)
        student.subscribe(manager)
    teachers, world.teachers = world.teachers, {}
    world.run(TTL_S / 2)
    assert sets(world) == before  # by their ids alone: nobody has registered yet
    world.teachers = teachers
    world.run(3 * TTL_S)
    assert sets(world) == before


def test_who_does_not_come_back_in_time_is_lost(world: World) -> None:
    settled(world)
    held = (sets(world)[0] or [])[0]
    world.registry.clear()
    del world.teachers[held]
    world.run(GRACE_S - 1)
    assert held in (sets(world)[0] or [])
    world.run(2.5)
    assert held not in (sets(world)[0] or [])
    assert list(world.students[0].stream.assignments[-1].lost) == [held]
    assert [e.subject for e in world.log("lost")] == [held]


def test_an_outage_takes_nothing_away(world: World) -> None:
    settled(world)
    before = sets(world)
    world.registry.set_available(False)
    world.run(2 * TTL_S)  # all leases run out in the meantime
    assert sets(world) == before
    world.registry.set_available(True)
    world.run(3 * TTL_S)
    assert sets(world) == before
    assert not world.log("lost")
    assert not world.log("gone")


def test_an_outage_that_outlasts_all_facts_takes_nothing_away(world: World) -> None:
    settled(world)
    before = sets(world)
    world.registry.set_available(False)
    world.run((FACTS_TTLS + 1) * TTL_S)
    world.registry.set_available(True)
    teachers, world.teachers = world.teachers, {}
    world.run(1.0)  # managers come back first
    assert sets(world) == before
    world.teachers = teachers
    world.run(3 * TTL_S)
    assert sets(world) == before
    assert not [*world.log("left"), *world.log("lost"), *world.log("gone")]


def test_a_death_while_there_was_no_manager_is_told_when_recovery_ends(world: World) -> None:
    settled(world)
    held = (sets(world)[0] or [])[0]
    del world.teachers[held]
    for manager in world.managers:
        world.kill(manager)
    world.run(2.5 * TTL_S)
    (fresh,) = World(managers=1).managers
    manager = type(fresh)(world, "n:1", None)
    world.managers.append(manager)
    world.run(GRACE_S + 1)
    assert [e.subject for e in world.log("lost")] == [held]
    assert not world.log("left")


def test_a_teacher_that_left_by_itself_is_out_at_once_even_in_recovery(world: World) -> None:
    settled(world)
    world.registry.clear()
    world.run(1)
    held = (sets(world)[0] or [])[0]
    del world.teachers[held]
    world.registry.leave("teachers", SERVICE, held)
    world.run(0.5, until=lambda: held not in (sets(world)[0] or []))
    assert not world.students[0].stream.assignments[-1].lost


def test_a_leader_that_looks_before_it_knows_of_an_outage_takes_nobody_out(world: World) -> None:
    settled(world)
    world.registry.set_available(False)
    world.now += 2 * TTL_S
    world.registry.set_available(True)
    (leader,) = world.leading
    leader.leader.look(world.now)
    assert world.registry.names("teachers", SERVICE) == {"t0", "t1", "t2", "t3"}


def test_a_leader_that_looks_before_it_knows_of_a_fail_over_takes_nobody_out(world: World) -> None:
    settled(world)
    stale = world.registry.snapshot()
    world.run(2 * TTL_S)
    world.registry.restore(stale)  # where all leases have run out
    (leader,) = world.leading
    leader.leader.look(world.now)
    assert world.registry.names("teachers", SERVICE) == {"t0", "t1", "t2", "t3"}
    world.run(2 * TTL_S)
    assert not world.log("lost")


def test_a_fail_over_to_a_stale_replica_strips_nobody(world: World) -> None:
    for number in range(4):
        world.teacher(f"t{number}")
    student = world.student("j/0", want=1)
    world.run(GRACE_S + 1)
    stale = world.registry.snapshot()
    student.fields |= {"want": 4, "state": "starved"}
    world.run(2, until=lambda: len(student.stream.teachers or []) == 4)
    epoch = student.stream.epoch
    late = world.student("j/1", at=1, want=1)
    world.run(GRACE_S)
    before = sets(world)
    world.registry.restore(stale)
    world.run(GRACE_S)
    now = sets(world)
    assert all(set(old or []) <= set(new or []) for old, new in zip(before, now, strict=True))
    assert student.stream.epoch > epoch
    assert set(world.registry.table(SERVICE).rows) == {"j/0", "j/1"}
    assert late.stream.error is None
    assert not world.log("lost")


@pytest.mark.parametrize("second", ["emptied", "stale"])
def test_two_restarts_before_the_first_write_strip_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    for name in ("t0", "t1"):
        world.teacher(name)
    world.run(GRACE_S + 1)
    stale = world.registry.snapshot()
    (leader,) = world.leading
    (other,) = (m for m in world.managers if m is not leader)
    world.student("j/0", at=world.managers.index(other), want=2)
    world.run(2, until=lambda: sets(world) == [["t0", "t1"]])
    world.kill(other)  # only the leader knows what its student had
    world.registry.clear()
    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "write", unwritable)
        world.run(1)
    assert not world.registry.table(SERVICE).rows
    if second == "stale":
        world.registry.restore(stale)
    else:
        world.registry.clear()
    world.run(1)
    assert world.registry.table(SERVICE).rows["j/0"].teachers == ("t0", "t1")
