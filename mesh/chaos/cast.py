"""The processes of a run, and the gates between them: how each is started, found and ended."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...coordinator.embedded import free_port, server_command
from ...errors import ProcessFailed
from ...supervise import Command, Process, python_command, start, stop_all
from ..local import COORDINATOR_READY, TEACHER_READY, TeacherSpec
from .doorway import Doorway
from .gate import Gate, Through
from .lies import Liar
from .samples import MODEL, PROBABILITIES_MODEL, REFUSES
from .settings import PROBABILITIES, ChaosSettings
from .student import MOST_ROWS, Part

SERVICE = "chaos"
REDIS_READY = "Ready to accept connections"
#: Where what stands behind a gate listens: at the gate's port, on another address of loopback.
BEHIND = "127.0.0.2"
START_S = 60.0
SLICE_S = 0.1
END_S = 15.0


@dataclass(eq=False)
class Actor:
    """A process of the run that is started again under the same name.

    Attributes:
        command: what it is.
        ready: what it prints when it is ready.
        process: its latest life; None before the first.
    """

    command: Command
    ready: str
    process: Process | None = None
    _is_ready: threading.Event = field(default_factory=threading.Event)

    def start(self, on_ready: Callable[[], None] = lambda: None) -> Process:
        """Start it, and have `on_ready` called, in another thread, once it is ready."""
        pattern, ready = re.compile(self.ready), threading.Event()

        def hear(line: str) -> None:
            if not ready.is_set() and pattern.search(line):
                ready.set()
                on_ready()

        self._is_ready = ready

        self.process = start(self.command, echo=hear)
        return self.process

    @property
    def alive(self) -> bool:
        """Whether its latest life goes on."""
        return self.process is not None and self.process.alive

    @property
    def serves(self) -> bool:
        """Whether it goes on, and has become ready."""
        return self.alive and self._is_ready.is_set()

    def settled(self, timeout_s: float) -> bool:
        """Wait until it is ready or has ended; returns whether it is ready."""
        deadline = time.monotonic() + timeout_s
        while not self._is_ready.wait(SLICE_S):
            if not self.alive or time.monotonic() > deadline:
                return False
        return True

    def wait_ready(self, check: Callable[[], None]) -> None:
        """Wait until it is ready, `check` being called meanwhile. Raises ProcessFailed."""
        deadline = time.monotonic() + START_S
        while not self._is_ready.wait(SLICE_S):
            check()
            if self.process is not None and (not self.alive or time.monotonic() > deadline):
                self.process.expect(self.ready, 0.0)  # which says what it said in place of that


@dataclass(eq=False)
class Teacher(Actor):
    """A teacher, between gates that readers and managers come through, and one to Redis.

    Attributes:
        door: readers and managers reach it through this, by gRPC and by the transport.
        line: it reaches Redis through this.
        liar: spoils its results.
    """

    door: Doorway = field(kw_only=True)
    line: Gate = field(kw_only=True)
    liar: Liar = field(kw_only=True)


class Cast:
    """Everybody in a run: Redis, a manager, teachers, students. Whoever makes it calls `end`.

    Args:
        settings: how many of each, and how fast.
        folder: for logs, and for what students write.
        began: `time.monotonic()` of the beginning, for the students.

    Attributes:
        redis: the database.
        manager: the service manager.
        manager_door: students reach the manager through this.
        teachers: by name, guests and misconfigured ones, too.
        students: by name.
        parts: by student, what it was told.
        url: of Redis, past all gates.
    """

    def __init__(self, settings: ChaosSettings, folder: Path, began: float) -> None:
        self._settings = settings
        self._folder = folder
        self._gates: list[Gate] = []
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        self._redis_address = f"127.0.0.1:{port}"
        self.redis = Actor(replace(server_command(port), log=folder / "redis.log"), REDIS_READY)
        self.manager_door = self._gate("manager")
        self.manager = Actor(self._manager(), COORDINATOR_READY)
        names = (
            *settings.teacher_names,
            *settings.guest_names,
            *settings.misconfigured_names,
        )
        self.teachers = {name: self._teacher(name, at) for at, name in enumerate(names)}
        self.parts = {
            name: self._part(name, at, began) for at, name in enumerate(settings.student_names)
        }
        self.students: dict[str, Process] = {}

    def start(self, check: Callable[[], None]) -> None:
        """Start Redis, the manager and the teachers that label, and wait until they are ready.

        Args:
            check: called while waiting; what it raises ends the wait.

        Raises:
            ProcessFailed: one did not become ready.
        """
        for actor in (self.redis, self.manager):
            actor.start()
            actor.wait_ready(check)
        self._start_teachers(self._settings.teacher_names, check)

    def start_misconfigured(self, check: Callable[[], None]) -> None:
        """Start the teachers that refuse everything, and the one of probabilities, as `start`.

        They come once students train, and so after the first content, which is the service's.
        """
        self._start_teachers(self._settings.misconfigured_names, check)

    def _start_teachers(self, names: Sequence[str], check: Callable[[], None]) -> None:
        for name in names:
            self.teachers[name].start()
        for name in names:
            self.teachers[name].wait_ready(check)

    def start_students(self) -> None:
        """Start every student. Raises ProcessFailed."""
        for name, part in self.parts.items():
            command = python_command(
                name,
                "edl.mesh.chaos.student",
                part.to_json(),
                log=self._folder / f"{name}.log",
            )
            self.students[name] = start(command)

    def end_students(self) -> dict[str, str]:
        """End them in order; by name, what was not in order about it."""
        troubles = {
            name: f"ended by itself: {' | '.join(process.tail(2))}"
            for name, process in self.students.items()
            if not process.alive
        }
        with contextlib.suppress(ProcessFailed):  # then `end` says so
            stop_all([one for one in self.students.values() if one.alive], END_S)
        for name, process in self.students.items():
            if name not in troubles and process.returncode != 0:
                troubles[name] = f"did not end in order within {END_S:.0f} s of SIGTERM"
        return troubles

    def end(self) -> None:
        """End everybody, and the gates; again without effect. Raises ProcessFailed."""
        teachers = [one.process for one in self.teachers.values() if one.process is not None]
        others = [one.process for one in (self.manager, self.redis) if one.process is not None]
        try:
            stop_all([*self.students.values(), *teachers], self._settings.grace_s)
            for process in others:
                process.stop()
        finally:
            for gate in self._gates:
                gate.close()

    def _gate(
        self,
        name: str,
        target: str | None = None,
        answers: Callable[[], Through] | None = None,
    ) -> Gate:
        gate = Gate(name, target, host=BEHIND, answers=answers)
        self._gates.append(gate)
        return gate

    def _manager(self) -> Command:
        return python_command(
            "manager",
            "edl",
            *("coordinator", "serve", "--redis", self.url, "--ttl", self._settings.ttl_s),
            *("--host", BEHIND, "--port", self.manager_door.port, "--advertise", "127.0.0.1"),
            log=self._folder / "manager.log",
        )

    def _teacher(self, name: str, number: int) -> Teacher:
        liar = Liar(self._settings.seed + number)
        grpc = self._gate(name)
        transport = self._gate(f"{name}-transport", answers=liar.connection)
        line = self._gate(f"{name}-redis", self._redis_address)
        spec = TeacherSpec(
            SERVICE,
            PROBABILITIES_MODEL if name == PROBABILITIES else MODEL,
            micro_batch=MOST_ROWS,
            ttl_s=self._settings.ttl_s,
            grace_s=self._settings.grace_s,
            options=(
                *("--backend", "paced", "--rate", str(self._settings.teacher_rate)),
                *("--host", BEHIND, "--port", str(grpc.port), "--advertise", "127.0.0.1"),
                *("--transport-port", str(transport.port), "--http", "off"),
            ),
        )
        command = spec.command(
            name,
            f"redis://{line.address}",
            log=self._folder / f"{name}.log",
            env={REFUSES: "1"} if name in self._settings.refusing_names else {},
        )
        door = Doorway(grpc, transport)
        return Teacher(command, TEACHER_READY, door=door, line=line, liar=liar)

    def _part(self, name: str, number: int, began: float) -> Part:
        return Part(
            name,
            SERVICE,
            self.url,
            began,
            str(self._folder),
            step_s=1 / self._settings.student_rate,
            # Of two students one has its batches read in place, by a way that no gate is in; the
            # other is sent everything.
            shared_memory=number % 2 == 0,
            **self._settings.vigilance,
        )
