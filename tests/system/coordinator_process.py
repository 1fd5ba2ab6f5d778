"""`edl coordinator serve` as a process, its status, and who speaks to it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from edl.coordinator import Heartbeat, Subscription, connect
from edl.proto import coordinator_pb2 as pb
from edl.supervise import Process, python_command, start

START_S = 30.0
TTL_S = 1.5
LEADER_TTL_S = 0.8
#: Of teachers that no test wants to lose, whose beats are threads of its process.
LONG_TTL_S = 30.0
#: The teachers of these tests are leases, with nobody at their addresses.
LEASES_ONLY = ("--ttl", TTL_S, "--leader-ttl", LEADER_TTL_S, "--no-admission")


@dataclass
class Coordinator:
    """A running `edl coordinator serve`."""

    process: Process
    url: str
    address: str


def serve(*args: object) -> Process:
    """Start it on free ports, unless `args` say otherwise."""
    return start(python_command("coordinator", "edl.coordinator.cli", "serve", *args))


def ready(process: Process) -> Coordinator:
    match = process.expect(r"^coordinator ready: (\S+) manager (\S+)$", START_S)
    return Coordinator(process, match[1], match[2])


def status(*args: object) -> tuple[int, list[str]]:
    process = start(python_command("status", "edl", "status", *args))
    code = process.wait(START_S)
    assert code is not None
    return code, process.tail(500)


class Student:
    """A subscription of this process, and what it was told."""

    def __init__(self, url: str, student: str, want: int) -> None:
        self.told: list[pb.Assignment] = []
        self.subscription = Subscription(url, "s", student)
        self.subscription.start(self.told.append)
        self.subscription.report(pb.StudentReport(incarnation=1, want=want))

    @property
    def teachers(self) -> list[str] | None:
        return sorted(t.teacher_id for t in self.told[-1].teachers) if self.told else None


class Members:
    """Teachers and students of this process, which end with the test."""

    def __init__(self, url: str, undo: ExitStack) -> None:
        self._url = url
        self._undo = undo
        self._registry = connect(url)
        undo.callback(self._registry.close)

    def teacher(self, name: str, address: str = "", ttl_s: float = LONG_TTL_S) -> Heartbeat:
        facts = {"incarnation": "1", "address": address or f"{name}:1", "state": "serving"}
        heart = Heartbeat(self._registry, "teachers", "s", name, lambda: facts, ttl_s)
        heart.start()
        self._undo.callback(heart.stop)
        return heart

    def student(self, name: str = "j/0", want: int = 3) -> Student:
        student = Student(self._url, name, want)
        self._undo.callback(student.subscription.stop)
        return student
