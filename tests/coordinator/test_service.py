"""The control plane over real gRPC, against a server in this process and a registry in memory."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from edl.coordinator import Heartbeat, MemoryRegistry, Subscription, fetch_status
from edl.coordinator.config import ManagerConfig
from edl.coordinator.discovery import stub
from edl.coordinator.manager import Manager
from edl.coordinator.service import CoordinatorServer
from edl.errors import (
    AddressInUse,
    CoordinatorUnavailable,
    EdlError,
    LeaseSuperseded,
    RequestRefused,
    VersionMismatch,
)
from edl.proto import coordinator_pb2 as pb
from edl.proto.version import PROTOCOL_VERSION
from edl.tests.ground.programs import wait_for

TTL_S = 1.5


@dataclass
class Mesh:
    """One manager that listens, and the registry that names it."""

    url: str
    registry: MemoryRegistry
    address: str
    server: CoordinatorServer


@pytest.fixture
def mesh(request: pytest.FixtureRequest) -> Iterator[Mesh]:
    url = f"memory://{request.node.nodeid}"
    registry = MemoryRegistry.shared(url)
    manager = Manager(registry, ManagerConfig(ttl_s=TTL_S, sweep_s=0.02))
    manager.start()
    server = CoordinatorServer(manager, registry)
    address = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    facts = {"incarnation": "1", "started_ms": "1"}
    lease = Heartbeat(registry, "managers", "", address, lambda: facts, TTL_S)
    lease.start()
    yield Mesh(url, registry, address, server)
    lease.stop()
    server.stop(grace_s=0.1)
    manager.stop()


@pytest.fixture
def teacher(mesh: Mesh) -> Iterator[Heartbeat]:
    facts = {"incarnation": "3", "address": "h:1", "state": "serving", "t_t_seconds": "0.5"}
    heart = Heartbeat(mesh.registry, "teachers", "s", "t1", lambda: facts, TTL_S)
    heart.start()
    yield heart
    heart.stop()


class Student:
    """A subscription, and what it was told."""

    def __init__(self, mesh: Mesh, incarnation: int = 1, student: str = "j/0") -> None:
        self.told: list[pb.Assignment] = []
        self.failures: list[EdlError] = []
        self.incarnation = incarnation
        self.subscription = Subscription(mesh.url, "s", student, on_failed=self.failures.append)

    def start(self, want: int = 1) -> Student:
        self.subscription.start(self.told.append)
        self.report(want)
        return self

    def report(self, want: int = 1, **fields: Any) -> None:
        report = pb.StudentReport(incarnation=self.incarnation, want=want, **fields)
        self.subscription.report(report)

    @property
    def teachers(self) -> list[str] | None:
        return [t.teacher_id for t in self.told[-1].teachers] if self.told else None


@pytest.fixture
def student(mesh: Mesh) -> Iterator[Student]:
    student = Student(mesh)
    yield student
    student.subscription.stop()


def test_a_student_hears_of_its_teacher(mesh: Mesh, teacher: Heartbeat, student: Student) -> None:
    assert student.subscription.why == "no report was made yet"
    student.start()
    wait_for(lambda: student.teachers == ["t1"])
    (told,) = student.told[-1].teachers
    assert (told.address, told.incarnation, told.t_t_seconds) == ("h:1", 3, 0.5)
    wait_for(lambda: student.subscription.why == "")


def test_reports_are_repeated_so_that_the_lease_lasts(
    mesh: Mesh, teacher: Heartbeat, student: Student
) -> None:
    student.start()
    wait_for(lambda: student.teachers == ["t1"])
    begin_ms = mesh.registry.time_ms()
    wait_for(lambda: mesh.registry.time_ms() > begin_ms + 2500 * TTL_S)
    assert student.teachers == ["t1"]
    assert len(student.told) == 1
    assert mesh.registry.names("students", "s") == {"j/0"}


def test_stop_releases_the_teachers_at_once(
    mesh: Mesh, teacher: Heartbeat, student: Student
) -> None:
    student.start()
    wait_for(lambda: mesh.registry.names("students", "s") == {"j/0"})
    student.subscription.stop()
    assert not student.subscription._thread.is_alive()
    wait_for(lambda: mesh.registry.names("students", "s") == set(), timeout_s=TTL_S / 2)


def test_status_shows_teachers_students_and_who_serves_whom(
    mesh: Mesh, teacher: Heartbeat, student: Student
) -> None:
    student.start()
    student.report(want=3, needed=2, volume_bytes=42)

    def seen() -> bool:
        services = fetch_status(mesh.url).services
        return bool(services and services[0].students) and (
            services[0].students[0].report.volume_bytes == 42
        )

    wait_for(seen)
    status = fetch_status(mesh.url, "s")
    assert list(status.managers) == [mesh.address]
    (service,) = status.services
    assert [t.teacher_id for t in service.teachers] == ["t1"]
    assert list(service.students[0].assigned) == ["t1"]
    assert service.term > 0
    assert not fetch_status(mesh.url, "nosuch").services


def test_a_newer_incarnation_ends_the_older_for_good(mesh: Mesh, student: Student) -> None:
    student.start()
    wait_for(lambda: bool(student.told))
    newer = Student(mesh, incarnation=2).start()
    wait_for(lambda: bool(student.failures))
    assert isinstance(student.subscription.error, LeaseSuperseded)
    wait_for(lambda: bool(newer.told))
    newer.subscription.stop()


def test_a_manager_that_ends_is_replaced_by_the_next(
    mesh: Mesh, teacher: Heartbeat, student: Student
) -> None:
    student.start()
    wait_for(lambda: student.teachers == ["t1"])
    first_term = student.told[-1].term
    manager = Manager(mesh.registry, ManagerConfig(ttl_s=TTL_S))
    manager.start()
    server = CoordinatorServer(manager, mesh.registry)
    address = f"127.0.0.1:{server.start('127.0.0.1', 0)}"
    mesh.registry.register("managers", "", address, {"incarnation": "1", "started_ms": "2"}, 60.0)
    mesh.server.stop(grace_s=0.0)
    wait_for(lambda: student.told[-1].term > first_term)
    assert student.teachers == ["t1"]
    student.subscription.stop()
    server.stop(grace_s=0.0)
    manager.stop()


def test_why_names_what_is_waited_for(mesh: Mesh, student: Student) -> None:
    mesh.registry.set_available(False)
    student.start()
    wait_for(lambda: "does not answer" in student.subscription.why)
    mesh.registry.set_available(True)
    wait_for(lambda: student.subscription.why == "")


def test_without_managers_the_reader_and_status_say_so() -> None:
    url = "memory://nobody"
    with pytest.raises(CoordinatorUnavailable, match="edl coordinator serve"):
        fetch_status(url)
    subscription = Subscription(url, "s", "j/0")
    subscription.start(lambda assignment: None)
    subscription.report(pb.StudentReport(want=1))
    wait_for(lambda: "no service manager is registered" in subscription.why)
    subscription.stop()


def test_a_registered_manager_that_is_gone_is_said_to_be(mesh: Mesh) -> None:
    registry = MemoryRegistry.shared("memory://gone")
    registry.register("managers", "", "127.0.0.1:1", {"incarnation": "1"}, 30.0)
    with pytest.raises(CoordinatorUnavailable, match=r"127\.0\.0\.1:1 does not answer"):
        fetch_status("memory://gone")


def call(mesh: Mesh, *reports: pb.StudentReport) -> grpc.RpcError:
    """The error by which a stream of these reports ends; it is not half-closed."""
    over = threading.Event()

    def requests() -> Iterator[pb.StudentReport]:
        yield from reports
        over.wait(10.0)

    with grpc.insecure_channel(mesh.address) as channel:
        try:
            with pytest.raises(grpc.RpcError) as error:
                list(stub(channel).Subscribe(requests(), timeout=10.0))
        finally:
            over.set()
    return error.value


def good(**fields: Any) -> pb.StudentReport:
    defaults = {
        "protocol_version": PROTOCOL_VERSION,
        "service": "s",
        "student_id": "j/0",
        "want": 1,
    }
    return pb.StudentReport(**{**defaults, **fields})


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"protocol_version": 0}, "OUT_OF_RANGE", "protocol version"),
        ({"protocol_version": 99}, "OUT_OF_RANGE", "99"),
        ({"service": ""}, "INVALID_ARGUMENT", "name of a service"),
        ({"service": "a b"}, "INVALID_ARGUMENT", "name of a service"),
        ({"student_id": "{}"}, "INVALID_ARGUMENT", "id of a student"),
        ({"teachers": ["a b"]}, "INVALID_ARGUMENT", "id of a teacher"),
        ({"teachers": ["t"] * 5000}, "INVALID_ARGUMENT", "at most 4096"),
        ({"term": 2**63}, "INVALID_ARGUMENT", "no time"),
        ({"counter": 2**64 - 1}, "INVALID_ARGUMENT", "no time"),
    ],
)
def test_a_report_that_cannot_be_is_refused(
    mesh: Mesh, fields: dict[str, Any], code: str, said: str
) -> None:
    error = call(mesh, good(**fields))
    assert isinstance(error, grpc.Call)
    assert error.code().name == code
    assert said in (error.details() or "")
    assert fetch_status(mesh.url).managers  # the manager goes on


def test_a_stream_belongs_to_one_student(mesh: Mesh) -> None:
    error = call(mesh, good(), good(student_id="k/0"))
    assert isinstance(error, grpc.Call)
    assert error.code().name == "INVALID_ARGUMENT"
    assert "one student" in (error.details() or "")


def test_an_immense_want_gets_what_there_is(mesh: Mesh, teacher: Heartbeat) -> None:
    greedy = Student(mesh).start(want=2**32 - 1)
    wait_for(lambda: greedy.teachers == ["t1"])
    greedy.subscription.stop()


def test_a_reader_that_is_refused_ends_with_the_reason(mesh: Mesh) -> None:
    student = Student(mesh, student="j 0").start()
    wait_for(lambda: bool(student.failures))
    assert isinstance(student.subscription.error, RequestRefused)
    student.subscription.stop()


def test_a_reader_that_is_too_new_ends_with_the_reason(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edl.coordinator.client.PROTOCOL_VERSION", 99)
    student = Student(mesh).start()
    wait_for(lambda: bool(student.failures))
    assert isinstance(student.subscription.error, VersionMismatch)
    student.subscription.stop()


def test_bytes_that_are_no_message_are_refused(
    mesh: Mesh, caplog: pytest.LogCaptureFixture
) -> None:
    with grpc.insecure_channel(mesh.address) as channel:
        status = channel.unary_unary("/edl.coordinator.v1.Coordinator/Status", None, None)
        with pytest.raises(grpc.RpcError) as error:
            status(b"\xff\xff\xff", timeout=5.0)
    assert isinstance(error.value, grpc.Call)
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert fetch_status(mesh.url).managers
    assert not [r for r in caplog.records if r.exc_info]


def test_garbage_on_the_port_harms_nobody(
    mesh: Mesh, teacher: Heartbeat, student: Student, capfd: pytest.CaptureFixture[str]
) -> None:
    student.start()
    wait_for(lambda: student.teachers == ["t1"])
    host, port = mesh.address.split(":")
    for garbage in (
        b"GET / HTTP/1.0\r\n\r\n",
        os.urandom(4096),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(garbage + os.urandom(512))
    assert fetch_status(mesh.url).services
    assert student.subscription.why == ""
    assert "Traceback" not in capfd.readouterr().err


def test_a_port_in_use_is_said_in_one_line(mesh: Mesh) -> None:
    second = CoordinatorServer(Manager(mesh.registry), mesh.registry)
    with pytest.raises(AddressInUse, match=mesh.address) as error:
        second.start("127.0.0.1", int(mesh.address.split(":")[1]))
    assert "\n" not in str(error.value)
    second.stop()


def test_a_callback_that_fails_does_not_end_the_subscription(
    mesh: Mesh, teacher: Heartbeat, caplog: pytest.LogCaptureFixture
) -> None:
    calls = []

    def failing(assignment: pb.Assignment) -> None:
        calls.append(assignment)
        raise RuntimeError("reader's own mistake")

    subscription = Subscription(mesh.url, "s", "j/0")
    subscription.start(failing)
    subscription.report(pb.StudentReport(want=1))
    wait_for(lambda: bool(calls))
    teacher.stop()
    wait_for(lambda: len(calls) == 2)
    subscription.stop()
    assert any("callback" in record.getMessage() for record in caplog.records)
