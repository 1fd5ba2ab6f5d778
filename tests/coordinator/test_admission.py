"""Admission as a leader carries it out: probed, refused, believed, remembered; in virtual time."""

from __future__ import annotations

from edl.coordinator.manager.admission import Verdict
from edl.coordinator.registry import Plan
from edl.scheduler.admission import LOST_S

from .world import GRACE_S, LEADER_TTL_S, SERVICE, TTL_S, FakeManager, FakeProber, World

OK = Verdict(ok=True)
NO = Verdict(ok=False, retry=True, why="another instance answers")
NEVER = Verdict(ok=False, retry=False, why="no such protocol")


def test_nobody_hears_of_a_teacher_that_is_not_admitted() -> None:
    world = World(prober=FakeProber(NO))
    world.teacher("a")
    student = world.student("j/0", want=1)
    world.run(GRACE_S + LOST_S)
    assert student.stream.teachers == []
    assert [(e.subject, e.text) for e in world.log("refused")] == [("a", f"refused: {NO.why}")]
    view = world.managers[0].leader.view
    assert view is not None
    assert (view.teachers["serving"], view.teachers["refused"]) == (0, 1)
    assert view.refusals > 1


def test_it_is_assigned_as_soon_as_a_later_probe_succeeds() -> None:
    prober = FakeProber(NO)
    world = World(prober=prober)
    world.teacher("a")
    student = world.student("j/0", want=1)
    world.run(2)
    prober.answer = OK
    world.run(TTL_S, until=lambda: student.stream.teachers == ["a"])
    assert world.registry.admitted(SERVICE) == {"a": 1}


def test_a_new_leader_does_not_probe_who_was_admitted() -> None:
    prober = FakeProber(OK)
    world = World(managers=2, prober=prober)
    world.teacher("a")
    at = 1 - world.managers.index(_leading(world))
    student = world.student("j/0", at=at, want=1)
    world.run(2, until=lambda: student.stream.teachers == ["a"])
    world.kill(_leading(world))
    world.teacher("b")
    world.run(LEADER_TTL_S + 1, until=lambda: "b" in world.registry.admitted(SERVICE))
    assert [name for name, _ in prober.asked] == ["a", "b"]


def _leading(world: World) -> FakeManager:
    world.run(1, until=lambda: bool(world.leading))
    return world.leading[0]


def test_an_impostor_under_an_admitted_name_is_out_until_it_is_probed() -> None:
    prober = FakeProber(OK)
    world = World(prober=prober)
    world.teacher("a")
    student = world.student("j/0", want=1)
    world.run(GRACE_S, until=lambda: student.stream.teachers == ["a"])
    prober.answer = NO
    world.teacher("a", 2, address="evil:1")
    world.run(1, until=lambda: student.stream.teachers == [])
    world.run(2 * TTL_S)
    assert student.stream.teachers == []


def test_a_teacher_that_readers_hold_is_believed_until_its_probe_fails() -> None:
    prober = FakeProber(OK)
    world = World(prober=prober)
    world.teacher("a")
    world.teacher("b")
    student = world.student("j/0", want=2)
    world.run(GRACE_S, until=lambda: student.stream.teachers == ["a", "b"])
    world.run(GRACE_S)
    prober.answer = None
    world.registry.clear()  # who was admitted is forgotten, too
    world.run(2 * TTL_S)
    assert student.stream.teachers == ["a", "b"]
    waiting = dict(prober.asked[-2:])
    waiting["a"](NO)
    waiting["b"](OK)
    world.run(1, until=lambda: student.stream.teachers == ["b"])
    assert world.registry.admitted(SERVICE) == {"b": 1}


def test_a_late_report_does_not_bring_back_who_was_refused() -> None:
    prober = FakeProber(OK)
    world = World(prober=prober)
    world.teacher("a")
    world.teacher("b")
    student = world.student("j/0", want=2)
    world.run(GRACE_S, until=lambda: student.stream.teachers == ["a", "b"])
    world.run(GRACE_S)
    prober.answer = None
    world.registry.clear()
    world.run(TTL_S / 2, until=lambda: len(prober.asked) == 4)
    waiting = dict(prober.asked[-2:])
    waiting["a"](NEVER)
    waiting["b"](OK)
    world.run(1, until=lambda: student.stream.teachers == ["b"])
    student.fields |= {"teachers": ["a"], "want": 3}  # it has not heard yet
    world.run(2)
    del student.fields["teachers"]
    world.run(GRACE_S)
    assert student.stream.teachers == ["b"]


def test_who_has_died_is_not_remembered() -> None:
    world = World(prober=FakeProber(OK))
    world.teacher("a")
    world.student("j/0", want=1)
    world.run(GRACE_S + 1)
    assert world.registry.admitted(SERVICE) == {"a": 1}
    world.teachers.clear()
    world.run(TTL_S + 1)
    assert world.registry.admitted(SERVICE) == {}


def test_the_first_content_is_declared_and_an_upgrade_is_followed_to_its_end() -> None:
    world = World()
    world.teacher("a", content_id="c1")
    student = world.student("j/0", want=1, data_epoch=1)
    world.run(GRACE_S + 1)
    plan = world.registry.plan(SERVICE)
    assert plan.content_id == "c1"
    assert student.stream.assignments[-1].content_id == "c1"
    student.fields["content_id"] = "c1"
    world.teacher("b", content_id="c2")
    world.run(1)
    wish = Plan("c1", "c2", "now")
    assert world.registry.set_plan(SERVICE, wish, plan.version)
    world.run(2, until=lambda: student.stream.teachers == ["b"])
    assert student.stream.assignments[-1].content_id == "c2"
    student.fields["content_id"] = "c2"
    world.run(2, until=lambda: world.registry.plan(SERVICE).content_id == "c2")
    assert not world.registry.plan(SERVICE).next_content_id
    texts = [entry.text.partition(":")[0] for entry in world.log("upgrade")]
    assert texts == ["declared", "upgrade asked for", "upgrade done"]


def test_a_student_that_starves_is_logged_when_it_lasts() -> None:
    world = World()
    student = world.student("j/0", want=1)
    world.run(GRACE_S)
    student.fields["state"] = "starved"
    world.run(4)
    student.fields["state"] = "steady"
    world.run(4)
    assert [e.kind for e in world.log() if e.kind in ("starved", "steady")] == ["starved", "steady"]
