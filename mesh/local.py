"""A mesh on this machine: processes of a coordinator and of teachers."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from ..runtime.errors import UsageError
from ..runtime.supervise import Command, Process, python_command, start, stop_all

COORDINATOR_READY = r"coordinator ready: (\S+) manager (\S+)"
TEACHER_READY = r"teacher ready: (\S+) (\S+) on (\S+)"
#: Seconds within which a teacher started by an agent must be ready.
TEACHER_START_S: Final = 900.0


@dataclass(frozen=True, slots=True)
class TeacherSpec:
    """Settings of all teachers of a service.

    Attributes:
        service: name of the service.
        model: path of an exported model, or `module:function`.
        micro_batch: maximum number of samples in one run of the model.
        ttl_s: seconds without a heartbeat after which a teacher counts as dead.
        grace_s: maximum duration of a drain, in seconds.
        options: further arguments of `edl teacher serve`.
    """

    service: str
    model: str
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
            more: further fields of `Command`.
        """
        flags = {
            "--model": self.model,
            "--service": self.service,
            "--teacher-id": teacher_id,
            "--threads": 1,
            "--micro-batch": self.micro_batch,
            "--ttl": self.ttl_s,
            "--grace": self.grace_s,
        }
        pairs = [str(word) for pair in flags.items() for word in pair]
        words = ("teacher", "serve", *pairs, *self.options)
        variables = {"EDL_COORDINATOR": coordinator, **(env or {})}
        return python_command(teacher_id, "edl", *words, env=variables, **more)


@dataclass(kw_only=True, eq=False, repr=False)  # a repr would show the password in a Redis URL
class LocalMesh:
    """Starts and ends teachers and a coordinator, which runs a Redis unless `redis` is given.

    A context manager. All processes end if this process ends. They read no EDL_* variables of this
    process, except EDL_DEBUG and those of logs. Not thread-safe.

    Args:
        log_dir: folder for the output of each process; None: only the last lines are kept.
        start_timeout_s: seconds to wait until a process is ready.
        check: called about every 0.1 s while a process starts; its exception ends the wait.
        redis: URL of a running Redis; None: the coordinator starts one.
        coordinator_options: further arguments of `edl coordinator serve`.
    """

    log_dir: Path | None = None
    start_timeout_s: float = 60.0
    check: Callable[[], None] = lambda: None
    redis: str | None = None
    coordinator_options: Sequence[str] = ()
    _url: str = field(default="", init=False)
    _coordinator: Process | None = field(default=None, init=False)
    _teachers: dict[str, Process] = field(default_factory=dict, init=False)

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
        """Redis URL for teachers and readers; empty before `start` if `redis` is None."""
        return self.redis or self._url

    @property
    def coordinator(self) -> Process:
        """Process of the coordinator. Raises UsageError before `start`."""
        if self._coordinator is None:
            raise UsageError("this mesh has not been started")
        return self._coordinator

    @property
    def teachers(self) -> dict[str, Process]:
        """All teacher processes ever started, by teacher_id; some may have ended."""
        return dict(self._teachers)

    def start(self) -> None:
        """Start the coordinator and wait until it is ready. Raises ProcessFailed."""
        redis_options = () if self.redis else ("--redis-port", "0")
        command = python_command(
            "coordinator",
            "edl",
            *("coordinator", "serve", *redis_options, *self.coordinator_options),
            env={"EDL_REDIS": self.redis or ""},
            isolated=True,
            log=self._log_file("coordinator"),
        )
        self._coordinator = start(command)
        ready = self._coordinator.expect(COORDINATOR_READY, self.start_timeout_s, self.check)
        self._url = ready[1]

    def start_teacher(self, teacher_id: str, spec: TeacherSpec) -> Process:
        """Start a teacher without waiting until it is ready; `wait_ready` does that.

        Raises:
            UsageError: there is, or was, a teacher of this name.
            ProcessFailed: the process cannot be started.
        """
        if teacher_id in self._teachers:
            raise UsageError(f"this mesh has a teacher {teacher_id!r} already")
        log = self._log_file(teacher_id)
        process = start(spec.command(teacher_id, self.url, log=log, isolated=True))
        self._teachers[teacher_id] = process
        return process

    def wait_ready(self, teacher_id: str) -> str:
        """Wait until a teacher is ready; return its address. Raises ProcessFailed."""
        process = self._teachers[teacher_id]
        return process.expect(TEACHER_READY, self.start_timeout_s, self.check)[3]

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
        """End teachers, then the coordinator. Idempotent.

        Args:
            grace_s: seconds for all teachers together, then for the coordinator, before SIGKILL.
        """
        try:
            stop_all([p for p in self._teachers.values() if p.alive], grace_s)
        finally:
            if self._coordinator is not None and self._coordinator.alive:
                self._coordinator.stop(grace_s)

    def _log_file(self, name: str) -> Path | None:
        return None if self.log_dir is None else self.log_dir / f"{name}.log"
