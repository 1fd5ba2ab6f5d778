"""The plan of contents when Redis loses it, and admission of teachers, in virtual time."""

from __future__ import annotations

import pytest

from edl.coordinator.manager.prober import ProbeVerdict
from edl.coordinator.registry import StoredContentPlan
from edl.scheduler.admission import PROBE_TIMEOUT_S
from edl.tests.stores import memory

from .world import GRACE_S, LEADER_TTL_S, SERVICE, STEP_S, TTL_S, FakeProber, Student, World

OLD, NEW = "old", "new"


def upgraded() -> tuple[World, Student]:
    """Three old teachers, a new one, and the student on the new content: the upgrade is done."""
    world = World()
    world.teacher("a", "b", "c", content_id=OLD)
    student = world.student("j/0", want=1, data_epoch=1)
    world.run(GRACE_S + 1)
    student.fields["content_id"] = OLD
    world.teacher("d", content_id=NEW)
    world.run(1)
    order(world, OLD, NEW, "now")
    world.run(2, until=lambda: student.stream.teachers == ["d"])
    student.fields["content_id"] = NEW
    world.run(2, until=lambda: plan(world) == (NEW, ""))
    world.run(1)
    return world, student


def order(world: World, old: str, new: str, at: str) -> None:
    version = world.registry.content_plan(SERVICE).version
    assert world.registry.set_content_plan(SERVICE, StoredContentPlan(old, new, at), version)


def plan(world: World) -> tuple[str, str]:
    found = world.registry.content_plan(SERVICE)
    return found.content_id, found.next_content_id


def behind(world: World) -> None:
    """A fail-over to a server that has everything, with a clock that is an hour behind."""
    memory(world.registry).restart()
    world.behind_s = 3600.0


def contents(student: Student) -> tuple[str, str]:
    """What it is labelled with, and what it is told to expect."""
    told = student.stream.assignments[-1]
    return told.content_id, told.next_content_id


@pytest.mark.parametrize("clock", ["right", "behind"])
def test_an_emptied_registry_does_not_undo_an_upgrade(clock: str) -> None:
    world, student = upgraded()
    if clock == "behind":
        behind(world)
    memory(world.registry).clear()
    world.run(1, until=lambda: plan(world) == (NEW, ""))
    world.run(3 * TTL_S)
    assert plan(world) == (NEW, "")
    assert contents(student) == (NEW, "")
    (entry,) = world.log("upgrade")
    assert entry.text == f"declared: {NEW}, as it was before Redis lost the plan"


def test_an_emptied_registry_and_new_managers_go_by_what_students_are_on() -> None:
    world, student = upgraded()
    memory(world.registry).clear()
    world.kill(*world.managers)
    manager = world.start_manager("n:1")
    world.run(1)  # teachers come first
    student.subscribe(manager)
    told: set[tuple[str, str]] = set()
    while plan(world) == ("", ""):
        world.run(STEP_S)
        if student.stream.assignments:
            told.add(contents(student))
    world.run(TTL_S)
    student.fields |= {"data_epoch": 2, "content_id": ""}  # nor is it moved between two epochs
    world.run(2 * TTL_S)
    told.add(contents(student))
    assert told == {(NEW, "")}
    assert plan(world) == (NEW, "")
    (entry,) = world.log("upgrade")
    assert entry.text == f"declared: 1 of 1 students are on {NEW}"


def test_an_upgrade_that_runs_goes_on_after_an_emptied_registry() -> None:
    world, student = upgraded()
    order(world, NEW, OLD, "epoch")
    world.run(1)
    assert contents(student) == (NEW, OLD)
    memory(world.registry).clear()
    world.run(1, until=lambda: plan(world) == (NEW, OLD))
    world.run(2 * TTL_S)
    assert contents(student) == (NEW, OLD)
    student.fields |= {"data_epoch": 2, "content_id": ""}
    world.run(2, until=lambda: contents(student) == (OLD, ""))


def test_a_stale_replica_does_not_undo_an_upgrade() -> None:
    world, student = upgraded()
    stale = memory(world.registry).snapshot()
    order(world, NEW, OLD, "now")
    world.run(2, until=lambda: contents(student) == (OLD, ""))
    student.fields["content_id"] = OLD
    world.run(2, until=lambda: plan(world) == (OLD, ""))
    world.run(1)
    memory(world.registry).restore(stale)
    world.run(2 * TTL_S)
    assert plan(world) == (OLD, "")
    assert contents(student) == (OLD, "")


def test_without_students_the_content_of_most_teachers_is_declared_when_all_are_there() -> None:
    world = World()
    world.teacher("new", content_id=NEW)
    world.run(GRACE_S / 2)
    world.teacher("a", "b", content_id=OLD)
    world.run(GRACE_S, until=lambda: plan(world) == (OLD, ""))
    assert world.log("upgrade")[-1].text == f"declared: 2 of 3 teachers serve {OLD}"


@pytest.mark.parametrize("step", range(12))
def test_what_is_declared_is_in_the_log_whenever_the_registry_is_emptied(step: int) -> None:
    """The registry is emptied between two steps of the leader: what it does then counts or not."""
    world, _ = upgraded()
    (manager,) = world.managers
    parts = (manager.election.renew, manager.lead) * 6
    for part in parts[:step]:
        world.surviving(part)
        world.now += 0.1
    memory(world.registry).clear()
    world.now += 0.3
    for part in (*parts[step:], *parts):
        world.surviving(part)
        world.now += 0.1
    world.run(2 * GRACE_S, until=lambda: plan(world) == (NEW, ""))
    world.run(1)
    assert len([e for e in world.log("upgrade") if e.text.startswith("declared: ")]) == 1


def test_what_an_operator_orders_of_an_emptied_registry_or_a_stale_clock_counts() -> None:
    world, student = upgraded()
    memory(world.registry).clear()
    assert world.registry.set_content_plan(SERVICE, StoredContentPlan(NEW, OLD, "now"), 0)
    world.run(2 * TTL_S, until=lambda: contents(student) == (OLD, ""))
    world, student = upgraded()
    behind(world)
    world.run(1)
    since_ms = world.registry.content_plan(SERVICE).since_ms
    order(world, NEW, OLD, "now")
    assert world.registry.content_plan(SERVICE).since_ms < since_ms
    world.run(2 * TTL_S, until=lambda: contents(student) == (OLD, ""))


OK = ProbeVerdict("ok")
NO = ProbeVerdict("retry", "another instance answers")
NEVER = ProbeVerdict("never", "no such protocol")


def test_students_hear_of_a_teacher_when_it_is_admitted() -> None:
    prober = FakeProber(NO)
    world = World(prober=prober)
    world.teacher("a")
    student = world.student("j/0", want=1)
    world.run(GRACE_S + PROBE_TIMEOUT_S)
    assert student.stream.teachers == []
    assert [(e.subject, e.text) for e in world.log("refused")] == [("a", f"refused: {NO.why}")]
    view = world.managers[0].leader.view
    assert view is not None
    assert (view.teachers["serving"], view.teachers["refused"]) == (0, 1)
    assert world.registry.refused(SERVICE) == {"a": f"refused: {NO.why}"}
    assert view.refusals > 1
    prober.answer = OK
    world.run(90, until=lambda: student.stream.teachers == ["a"])
    assert world.registry.admitted(SERVICE) == {"a": 1}
    assert world.registry.refused(SERVICE) == {}
    prober.answer = NO
    world.teacher("a", incarnation=2, address="evil:1")
    world.run(1, until=lambda: student.stream.teachers == [])
    world.run(2 * TTL_S)
    assert student.stream.teachers == [], "an impostor under an admitted name"


def test_a_new_leader_does_not_probe_admitted_teachers() -> None:
    prober = FakeProber(OK)
    world = World(managers=2, prober=prober)
    world.teacher("a")
    world.run(1, until=lambda: bool(world.leading))
    (leader,) = world.leading
    student = world.student("j/0", at=1 - world.managers.index(leader), want=1)
    world.run(2, until=lambda: student.stream.teachers == ["a"])
    world.kill(leader)
    world.teacher("b")
    world.run(LEADER_TTL_S + 1, until=lambda: "b" in world.registry.admitted(SERVICE))
    assert [name for name, _ in prober.asked] == ["a", "b"]
    world.teachers.clear()
    world.run(GRACE_S + TTL_S + 1)
    assert world.registry.admitted(SERVICE) == {}, "the dead are not remembered"


@pytest.mark.parametrize("no", [NO, NEVER])
def test_a_teacher_that_readers_hold_is_believed_until_its_probe_fails(no: ProbeVerdict) -> None:
    prober = FakeProber(OK)
    world = World(prober=prober)
    world.teacher("a", "b")
    student = world.student("j/0", want=2)
    world.run(GRACE_S, until=lambda: student.stream.teachers == ["a", "b"])
    world.run(GRACE_S)
    prober.answer = None
    memory(world.registry).clear()
    world.run(2 * TTL_S)
    assert student.stream.teachers == ["a", "b"]
    waiting = dict(prober.asked[-2:])
    waiting["a"](no)
    waiting["b"](OK)
    world.run(1, until=lambda: student.stream.teachers == ["b"])
    assert world.registry.admitted(SERVICE) == {"b": 1}
    student.fields |= {"teachers": ["a"], "want": 3}  # a late report: it has not heard yet
    world.run(2)
    del student.fields["teachers"]
    world.run(GRACE_S)
    assert student.stream.teachers == ["b"]


def test_a_student_that_starves_is_logged_when_it_lasts() -> None:
    world = World()
    student = world.student("j/0", want=1)
    world.run(GRACE_S)
    student.fields["state"] = "starved"
    world.run(4)
    student.fields["state"] = "steady"
    world.run(4)
    assert [e.kind for e in world.log() if e.kind in ("starved", "steady")] == ["starved", "steady"]
