"""Who leads, terms, and recovery of a registry that was emptied, away or stale; in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from unittest.mock import Mock

import pytest

from edl.coordinator.store.records import FACTS_TTLS, MemberBeat
from edl.runtime.errors import LeaseSuperseded, RedisUnavailable
from edl.tests.stores import memory

from .world import GRACE_S, LEADER_TTL_S, SERVICE, STEP_S, TTL_S, World


@pytest.fixture
def world() -> World:
    return World(managers=2)


def settled(world: World, teachers: int = 4, want: int = 2) -> None:
    """Teachers, and a student at each manager, past the first recovery."""
    world.teacher(*(f"t{number}" for number in range(teachers)))
    for number in range(len(world.managers)):
        world.student(f"j/{number}", at=number, want=want)
    world.run(GRACE_S + 1)
    assert all(len(held) == want for held in world.sets)


def keep_what_they_had(before: list[list[str]], after: list[list[str]]) -> bool:
    return all(set(old) <= set(new) for old, new in zip(before, after, strict=True))


def held_teacher(world: World) -> str:
    return world.sets[0][0]


def test_one_leads_and_every_manager_pushes_whole_assignments(world: World) -> None:
    settled(world)
    assert len(world.leading) == 1
    assert sorted(chain(*world.sets)) == ["t0", "t1", "t2", "t3"]
    for student in world.students:
        told = student.stream.assignments[-1]
        for teacher in told.teachers:
            assert (teacher.address, teacher.incarnation) == (f"{teacher.teacher_id}:1", 1)
        assert (told.live_teachers, told.counter > 0, bool(told.reason)) == (4, True, True)
        assert told.term >= int(1000 * (world.now - GRACE_S - 3))


def test_when_the_leader_dies_another_one_leads_in_a_higher_term(world: World) -> None:
    settled(world, teachers=5)
    (leader,) = world.leading
    before, term = world.sets, world.registry.table(SERVICE).version[0]
    world.kill(leader)
    world.teacher("late")  # nobody leads when it registers
    index = world.managers.index(leader)
    world.students[index].subscribe(world.managers[1 - index])
    world.students[0].fields["want"] = 4
    began = world.now
    world.run(10, until=lambda: any("late" in held for held in world.sets))
    assert world.now - began <= LEADER_TTL_S + 1.0
    assert world.registry.table(SERVICE).version[0] > term
    world.run(GRACE_S + TTL_S)
    assert keep_what_they_had(before, world.sets)
    assert [e.subject for e in world.log("registered")].count("late") == 1
    assert not world.log("gone")
    assert not world.log("lost")


def test_a_refused_write_ends_the_lead(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(world, teachers=5)
    (leader,) = world.leading
    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "write", lambda *_, **__: False)
        world.student("late/0", want=1)
        world.run(1, until=lambda: leader.leader.view is None)
    world.run(LEADER_TTL_S + 1, until=lambda: bool(world.sets[2]))


@pytest.mark.parametrize("leads", ["nobody", "one that recovers"])
def test_a_teacher_that_left_by_itself_is_out_at_once(world: World, leads: str) -> None:
    settled(world)
    (leader,) = world.leading
    student = world.students[1 - world.managers.index(leader)]
    held = (student.stream.teachers or [])[0]
    if leads == "nobody":
        world.kill(leader)
        limit_s = LEADER_TTL_S + 1
    else:
        memory(world.registry).clear()
        world.run(1)
        limit_s = 0.5
    del world.teachers[held]
    world.registry.leave("teachers", SERVICE, held)
    world.run(limit_s, until=lambda: held not in (student.stream.teachers or []))
    assert not student.stream.assignments[-1].lost
    assert [e.subject for e in world.log("left")] == [held]


def test_a_death_is_told_soon_after_the_lease_with_its_reason(world: World) -> None:
    settled(world)
    held = held_teacher(world)
    del world.teachers[held]
    began = world.now
    world.run(1)
    (leader,) = world.leading
    leader.leader.reconcile(world.now)
    assert world.now < leader.leader.due_s <= began + TTL_S, "it looks when the lease ends"
    world.run(TTL_S - 1 + 0.3, until=lambda: held not in world.sets[0])
    assert list(world.students[0].stream.assignments[-1].lost) == [held]
    other = held_teacher(world)
    del world.teachers[other]
    beat = MemberBeat(other, 1, {"given_up": "it lies"}, notify=True)
    world.registry.beat("teachers", SERVICE, beat, 0.2)
    world.run(TTL_S, until=lambda: other not in world.sets[0])
    memory(world.registry).restart()
    world.run(2 * GRACE_S)  # readers still hold the dead
    assert not {held, other} & {*chain(*world.sets)}
    died, gave_up = world.log("lost")
    assert "lease ran out" in died.text
    assert gave_up.text == "lost: it lies"


def test_a_teacher_that_paused_while_the_leader_changed_serves_again(world: World) -> None:
    world.teacher("t0", "t1")
    student = world.student("j/0", want=1)
    world.run(GRACE_S + 1)
    (idle,) = {"t0", "t1"} - set(world.sets[0])
    facts = world.teachers.pop(idle)
    world.kill(*world.managers)
    world.run(TTL_S + 0.5)  # its lease expires while nobody leads, and so may be late
    student.subscribe(world.start_manager("m9:1"))
    world.run(GRACE_S - 1)
    assert world.registry.names("teachers", SERVICE) == {"t0", "t1"}
    world.teachers[idle] = facts  # its heartbeats go on
    student.fields |= {"want": 2, "state": "starved"}
    world.run(5, until=lambda: world.sets[0] == ["t0", "t1"])


def test_a_clock_that_is_set_forward_takes_no_teacher_away(world: World) -> None:
    settled(world)
    before = world.sets
    world.behind_s = -3 * TTL_S  # all leases have expired, and heartbeats are late
    for _ in range(40):
        for manager in world.managers:
            world.surviving(manager.step)
        world.now += STEP_S
    world.run(4 * TTL_S)
    assert keep_what_they_had(before, world.sets)
    assert not world.log("lost")
    del world.teachers[held_teacher(world)]
    world.run(TTL_S + 1, until=lambda: bool(world.log("lost")))


def test_a_reader_that_lies_about_its_term_raises_nothing_and_hides_no_other(world: World) -> None:
    settled(world)
    term = world.registry.table(SERVICE).version[0]
    world.students[0].stream.assignments[-1].term = 1 << 62
    world.run(2 * TTL_S)
    assert world.registry.table(SERVICE).version[0] == term
    world.students[1].stream.assignments[-1].term = term + 5_000_000
    world.run(
        GRACE_S + 1, until=lambda: world.registry.table(SERVICE).version[0] > term + 5_000_000
    )
    world.run(1, until=lambda: world.students[1].stream.version > (term + 5_000_000, 7))


def test_a_restarted_rank_supersedes_its_ghost_at_another_manager(world: World) -> None:
    settled(world)
    ghost = world.students[0]
    before = ghost.stream.teachers
    again = world.student("j/0", at=1, incarnation=2)
    world.run(1, until=lambda: isinstance(ghost.stream.error, LeaseSuperseded))
    world.run(1, until=lambda: again.stream.teachers == before)
    late = world.student("j/0", at=0, incarnation=1)
    world.run(1, until=lambda: isinstance(late.stream.error, LeaseSuperseded))
    assert again.stream.error is None
    assert "incarnation 2" in world.log("subscribed")[-1].text


def test_after_an_error_of_the_rule_all_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(managers=1)
    settled(world)
    before, failed = world.sets, 0
    with monkeypatch.context() as patch:
        mistaken = Mock(side_effect=ZeroDivisionError)
        patch.setattr("edl.coordinator.manager.service_state.rule.reduce", mistaken)
        world.teacher("late")
        end = world.now + 5
        while world.now < end:
            try:
                world.run(end - world.now)
            except ZeroDivisionError:
                failed += 1
    assert 2 <= failed <= 6
    world.students[0].fields["want"] = 3
    world.run(5, until=lambda: "late" in world.sets[0])
    world.run(GRACE_S + 1)
    assert keep_what_they_had(before, world.sets)
    assert [entry.subject for entry in world.log("registered")].count("late") == 1
    assert len(world.leading) == 1


def emptied(world: World) -> None:
    memory(world.registry).clear()


def emptied_before_new_managers(world: World) -> None:
    """Redis is emptied while all managers are replaced; teachers register again later."""
    before = world.sets
    world.kill(*world.managers)
    memory(world.registry).clear()
    for number, student in enumerate(world.students):
        student.subscribe(world.start_manager(f"n{number}:1"))
    teachers, world.teachers = world.teachers, {}
    world.run(TTL_S / 2)
    assert world.sets == before  # by their ids alone: nobody has registered yet
    world.teachers = teachers


def away(world: World) -> None:
    """Redis is away for longer than it keeps facts; managers are back before teachers."""
    before = world.sets
    memory(world.registry).set_available(False)
    world.run((FACTS_TTLS + 1) * TTL_S)
    memory(world.registry).set_available(True)
    teachers, world.teachers = world.teachers, {}
    world.run(1.0)
    assert world.sets == before
    world.teachers = teachers


def away_unnoticed(world: World) -> None:
    """The leader looks after an outage, before it knows of it."""
    memory(world.registry).set_available(False)
    world.now += 2 * TTL_S
    memory(world.registry).set_available(True)
    look_at_once(world)


def failed_over_unnoticed(world: World) -> None:
    """The leader looks at a stale replica, before it knows of the fail-over."""
    stale = memory(world.registry).snapshot()
    world.run(2 * TTL_S)
    memory(world.registry).restore(stale)  # where all leases have run out
    look_at_once(world)


def look_at_once(world: World) -> None:
    (leader,) = world.leading
    leader.leader.reconcile(world.now)
    assert world.registry.names("teachers", SERVICE) == set(world.teachers)


@pytest.mark.parametrize(
    "trouble", [emptied, emptied_before_new_managers, away, away_unnoticed, failed_over_unnoticed]
)
def test_trouble_of_redis_takes_nothing_from_anybody(
    world: World, trouble: Callable[[World], None]
) -> None:
    settled(world)
    before, version = world.sets, world.students[0].stream.version
    trouble(world)
    for _ in range(30):
        world.run(TTL_S / 10)
        assert world.sets == before
    assert set(world.registry.table(SERVICE).rows) == {"j/0", "j/1"}
    assert world.students[0].stream.version > version
    assert not [*world.log("left"), *world.log("lost"), *world.log("gone")]


def test_teachers_that_die_with_redis_or_while_nobody_leads_are_lost_when_recovery_ends(
    world: World,
) -> None:
    settled(world, teachers=5)
    held, (idle,) = held_teacher(world), set(world.teachers).difference(*world.sets)
    memory(world.registry).clear()
    del world.teachers[held], world.teachers[idle]
    world.run(GRACE_S - 1)
    assert held in world.sets[0]
    world.run(2.5)
    assert held not in world.sets[0]
    assert held in world.students[0].stream.assignments[-1].lost
    world.run(GRACE_S)
    assert sorted(e.subject for e in world.log("lost")) == sorted([held, idle])
    while_nobody_led = held_teacher(world)
    del world.teachers[while_nobody_led]
    world.kill(*world.managers)
    world.run(2.5 * TTL_S)
    world.start_manager("n:1")
    world.run(GRACE_S + 1)
    assert [e.subject for e in world.log("lost")][2:] == [while_nobody_led]
    assert not world.log("left")


def test_a_fail_over_to_a_stale_replica_strips_nobody(world: World) -> None:
    world.teacher("t0", "t1", "t2", "t3")
    student = world.student("j/0", want=1)
    world.run(GRACE_S + 1)
    stale = memory(world.registry).snapshot()
    student.fields |= {"want": 4, "state": "starved"}
    world.run(2, until=lambda: len(student.stream.teachers or []) == 4)
    version = student.stream.version
    late = world.student("j/1", at=1, want=1)
    world.run(GRACE_S)
    before = world.sets
    memory(world.registry).restore(stale)
    world.run(GRACE_S)
    assert keep_what_they_had(before, world.sets)
    assert student.stream.version > version
    assert set(world.registry.table(SERVICE).rows) == {"j/0", "j/1"}
    assert late.stream.error is None
    assert not world.log("lost")


@pytest.mark.parametrize("second", ["emptied", "stale"])
def test_two_restarts_before_the_first_write_strip_nobody(
    world: World, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    world.teacher("t0", "t1")
    world.run(GRACE_S + 1)
    stale = memory(world.registry).snapshot()
    (leader,) = world.leading
    (other,) = (m for m in world.managers if m is not leader)
    world.student("j/0", at=world.managers.index(other), want=2)
    world.run(2, until=lambda: world.sets == [["t0", "t1"]])
    world.kill(other)  # only the leader knows what its student had
    memory(world.registry).clear()
    with monkeypatch.context() as patch:
        patch.setattr(world.registry, "write", Mock(side_effect=RedisUnavailable("it hangs")))
        world.run(1)
    assert not world.registry.table(SERVICE).rows
    if second == "stale":
        memory(world.registry).restore(stale)
    else:
        memory(world.registry).clear()
    world.run(1)
    assert world.registry.table(SERVICE).rows["j/0"].teachers == ("t0", "t1")
