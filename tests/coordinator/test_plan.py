"""The plan of contents when Redis loses it: what was declared stays so, and the log says it."""

from __future__ import annotations

import pytest

from edl.coordinator.registry import LogEntry
from edl.coordinator.registry.records import Plan

from .world import GRACE_S, SERVICE, STEP_S, TTL_S, FakeManager, Student, World

OLD, NEW = "old", "new"


def upgraded(managers: int = 1) -> tuple[World, Student]:
    """Three old teachers, a new one, and the student on the new content: the upgrade is done."""
    world = World(managers)
    for name in ("a", "b", "c"):
        world.teacher(name, content_id=OLD)
    student = world.student("j/0", want=1, data_epoch=1)
    world.run(GRACE_S + 1)
    student.fields["content_id"] = OLD
    world.teacher("d", content_id=NEW)
    world.run(1)
    assert world.registry.set_plan(
        SERVICE, Plan(OLD, NEW, "now"), world.registry.plan(SERVICE).version
    )
    world.run(2, until=lambda: student.stream.teachers == ["d"])
    student.fields["content_id"] = NEW
    world.run(2, until=lambda: plan(world) == (NEW, ""))
    world.run(1)
    return world, student


def plan(world: World) -> tuple[str, str]:
    found = world.registry.plan(SERVICE)
    return found.content_id, found.next_content_id


def contents(student: Student) -> tuple[str, str]:
    """What it is labelled with, and what it is told to expect."""
    told = student.stream.assignments[-1]
    return told.content_id, told.next_content_id


def replaced(world: World) -> FakeManager:
    """Another manager instead of those that there are, which remembers nothing."""
    for manager in list(world.managers):
        world.kill(manager)
    manager = FakeManager(world, "n:1", None)
    world.managers.append(manager)
    return manager


def said(world: World) -> list[LogEntry]:
    return world.log("upgrade")


def test_an_emptied_registry_does_not_undo_an_upgrade() -> None:
    world, student = upgraded()
    world.registry.clear()
    world.run(1, until=lambda: plan(world) == (NEW, ""))
    world.run(3 * TTL_S)
    assert plan(world) == (NEW, "")
    assert contents(student) == (NEW, "")
    (entry,) = said(world)
    assert entry.text == f"declared: {NEW}, as it was before Redis lost the plan"


def test_an_emptied_registry_and_new_managers_go_by_what_students_are_on() -> None:
    world, student = upgraded()
    world.registry.clear()
    manager = replaced(world)
    world.run(1)  # teachers come first
    student.subscribe(manager)
    told: set[tuple[str, str]] = set()
    while plan(world) == ("", ""):
        world.run(STEP_S)
        if student.stream.assignments:
            told.add(contents(student))
    world.run(TTL_S)
    told.add(contents(student))
    assert told == {(NEW, "")}
    assert plan(world) == (NEW, "")
    (entry,) = said(world)
    assert entry.text == f"declared: 1 of 1 students are on {NEW}"


def test_nobody_is_moved_between_two_epochs_while_the_plan_is_not_known() -> None:
    world, student = upgraded()
    world.registry.clear()
    manager = replaced(world)
    world.run(1)
    student.subscribe(manager)
    world.run(1)
    student.fields |= {"data_epoch": 2, "content_id": ""}
    world.run(3 * TTL_S)
    assert contents(student) == (NEW, "")


def test_an_upgrade_that_runs_goes_on_after_an_emptied_registry() -> None:
    world, student = upgraded()
    assert world.registry.set_plan(
        SERVICE, Plan(NEW, OLD, "epoch"), world.registry.plan(SERVICE).version
    )
    world.run(1)
    assert contents(student) == (NEW, OLD)
    world.registry.clear()
    world.run(1, until=lambda: plan(world) == (NEW, OLD))
    world.run(2 * TTL_S)
    assert contents(student) == (NEW, OLD)
    student.fields |= {"data_epoch": 2, "content_id": ""}
    world.run(2, until=lambda: contents(student) == (OLD, ""))


def test_a_stale_replica_does_not_undo_an_upgrade() -> None:
    world, student = upgraded()
    stale = world.registry.snapshot()
    assert world.registry.set_plan(
        SERVICE, Plan(NEW, OLD, "now"), world.registry.plan(SERVICE).version
    )
    world.run(2, until=lambda: contents(student) == (OLD, ""))
    student.fields["content_id"] = OLD
    world.run(2, until=lambda: plan(world) == (OLD, ""))
    world.run(1)
    world.registry.restore(stale)
    world.run(2 * TTL_S)
    assert plan(world) == (OLD, "")
    assert contents(student) == (OLD, "")


def test_what_an_operator_orders_of_an_emptied_registry_counts() -> None:
    world, student = upgraded()
    world.registry.clear()
    assert world.registry.set_plan(SERVICE, Plan(NEW, OLD, "now"), 0)
    world.run(2 * TTL_S, until=lambda: contents(student) == (OLD, ""))


def test_without_students_the_content_of_most_teachers_is_declared_when_all_are_there() -> None:
    world = World()
    world.teacher("new", content_id=NEW)
    world.run(GRACE_S / 2)
    for name in ("a", "b"):
        world.teacher(name, content_id=OLD)
    world.run(GRACE_S, until=lambda: plan(world) == (OLD, ""))
    assert said(world)[-1].text == f"declared: 2 of 3 teachers serve {OLD}"


@pytest.mark.parametrize("step", range(12))
def test_what_is_declared_is_in_the_log_whenever_the_registry_is_emptied(step: int) -> None:
    """The registry is emptied between two steps of the leader: what it does then counts or not."""
    world, _ = upgraded()
    (manager,) = world.managers
    parts = (manager.election.renew, manager._lead) * 6
    for part in parts[:step]:
        world.surviving(part)
        world.now += 0.1
    world.registry.clear()
    world.now += 0.3
    for part in (*parts[step:], *parts):
        world.surviving(part)
        world.now += 0.1
    world.run(2 * GRACE_S, until=lambda: plan(world) == (NEW, ""))
    world.run(1)
    assert len([e for e in said(world) if e.text.startswith("declared: ")]) == 1


def test_what_an_operator_orders_counts_though_the_clock_of_a_replica_is_behind() -> None:
    world, student = upgraded()
    behind(world)
    world.run(1)
    standing = world.registry.plan(SERVICE)
    assert world.registry.set_plan(SERVICE, Plan(NEW, OLD, "now"), standing.version)
    assert world.registry.plan(SERVICE).since_ms < standing.since_ms
    world.run(2 * TTL_S, until=lambda: contents(student) == (OLD, ""))


def test_a_plan_that_was_lost_is_declared_once_though_the_clock_is_behind() -> None:
    world, student = upgraded()
    behind(world)
    world.registry.clear()
    world.run(2 * TTL_S)
    assert contents(student) == (NEW, "")
    assert len(said(world)) == 1


def behind(world: World) -> None:
    """A fail-over to a server that has everything, with a clock that is an hour behind."""
    world.registry.restart()
    world.registry._clock = lambda: world.now - 3600
