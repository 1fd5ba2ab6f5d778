"""The manager's thread: streams, incarnations, outages; over a registry within the process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl.coordinator import Heartbeat, MemoryRegistry
from edl.coordinator.config import ManagerConfig
from edl.coordinator.manager import Manager
from edl.coordinator.overview import mesh_status
from edl.errors import EdlError, LeaseSuperseded, RetryableError
from edl.proto import coordinator_pb2 as pb
from edl.tests.ground.programs import wait_for

TTL_S = 0.6


class FakeStream:
    """Keeps what the manager sends."""

    def __init__(self) -> None:
        self.assignments: list[pb.Assignment] = []
        self.error: EdlError | None = None

    def push(self, assignment: pb.Assignment) -> None:
        self.assignments.append(assignment)

    def close(self, error: EdlError) -> None:
        self.error = error

    @property
    def teachers(self) -> list[str] | None:
        if not self.assignments:
            return None
        return sorted(teacher.teacher_id for teacher in self.assignments[-1].teachers)


@pytest.fixture
def registry() -> MemoryRegistry:
    return MemoryRegistry()


@pytest.fixture
def manager(registry: MemoryRegistry) -> Iterator[Manager]:
    manager = Manager(registry, ManagerConfig(ttl_s=TTL_S, sweep_s=0.01, outage_sweep_s=0.02))
    manager.start()
    yield manager
    manager.stop()


@pytest.fixture
def teacher(registry: MemoryRegistry) -> Iterator[Callable[[str], Heartbeat]]:
    hearts: list[Heartbeat] = []

    def start(name: str) -> Heartbeat:
        facts = {"incarnation": "1", "address": f"{name}:1", "state": "serving"}
        heart = Heartbeat(registry, "teachers", "s", name, lambda: facts, TTL_S)
        heart.start()
        hearts.append(heart)
        return heart

    yield start
    for heart in hearts:
        heart.stop()


def report(want: int = 1, student: str = "j/0", incarnation: int = 1, **more: Any) -> Any:
    return pb.StudentReport(
        service="s", student_id=student, incarnation=incarnation, want=want, **more
    )


def subscribe(manager: Manager, **fields: Any) -> FakeStream:
    stream = FakeStream()
    manager.subscribe(stream, report(**fields))
    wait_for(lambda: bool(stream.assignments or stream.error))
    return stream


def test_the_first_assignment_is_whole(
    manager: Manager, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    teacher("b")
    stream = subscribe(manager, want=2)
    assert len(stream.assignments) == 1
    assert stream.teachers == ["a", "b"]


def test_a_student_without_teachers_is_told_so_and_then_of_the_first(
    manager: Manager, teacher: Callable[[str], Heartbeat]
) -> None:
    stream = subscribe(manager)
    assert stream.teachers == []
    teacher("a")
    wait_for(lambda: stream.teachers == ["a"])


def test_a_dead_teacher_is_named_to_its_student(
    manager: Manager, teacher: Callable[[str], Heartbeat]
) -> None:
    heart = teacher("a")
    teacher("b")
    stream = subscribe(manager, want=2)
    heart.stop(leave=False)

    def told() -> bool:
        manager.report(stream, report(want=2))
        return stream.teachers == ["b"]

    wait_for(told)
    assert list(stream.assignments[-1].lost) == ["a"]


def test_a_newer_incarnation_supersedes_the_older_at_once(manager: Manager) -> None:
    old = subscribe(manager, incarnation=1)
    new = subscribe(manager, incarnation=2)
    assert isinstance(old.error, LeaseSuperseded)
    assert new.error is None
    late = subscribe(manager, incarnation=1)
    assert isinstance(late.error, LeaseSuperseded)
    assert new.error is None


def test_a_second_stream_of_one_incarnation_replaces_the_first(manager: Manager) -> None:
    old = subscribe(manager)
    new = subscribe(manager)
    assert isinstance(old.error, RetryableError)
    manager.end(old, report(), clean=True)  # the end of the old one is not the student's
    manager.report(new, report(want=5))
    wait_for(lambda: [s.students[0].report.want for s in manager.own_students()] == [5])


def test_a_clean_end_gives_teachers_back_at_once(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    teacher("b")
    stream = subscribe(manager, want=2)
    other = subscribe(manager, want=2, student="k/0")
    wait_for(lambda: other.teachers != [])
    manager.end(stream, report(), clean=True)
    wait_for(lambda: other.teachers == ["a", "b"])
    wait_for(lambda: registry.names("students", "s") == {"k/0"})


def test_a_broken_stream_keeps_its_teachers_until_the_lease_runs_out(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    stream = subscribe(manager)
    manager.end(stream, report(), clean=False)
    assert [s.students[0].assigned for s in manager.own_students()] == [["a"]]
    again = subscribe(manager)
    assert again.teachers == ["a"]
    manager.end(again, report(), clean=False)
    wait_for(lambda: not any(s.students for s in manager.own_students()))
    wait_for(lambda: registry.names("students", "s") == set())


def test_students_have_leases_that_say_how_they_are(
    manager: Manager, registry: MemoryRegistry, teacher: Callable[[str], Heartbeat]
) -> None:
    teacher("a")
    stream = subscribe(manager, volume_bytes=7, state="steady")
    wait_for(lambda: len(registry.members("students", "s")) == 1)
    status = mesh_status(registry, [])
    student = status.services[0].students[0]
    assert (student.report.volume_bytes, list(student.assigned)) == (7, ["a"])
    manager.report(stream, report(volume_bytes=9, state="starved"))
    fresh = mesh_status(registry, manager.own_students()).services[0].students[0].report
    assert (fresh.volume_bytes, fresh.state) == (9, "starved")
    assert mesh_status(registry, [], "another").services == []


def test_an_outage_takes_nothing_away_and_is_logged_once(
    manager: Manager,
    registry: MemoryRegistry,
    teacher: Callable[[str], Heartbeat],
    caplog: pytest.LogCaptureFixture,
) -> None:
    teacher("a")
    stream = subscribe(manager)
    own = "edl.coordinator.manager"
    with caplog.at_level(logging.INFO, own):
        registry.set_available(False)
        wait_for(lambda: bool(caplog.records))
        wait_until = registry._clock() + 1.5 * TTL_S
        while registry._clock() < wait_until:  # old leases run out in the meantime
            manager.report(stream, report(want=1))
            assert manager.own_students()[0].students[0].assigned == ["a"]
        registry.clear()
        registry.set_available(True)
        wait_for(lambda: any("answers again" in r.getMessage() for r in caplog.records))
    levels = [r.levelno for r in caplog.records if r.name == own]
    assert levels.count(logging.WARNING) == 1
    wait_for(lambda: registry.names("teachers", "s") == {"a"})
    wait_for(lambda: registry.names("students", "s") == {"j/0"})
    assert [a.teachers[0].teacher_id for a in stream.assignments] == ["a"]


def test_a_newer_incarnation_at_another_manager_ends_the_stream(
    manager: Manager, registry: MemoryRegistry
) -> None:
    registry.register("students", "s", "j/0", {"incarnation": "9"}, 30.0)
    stream = FakeStream()
    manager.subscribe(stream, report(incarnation=1))
    wait_for(lambda: isinstance(stream.error, LeaseSuperseded))
    assert registry.members("students", "s")[0].incarnation == 9


def test_a_service_without_students_is_forgotten_in_time(
    registry: MemoryRegistry, manager: Manager
) -> None:
    stream = subscribe(manager)
    manager.end(stream, report(), clean=True)
    wait_for(lambda: manager.own_students() == [])


def test_a_failing_stream_does_not_stop_the_manager(
    manager: Manager, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeStream):
        def push(self, assignment: pb.Assignment) -> None:
            raise RuntimeError("broken")

    manager.subscribe(Broken(), report(student="bad/0"))
    wait_for(lambda: any("goes on" in r.getMessage() for r in caplog.records))
    assert subscribe(manager).assignments
