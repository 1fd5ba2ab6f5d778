"""A mesh of managers in virtual time over one registry within the process."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edl.coordinator import Registry
from edl.coordinator.config import ManagerConfig
from edl.coordinator.manager.election import Election
from edl.coordinator.manager.leader import Leader
from edl.coordinator.manager.prober import ProbeVerdict
from edl.coordinator.manager.student_sessions import StudentCaller
from edl.coordinator.manager.subscription_hub import SubscriptionHub
from edl.coordinator.registry import LogEntry
from edl.coordinator.store.records import Member
from edl.proto import coordinator_pb2 as pb
from edl.runtime.errors import EdlError
from edl.scheduler.autoscale import AutoscaleConfig
from edl.scheduler.leadership import grace_s
from edl.tests.stores import FaultyStore, renew

TTL_S = 6.0
GRACE_S = grace_s(TTL_S)
LEADER_TTL_S = 2.0
STEP_S = 0.05
SERVICE = "s"


class FakeStream:
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

    @property
    def version(self) -> tuple[int, int]:
        return self.assignments[-1].term, self.assignments[-1].counter


class FakeProber:
    """Answers when it is told to; asks nobody."""

    def __init__(self, answer: ProbeVerdict | None = None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Callable[[ProbeVerdict], None]]] = []

    def probe(self, service: str, member: Member, done: Callable[[ProbeVerdict], None]) -> None:
        self.asked.append((member.member, done))
        if self.answer is not None:
            done(self.answer)


class FakeManager:
    """Subscription hub, leader and election, as the threads of a manager would drive them."""

    def __init__(self, world: World, address: str, prober: FakeProber | None) -> None:
        self._world = world
        config = ManagerConfig(ttl_s=TTL_S, leader_ttl_s=LEADER_TTL_S, autoscale=world.autoscale)
        registry, clock = world.registry, world.clock
        self.election = Election(registry, address, LEADER_TTL_S, TTL_S, clock)
        self.election.campaign_for(SERVICE)
        self.leader = Leader(registry, SERVICE, config, self.election, address, prober)
        self.hub = SubscriptionHub(registry, SERVICE, TTL_S, address, clock())
        self.alive = True

    def step(self) -> None:
        """One turn of each of its threads, as far as the registry answers."""
        for part in (self.election.renew, self.lead, self.serve, self.lead, self.serve):
            self._world.surviving(part)
            self._world.now += 0.001  # no two things happen in one microsecond

    def lead(self) -> None:
        self.leader.reconcile(self._world.clock())

    def serve(self) -> None:
        now = self._world.clock()
        self.hub.settle(now)
        self.hub.write(now)
        self.hub.refresh(now, self.election.registry_id)
        self.hub.push_assignments()


class Student:
    """A reader: follows its assignment and reports to whichever manager it is at."""

    def __init__(self, name: str, incarnation: int, caller: StudentCaller) -> None:
        self.name = name
        self.caller = caller
        self.fields: dict[str, Any] = {"incarnation": incarnation, "want": 2, "state": "steady"}
        self.stream = FakeStream()
        self.manager: FakeManager | None = None

    def report(self) -> pb.StudentReport:
        report = pb.StudentReport(service=SERVICE, student_id=self.name, **self.fields)
        if self.stream.assignments:
            last = self.stream.assignments[-1]
            report.term, report.counter = last.term, last.counter
            report.teachers.extend(self.stream.teachers or [])
        return report

    def subscribe(self, manager: FakeManager) -> None:
        report = self.report()
        former, self.stream, self.manager = self.stream, FakeStream(), manager
        self.stream.assignments = former.assignments[-1:]  # it goes on with what it has
        manager.hub.subscribed(self.stream, report, self.caller)

    def tell(self) -> None:
        if self.manager is not None and self.manager.alive and self.stream.error is None:
            self.manager.hub.reported(self.stream, self.report())


class World:
    """Registry, managers, teachers and students over one clock that a test moves."""

    def __init__(
        self,
        managers: int = 1,
        prober: FakeProber | None = None,
        autoscale: AutoscaleConfig | None = None,
    ) -> None:
        self.autoscale = autoscale or AutoscaleConfig()
        self.now = 1_700_000_000.0
        self.behind_s = 0.0  # of the registry's clock
        self.registry = Registry(FaultyStore(clock=lambda: self.now - self.behind_s))
        self.managers = [FakeManager(self, f"m{i}:1", prober) for i in range(managers)]
        self.teachers: dict[str, dict[str, str]] = {}
        self.students: list[Student] = []

    def clock(self) -> float:
        return self.now

    def surviving(self, part: Callable[[], object]) -> None:
        with suppress(EdlError):
            part()

    # -- members

    def teacher(self, *names: str, incarnation: int = 1, **facts: str) -> None:
        for name in names:
            usual = {"incarnation": str(incarnation), "address": f"{name}:1", "state": "serving"}
            self.teachers[name] = {**usual, **facts}
            self.registry.register("teachers", SERVICE, name, self.teachers[name], TTL_S)

    def student(
        self, name: str, at: int = 0, incarnation: int = 1, caller: StudentCaller | None = None,
        **fields: Any,
    ) -> Student:  # fmt: skip
        student = Student(name, incarnation, caller or StudentCaller(secret=f"of {name}"))
        student.fields |= fields
        student.subscribe(self.managers[at])
        self.students.append(student)
        return student

    def beat(self) -> None:
        for name, facts in self.teachers.items():
            incarnation = int(facts["incarnation"])
            if not renew(self.registry, "teachers", SERVICE, name, TTL_S, incarnation=incarnation):
                self.registry.register("teachers", SERVICE, name, facts, TTL_S)

    # -- time

    def run(self, seconds: float, *, until: Callable[[], bool] | None = None) -> None:
        """Let time pass; stops early as soon as `until` holds, and fails when it never does."""
        end, beat_s = self.now + seconds, self.now
        while self.now < end:
            if self.now >= beat_s:
                beat_s = self.now + 1.0
                self.surviving(self.beat)
                for student in self.students:
                    student.tell()
            for manager in self.managers:
                if manager.alive:
                    manager.step()
            if until is not None and until():
                return
            self.now += STEP_S
        assert until is None, "it never came true"

    # -- what can be seen

    @property
    def leading(self) -> list[FakeManager]:
        return [m for m in self.managers if m.alive and m.leader.view is not None]

    @property
    def sets(self) -> list[list[str]]:
        return [student.stream.teachers or [] for student in self.students]

    def log(self, kind: str = "") -> list[LogEntry]:
        return [e for e in self.registry.events(SERVICE) if kind in ("", e.kind)]

    def kill(self, *managers: FakeManager) -> None:
        for manager in managers:
            manager.alive = False

    def start_manager(self, address: str) -> FakeManager:
        manager = FakeManager(self, address, None)
        self.managers.append(manager)
        return manager
