"""A mesh on this machine: processes of service managers and teachers."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ..runtime.errors import ProcessFailed, UsageError
from ..runtime.supervise import Command, Process, python_command, start, stop_all

COORDINATOR_READY = r"coordinator ready: (\S+) manager (\S+)"
TEACHER_READY = r"teacher ready: (\S+) (\S+) on (\S+)"
#: Seconds to wait for a line of output between calls of `check`.
SLICE_S = 0.1


@dataclass(frozen=True, slots=True)
class TeacherSpec:
    """Settings of all teachers of a service.

    Attributes:
        service: name of the service.
        model: path of an exported model, or `module:function`.
        threads: CPU threads of a run of the model.
        micro_batch: most samples in a run of the model.
        ttl_s: seconds without a heartbeat after which a teacher is dead.
        grace_s: most seconds of a drain.
        options: further arguments of `edl teacher serve`.
    """

    service: str
    model: str
    threads: int = 1
    micro_batch: int = 8
    ttl_s: float = 6.0
    grace_s: float = 5.0
    options: tuple[str, ...] = ()

    def command(
        self,
        teacher_id: str,
        coordinator: str,
        *,
        env: Mapping[str, str] | None = None,
        **more: Any,
    ) -> Command:
        """Return the command that starts a teacher.

        Args:
            teacher_id: name of the teacher.
            coordinator: Redis URL. It is passed as a variable: it may contain a password, and all
                users of a machine can read command lines.
            env: further environment variables.
            more: further fields of the command.
        """
        flags = {
            "--model": self.model,
            "--service": self.service,
            "--teacher-id": teacher_id,
            "--threads": self.threads,
            "--micro-batch": self.micro_batch,
            "--ttl": self.ttl_s,
            "--grace": self.grace_s,
        }
        pairs = [str(word) for pair in flags.items() for word in pair]
        words = ("teacher", "serve", *pairs, *self.options)
        told = {"EDL_COORDINATOR": coordinator, **(env or {})}
        return python_command(teacher_id, "edl", *words, env=told, **more)


class LocalMesh:
    """Starts and ends a coordinator with its own Redis, further managers, and teachers.

    A context manager. `supervise` ends all processes if this process ends. Not thread-safe.

    Args:
        log_dir: folder for the output of each process; None: only the last lines are kept.
        start_timeout_s: seconds within which each process must be ready.
        check: called at least every 0.1 s while waiting; an exception from it ends the wait.
        redis: URL of a running Redis; None: the coordinator starts one.
        coordinator_options: further arguments of `edl coordinator serve`.
    """

    def __init__(
        self,
        *,
        log_dir: Path | None = None,
        start_timeout_s: float = 60.0,
        check: Callable[[], None] = lambda: None,
        redis: str | None = None,
        coordinator_options: Sequence[str] = (),
    ) -> None:
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._check = check
        self._coordinator_options = tuple(coordinator_options)
        self._redis = redis
        self._managers: dict[str, Process] = {}
        self._manager_addresses: dict[str, str] = {}
        self._url = redis or ""
        self._teachers: dict[str, Process] = {}
        self._addresses: dict[str, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Redis URL of the mesh, for teachers and readers; empty before `start` if it has none."""
        return self._url

    @property
    def coordinator(self) -> Process:
        """Process of the first manager. Raises UsageError before `start`."""
        if not self._managers:
            raise UsageError("this mesh has not been started")
        return next(iter(self._managers.values()))

    @property
    def managers(self) -> dict[str, Process]:
        """All manager processes ever started, by name; some may have ended."""
        return dict(self._managers)

    @property
    def addresses(self) -> dict[str, str]:
        """Address `host:port` of each manager, by name."""
        return dict(self._manager_addresses)

    @property
    def teachers(self) -> dict[str, Process]:
        """All teacher processes ever started, by teacher_id; some may have ended."""
        return dict(self._teachers)

    def start(self) -> None:
        """Start the coordinator and wait until it is ready. Raises ProcessFailed."""
        own = () if self._redis else ("--redis-port", "0")
        options = (*own, *self._coordinator_options)
        ready = self._start_manager("coordinator", self._redis or "", *options)
        self._url = self._redis or ready[0]

    def add_manager(self, name: str, *options: str, redis: str | None = None) -> str:
        """Start another service manager over the same Redis; return its address.

        Args:
            name: name of the manager in this object.
            options: further arguments of `edl coordinator serve`.
            redis: Redis URL for this manager; None: `url`.

        Raises:
            UsageError: there is, or was, a manager of this name.
            ProcessFailed: the manager did not become ready.
        """
        if name in self._managers:
            raise UsageError(f"this mesh has a manager {name!r} already")
        words = (*self._coordinator_options, *options)
        return self._start_manager(name, redis or self._url, *words)[1]

    def _start_manager(self, name: str, redis: str, *options: str) -> tuple[str, ...]:
        words = ("coordinator", "serve", *options)
        command = python_command(name, "edl", *words, env={"EDL_REDIS": redis}, log=self._log(name))
        manager = self._managers[name] = start(command)
        ready = self._wait_for(manager, COORDINATOR_READY)
        self._manager_addresses[name] = ready[1]
        return ready

    def start_teacher(self, teacher_id: str, spec: TeacherSpec) -> Process:
        """Start a teacher without waiting until it is ready; `wait_ready` does that.

        Raises:
            UsageError: there is, or was, a teacher of this name.
            ProcessFailed: the process cannot be started.
        """
        if teacher_id in self._teachers:
            raise UsageError(f"this mesh has a teacher {teacher_id!r} already")
        process = start(spec.command(teacher_id, self._url, log=self._log(teacher_id)))
        self._teachers[teacher_id] = process
        return process

    def wait_ready(self, teacher_id: str) -> str:
        """Wait until a teacher is ready; return its address. Raises ProcessFailed."""
        ready = self._wait_for(self._teachers[teacher_id], TEACHER_READY)
        self._addresses[teacher_id] = ready[2]
        return ready[2]

    def add_teacher(self, teacher_id: str, spec: TeacherSpec) -> str:
        """Start a teacher and wait until it is ready; return its address."""
        self.start_teacher(teacher_id, spec)
        return self.wait_ready(teacher_id)

    def suspend(self, teacher_id: str) -> None:
        """Send SIGSTOP: the sockets stay open, but heartbeats and answers stop."""
        self._teachers[teacher_id].send_signal(signal.SIGSTOP)

    def resume(self, teacher_id: str) -> None:
        """Send SIGCONT, after `suspend`."""
        self._teachers[teacher_id].send_signal(signal.SIGCONT)

    def kill(self, teacher_id: str) -> None:
        """Send SIGKILL; do not wait until the teacher has ended."""
        self._teachers[teacher_id].kill()

    def drain(self, teacher_id: str) -> None:
        """Send SIGTERM: the teacher finishes its requests, deregisters and ends."""
        self._teachers[teacher_id].send_signal(signal.SIGTERM)

    def stop(self, grace_s: float = 5.0) -> None:
        """End teachers, then managers. Idempotent.

        Args:
            grace_s: seconds for all teachers together, then for each manager, before SIGKILL.
        """
        try:
            stop_all([p for p in self._teachers.values() if p.alive], grace_s)
        finally:
            # The first manager may have started Redis, so it ends last.
            for manager in reversed(self._managers.values()):
                if manager.alive:
                    manager.stop(grace_s)

    def _log(self, name: str) -> Path | None:
        return None if self._log_dir is None else self._log_dir / f"{name}.log"

    def _wait_for(self, process: Process, pattern: str) -> tuple[str, ...]:
        """Wait for a line of output; return the groups of its match."""
        deadline = time.monotonic() + self._start_timeout_s
        while True:
            self._check()
            left_s = deadline - time.monotonic()
            try:
                return process.expect(pattern, min(SLICE_S, max(0.0, left_s))).groups()
            except ProcessFailed:
                if not process.alive or left_s <= 0:
                    raise
