"""The mesh as one message: sums, who needs a look first, one reading for all who ask."""

from __future__ import annotations

import pytest

from edl.coordinator import MemoryRegistry
from edl.coordinator.manager.overview import Overview
from edl.coordinator.registry import LogEntry, Plan, Row
from edl.errors import RegistryUnavailable

TTL_S = 30.0


class Mesh:
    """A registry that somebody has filled."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0
        self.registry = MemoryRegistry(clock=lambda: self.now)
        self.overview = Overview(self.registry, lambda _: "m:1", clock=lambda: self.now)

    def teacher(self, name: str, **facts: str) -> None:
        facts = {"incarnation": "1", "state": "serving", "content_id": "c1", **facts}
        self.registry.register("teachers", "s", name, facts, TTL_S)

    def student(self, name: str, **facts: str) -> None:
        facts = {"incarnation": "1", "state": "steady", "want": "2", **facts}
        self.registry.register("students", "s", name, facts, TTL_S)

    def write(self, rows: dict[str, Row], *log: LogEntry, **admitted: int) -> None:
        self.registry.lead("s", "me", 2.0)
        assert self.registry.write("s", "me", (0, 0), (7, 1), rows, log, admitted)


@pytest.fixture
def mesh() -> Mesh:
    mesh = Mesh()
    mesh.registry.register("managers", "", "m:1", {"incarnation": "1"}, TTL_S)
    for name in ("admitted", "idle", "waiting", "bad"):
        mesh.teacher(name)
    mesh.teacher("leaving", state="draining")
    mesh.student("j/0", samples_per_second="10.5", starved_seconds="1")
    mesh.student("j/1", samples_per_second="1.5", starved_seconds="2", state="starved")
    mesh.student("j/2", want="1")
    rows = {
        "j/0": Row(("admitted",), content_id="c1", reason="as told"),
        "j/1": Row(("admitted", "leaving"), content_id="c1"),
    }
    refused = LogEntry("refused", "bad", "refused: another instance answers")
    mesh.write(rows, refused, admitted=1, idle=1, leaving=1)
    mesh.registry.set_plan("s", Plan("c1", "c2", "epoch"), 0)
    return mesh


def test_it_says_how_many_teachers_are_desired(mesh: Mesh) -> None:
    assert not mesh.overview.status().services[0].HasField("desired_teachers")
    assert mesh.registry.set_desired("s", "me", 0, "no student")
    mesh.now += 60.0
    (service,) = mesh.overview.status().services
    assert service.HasField("desired_teachers")
    assert (service.desired_teachers, service.desired_reason) == (0, "no student")


def test_it_is_summed_up(mesh: Mesh) -> None:
    status = mesh.overview.status()
    assert list(status.managers) == ["m:1"]
    (service,) = status.services
    assert (service.teacher_count, service.student_count) == (5, 3)
    assert dict(service.teacher_states) == {
        "serving": 2, "draining": 1, "waiting": 1, "refused": 1,
    }  # fmt: skip
    assert dict(service.student_states) == {"steady": 2, "starved": 1}
    assert (service.wanted, service.assigned) == (5, 3)
    assert (service.samples_per_second, service.starved_seconds) == (12.0, 3.0)
    assert (service.term, service.counter, service.leader) == (7, 1, "m:1")
    assert (service.content_id, service.next_content_id, service.upgrade_at) == (
        "c1", "c2", "epoch",
    )  # fmt: skip
    assert dict(service.content_students) == {"c1": 2}
    assert dict(service.content_teachers) == {"c1": 5}


def test_those_that_need_a_look_come_first(mesh: Mesh) -> None:
    (service,) = mesh.overview.status().services
    assert [t.teacher_id for t in service.teachers] == [
        "bad", "waiting", "leaving", "idle", "admitted",
    ]  # fmt: skip
    assert [t.admission for t in service.teachers][:2] == ["refused: another instance answers", ""]
    assert [s.report.student_id for s in service.students] == ["j/2", "j/1", "j/0"]
    assert service.students[2].reason == "as told"
    (few,) = mesh.overview.status(max_members=2).services
    assert [t.teacher_id for t in few.teachers] == ["bad", "waiting"]
    assert len(few.students) == 2
    assert few.teacher_count == 5


def test_one_service_alone(mesh: Mesh) -> None:
    assert not mesh.overview.status("another").services
    assert [s.name for s in mesh.overview.status("s").services] == ["s"]


def test_a_reading_serves_all_who_ask_within_half_a_second(mesh: Mesh) -> None:
    first = mesh.overview.status()
    mesh.teacher("new")
    assert mesh.overview.status() is first
    mesh.now += 0.6
    assert mesh.overview.status().services[0].teacher_count == 6


def test_who_left_and_who_died_are_not_shown(mesh: Mesh) -> None:
    mesh.overview.status()
    mesh.registry.leave("teachers", "s", "idle")
    mesh.now += 0.6
    assert mesh.overview.status().services[0].teacher_count == 4
    mesh.now += TTL_S
    mesh.registry.sweep("teachers", "s")
    mesh.teacher("late")
    assert [t.teacher_id for t in mesh.overview.status().services[0].teachers] == ["late"]


def test_an_outage_is_said(mesh: Mesh) -> None:
    mesh.registry.set_available(False)
    with pytest.raises(RegistryUnavailable):
        mesh.overview.status()


def test_who_came_while_nobody_asked_for_minutes_is_shown_at_once(mesh: Mesh) -> None:
    mesh.overview.status()
    mesh.now += 1
    mesh.registry.register("teachers", "s", "late", {"incarnation": "1", "state": "serving"}, 600)
    mesh.now += 50
    mesh.registry.sweep("teachers", "s")
    mesh.now += 70
    for number in range(40):  # so many that the registry forgets what is older than a minute
        mesh.teacher(f"brief{number}")
        mesh.registry.leave("teachers", "s", f"brief{number}")
    (service,) = mesh.overview.status().services
    assert [teacher.teacher_id for teacher in service.teachers] == ["late"]
