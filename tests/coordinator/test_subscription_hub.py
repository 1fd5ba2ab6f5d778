"""The subscription hub: pushed assignments and students in the registry, in virtual time."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import pytest

from edl.coordinator.manager.messages import MANAGER
from edl.coordinator.manager.prober import ProbeVerdict
from edl.coordinator.manager.student_sessions import StudentCaller
from edl.coordinator.registry import Kind
from edl.coordinator.store.records import WrongKeyType
from edl.runtime.errors import Forbidden, LeaseSuperseded, RedisUnavailable, RetryableError
from edl.tests.stores import memory, renew

from .world import GRACE_S, SERVICE, STEP_S, TTL_S, FakeProber, World


@pytest.fixture
def world() -> World:
    world = World(managers=2)
    world.teacher("a", "b", slots="4")
    return world


def test_what_matters_is_told_and_written_at_once_and_the_rest_in_time(world: World) -> None:
    student = world.student("j/0")
    world.run(GRACE_S + 1)
    count = len(student.stream.assignments)
    facts = {"t_t_seconds": "9"}
    renew(world.registry, "teachers", SERVICE, "a", TTL_S, incarnation=1, facts=facts)
    world.run(2 * TTL_S)
    assert len(student.stream.assignments) == count
    renew(world.registry, "teachers", SERVICE, "a", TTL_S, incarnation=1, facts={"slots": "8"})
    world.run(1, until=lambda: len(student.stream.assignments) > count)
    assert {t.teacher_id: t.slots for t in student.stream.assignments[-1].teachers}["a"] == 8
    world.teacher("a", incarnation=2)  # started anew
    world.run(1, until=lambda: student.stream.assignments[-1].teachers[0].incarnation == 2)
    assert "a" not in student.stream.assignments[-1].lost

    def kept(name: str) -> str:
        return world.registry.members("students", SERVICE)[0].facts[name]

    student.fields |= {"want": 5, "volume_bytes": 7}  # the leader has to know the first
    student.tell()
    world.run(2 * STEP_S)
    assert (kept("want"), kept("volume_bytes")) == ("5", "7")
    student.fields["volume_bytes"] = 8
    student.tell()
    world.run(2 * STEP_S)
    assert kept("volume_bytes") == "7"
    world.run(TTL_S / 2)
    assert kept("volume_bytes") == "8"


def test_a_newer_stream_or_start_of_a_student_replaces_the_former(world: World) -> None:
    student, (manager, other) = world.student("j/0"), world.managers
    world.run(GRACE_S)
    first = student.stream
    student.subscribe(manager)
    world.run(1)
    assert isinstance(first.error, RetryableError)
    second = student.stream
    student.subscribe(other)
    world.run(1)
    for old in (first, second):  # the end of an old one is not the student's
        manager.hub.ended(old, "j/0", clean=True)
    world.run(1)
    (member,) = world.registry.members("students", SERVICE)
    assert member.facts[MANAGER] == "m1:1"
    assert not world.log("gone")
    third, student.fields["incarnation"] = student.stream, 2
    student.subscribe(other)
    world.run(1, until=lambda: isinstance(third.error, LeaseSuperseded))
    assert "give each reader another rank=" in str(third.error)
    world.run(1)
    assert world.registry.members("students", SERVICE)[0].incarnation == 2
    assert student.stream.error is None


@pytest.mark.parametrize("at", [0, 1])
def test_a_stranger_cannot_take_a_students_place(world: World, at: int) -> None:
    owner = world.student("j/0")
    world.run(1)
    stranger = world.student("j/0", at=at, incarnation=2, caller=StudentCaller("another", "guess"))
    world.run(1, until=lambda: isinstance(stranger.stream.error, Forbidden))
    assert not stranger.stream.assignments
    assert owner.stream.error is None


def test_a_student_outlives_a_registry_that_is_away_and_its_own_sleep(world: World) -> None:
    memory(world.registry).set_available(False)
    student = world.student("j/0")
    world.run(1)
    assert student.stream.teachers is None
    assert student.stream.error is None
    memory(world.registry).set_available(True)
    world.run(2, until=lambda: student.stream.teachers == ["a", "b"])
    world.run(GRACE_S)
    tell, student.tell = student.tell, lambda: None  # type: ignore[method-assign]
    world.run(TTL_S + 3, until=lambda: bool(world.log("gone")))
    assert "no report" in world.log("gone")[0].text
    student.tell = tell  # type: ignore[method-assign]
    count = len(student.stream.assignments)
    world.run(3, until=lambda: len(student.stream.assignments) > count)
    assert student.stream.teachers == ["a", "b"]


def test_a_student_whose_key_has_another_type_hinders_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    register = world.registry.register

    def refuse_one(kind: Kind, service: str, member: str, *args: Any) -> None:
        if member == "j/0":
            raise WrongKeyType("a value of another type")
        register(kind, service, member, *args)

    monkeypatch.setattr(world.registry, "register", refuse_one)
    refused, other = world.student("j/0"), world.student("j/1")
    world.run(2, until=lambda: other.stream.teachers == ["a", "b"])
    assert isinstance(refused.stream.error, WrongKeyType)
    assert other.stream.error is None


def test_a_move_is_told_though_the_manager_was_cut_off_or_the_registry_failed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, manager = world.student("j/0"), world.managers[0]

    def told() -> tuple[int, str]:
        """The incarnation and the address of teacher `a`."""
        (found,) = (t for t in student.stream.assignments[-1].teachers if t.teacher_id == "a")
        return found.incarnation, found.address

    world.run(GRACE_S + 1)
    manager.alive = False  # the registry answers all others, and stays the same
    world.teacher("a", incarnation=2, slots="4", address="elsewhere:1")
    world.run(61)
    for number in range(40):  # so many that the registry forgets what is older than a minute
        world.registry.register("teachers", SERVICE, f"brief{number}", {"incarnation": "1"}, TTL_S)
        world.registry.leave("teachers", SERVICE, f"brief{number}")
    manager.alive = True
    world.run(GRACE_S)
    assert told() == (2, "elsewhere:1")
    world.teacher("a", incarnation=3, slots="4", address="again-elsewhere:1")
    world.now += TTL_S / 2  # all ids are compared, too; that fails right after the move was read
    monkeypatch.setattr(world.registry, "names", Mock(side_effect=RedisUnavailable("it hangs")))
    with pytest.raises(RedisUnavailable):
        manager.hub.refresh(world.clock(), manager.election.registry_id)
    monkeypatch.undo()
    manager.serve()
    assert told() == (3, "again-elsewhere:1")


def test_a_teacher_that_is_given_up_does_not_count_as_live(world: World) -> None:
    world.student("j/0")
    world.run(GRACE_S + 1)
    memory(world.registry).clear()
    del world.teachers["b"]  # it does not come back
    world.run(3 * GRACE_S)
    late = world.student("j/1")
    world.run(2, until=lambda: late.stream.teachers == ["a"])
    assert late.stream.assignments[-1].live_teachers == 1


def test_a_student_is_told_of_teachers_that_are_not_assigned_to_it() -> None:
    """Else its reader would say that no teacher is registered, although one is refused."""
    world = World(prober=FakeProber(ProbeVerdict("never", "another instance answers")))
    student = world.student("j/0")
    world.run(GRACE_S + 1)
    assert student.stream.assignments[-1].live_teachers == 0
    world.teacher("a")
    world.run(TTL_S, until=lambda: student.stream.assignments[-1].live_teachers == 1)
    assert student.stream.teachers == []
    world.teacher("b")  # how many there are is told with the next assignment
    world.run(1)
    assert student.stream.assignments[-1].live_teachers == 1
    for name in ("a", "b"):
        del world.teachers[name]
        world.registry.leave("teachers", SERVICE, name)
    world.run(TTL_S, until=lambda: student.stream.assignments[-1].live_teachers == 0)
