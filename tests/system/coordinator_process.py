"""`edl coordinator serve` as a process, its status, and clients of it in the test's process."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from typer.testing import CliRunner

from edl.cli import command_line
from edl.coordinator import Heartbeat, Subscription, connect
from edl.proto import coordinator_pb2 as pb
from edl.runtime.supervise import Process, python_command, start
from edl.tests.waiting import DEADLINE_S

#: Of teachers that no test wants to lose, whose beats are threads of its process.
LONG_TTL_S = 30.0
#: Of students and teachers whose end a test waits for.
SHORT_TTL_S = 5.0
SERVICE = "s"
#: The teachers of these tests are leases, with nobody at their addresses.
LEASES_ONLY = ("--ttl", SHORT_TTL_S, "--no-admission")


@dataclass
class Coordinator:
    process: Process
    url: str
    address: str


def serve(*args: object) -> Process:
    """Start it for teachers that are mere leases, on free ports unless `args` say otherwise."""
    words = ("coordinator", "serve", *LEASES_ONLY, *args)
    return start(python_command("coordinator", "edl", *words))


def ready(process: Process) -> Coordinator:
    match = process.expect(r"^coordinator ready: (\S+) manager (\S+)$", DEADLINE_S)
    return Coordinator(process, match[1], match[2])


def edl(*arguments: object, url: str = "") -> tuple[int, list[str]]:
    """Run `edl ...`; returns its exit code and the lines of its output."""
    words = (*arguments, *(("--redis", url) if url else ()))
    process = start(python_command("edl", "edl", *words, env={"COLUMNS": "1000"}))
    code = process.wait(DEADLINE_S)
    assert code is not None, process.tail()
    return code, process.tail(2000)


def edl_output(*arguments: object, url: str) -> list[str]:
    """The lines that `edl ...`, run in the process of the test, prints; it has to succeed."""
    words = [*map(str, arguments), "--redis", url]
    runner = CliRunner(env={"COLUMNS": "1000"})
    result = runner.invoke(command_line(words[0]), words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


class Student:
    """A subscription of this process, and how many teachers it was given each time."""

    def __init__(self, url: str, student: str, service: str, report: pb.StudentReport) -> None:
        self.sizes: list[int] = []
        self.subscription = Subscription(url, service, student)
        self.subscription.start(lambda told: self.sizes.append(len(told.teachers)))
        self.subscription.report(report)


class Members:
    """Teachers and students of this process, which end with the test."""

    def __init__(self, url: str, undo: ExitStack) -> None:
        self._url = url
        self._undo = undo
        self._registry = connect(url)
        undo.callback(self._registry.close)

    def teacher(self, name: str, address: str = "", ttl_s: float = LONG_TTL_S) -> Heartbeat:
        facts = {"incarnation": "1", "address": address or f"{name}:1", "state": "serving"}
        heart = Heartbeat(self._registry, "teachers", SERVICE, name, lambda: facts, ttl_s)
        heart.start()
        self._undo.callback(heart.stop)
        return heart

    def student(self, name: str, report: pb.StudentReport) -> Student:
        student = Student(self._url, name, SERVICE, report)
        self._undo.callback(student.subscription.stop)
        return student
