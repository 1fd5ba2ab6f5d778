"""A manager that does what a test says: remembers what came, and pushes what it is told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from edl.coordinator import Registry
from edl.coordinator.machines import MachineBoard
from edl.coordinator.manager.manager import Manager
from edl.coordinator.manager.student_sessions import AssignmentStream, StudentCaller
from edl.coordinator.service import CoordinatorServer
from edl.coordinator.service.call_guard import ManagerLimits
from edl.proto import coordinator_pb2 as pb
from edl.proto.protocols import PROTOCOL_VERSION
from edl.proto.security.credentials import ServerSecurity
from edl.runtime.errors import EdlError
from edl.tests.stores import FaultyStore
from edl.tests.waiting import DEADLINE_S

_NUMBER = count(1)


@dataclass
class ScriptedManager(Manager):
    """Gives every student that comes the same teachers, and refuses whom it is told to."""

    beat_s: float = 0.1
    version: tuple[int, int] = (100, 1)
    teachers: list[str] = field(default_factory=lambda: ["t1"])
    refuse: EdlError | None = None
    owners: list[StudentCaller] = field(default_factory=list)
    reports: list[pb.StudentReport] = field(default_factory=list)
    ended: list[tuple[str, bool]] = field(default_factory=list)  # student id, cleanly
    streams: dict[str, AssignmentStream] = field(default_factory=dict)
    mesh: pb.MeshStatus = field(default_factory=pb.MeshStatus)
    asked: list[tuple[str, int]] = field(default_factory=list)
    answering: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.answering.set()

    def subscribe(
        self, stream: AssignmentStream, report: pb.StudentReport, caller: StudentCaller
    ) -> None:
        self.owners.append(caller)
        self.reports.append(report)
        if self.refuse is not None:
            stream.close(self.refuse)
            return
        self.streams[report.student_id] = stream
        self.push(report.student_id)

    def report(self, stream: AssignmentStream, report: pb.StudentReport) -> None:
        self.reports.append(report)

    def end(self, stream: AssignmentStream, report: pb.StudentReport, *, clean: bool) -> None:
        self.ended.append((report.student_id, clean))

    def status(self, service: str = "", max_members: int = 0) -> pb.MeshStatus:
        self.asked.append((service, max_members))
        assert self.answering.wait(DEADLINE_S)
        if self.refuse is not None:
            raise self.refuse
        return self.mesh

    def push(self, student_id: str, version: tuple[int, int] | None = None) -> None:
        told = pb.Assignment(protocol_version=PROTOCOL_VERSION)
        told.term, told.counter = version or self.version
        told.teachers.extend(pb.Teacher(teacher_id=t, address=f"{t}:1") for t in self.teachers)
        self.streams[student_id].push(told)


@dataclass
class Served:
    """A scripted manager that listens, and the registry that names it."""

    url: str
    registry: Registry
    manager: ScriptedManager
    server: CoordinatorServer
    address: str
    refused: list[str]

    def retire(self) -> None:
        self.registry.leave("managers", "", self.address)
        self.server.stop(grace_s=0.0)


@contextmanager
def served(
    url: str = "",
    *,
    security: ServerSecurity | None = None,
    limits: ManagerLimits | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Served]:
    """One scripted manager over a registry in memory; ends with the body."""
    url = url or f"memory://served-{next(_NUMBER)}"
    registry = Registry(FaultyStore.shared(url))
    manager, refused = ScriptedManager(), list[str]()
    server = CoordinatorServer(
        manager,
        registry,
        security=security,
        limits=limits,
        on_refused=refused.append,
        machines=MachineBoard(FaultyStore.shared(url)),
    )
    address = f"{host}:{server.start(host, 0)}"
    registry.register("managers", "", address, {"incarnation": "1"}, 600.0)
    try:
        yield Served(url, registry, manager, server, address, refused)
    finally:
        manager.answering.set()
        server.stop(grace_s=0.1)
