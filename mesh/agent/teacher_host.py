"""Runs the teacher of a machine in a thread, one step after the other.

The wanted deployment may change at any time. Then a download or the start of a teacher is aborted;
a serving teacher is drained, and the next one starts when it has ended.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ...coordinator.machines import Deployment
from ...coordinator.machines.schema import State, arguments, retry_key
from ...runtime.errors import EdlError, ProcessFailed, UsageError
from ...runtime.supervise import Process, describe_exit, python_command, start
from ...scheduler.backoff import RetryPause
from ..local import TEACHER_READY
from .model_cache import ModelCache
from .settings import AgentSettings

log = logging.getLogger(__name__)

#: Seconds between checks whether the teacher has ended.
_POLL_S: Final = 0.1
#: Base and limit in seconds of the growing pause before a retry: after a UsageError, and after
#: other failures.
_WRONG_S: Final = (30.0, 600.0)
_FAILED_S: Final = (5.0, 300.0)
#: Seconds added to the grace period of a teacher.
_LEAVE_S: Final = 5.0
#: Seconds that a teacher has to run until earlier failures of its deployment are forgotten.
_HEALTHY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HostStatus:
    """State of the teacher of a machine.

    Attributes:
        state: one of `machines.schema.STATES`, except "yielded".
        service: service of the teacher that runs, starts or has failed.
        content_id: content_id of that teacher.
        why: progress of the download, or the error.
        blocked: `retry_key` of each deployment whose pause before a retry is not over.
        errors: error of each of these deployments.
    """

    state: State = "idle"
    service: str = ""
    content_id: str = ""
    why: str = ""
    blocked: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()


class TeacherHost:
    """Runs the wanted teacher, or none.

    Args:
        settings: settings of the agent.
        cache: cache of models.
        on_change: called in any thread when `status` has changed.
        on_drained: called in the host's thread when an operator has drained the teacher.
    """

    def __init__(
        self,
        settings: AgentSettings,
        cache: ModelCache,
        on_change: Callable[[], None] = lambda: None,
        on_drained: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._on_change = on_change
        self._on_drained = on_drained
        self._rng = random.Random()
        self._changed = threading.Condition()
        self._wanted: Deployment | None = None
        self._stopping = False
        self._status = HostStatus()
        self._pauses: dict[str, RetryPause] = {}  # by attempt; replaced, never changed
        self._errors: dict[str, str] = {}
        self._teacher = _RunningTeacher()
        self._thread = threading.Thread(target=self._run, name="edl-host", daemon=True)

    @property
    def status(self) -> HostStatus:
        """Current state."""
        now, pauses = time.monotonic(), self._pauses
        blocked = tuple(name for name, pause in pauses.items() if now < pause.until_s)
        errors = tuple(self._errors.get(name, "") for name in blocked)
        return replace(self._status, blocked=blocked, errors=errors)

    @property
    def is_empty(self) -> bool:
        """Whether no teacher runs or starts here."""
        return self._teacher.process is None and self._status.state in ("idle", "failing")

    def start(self) -> None:
        """Start the thread; call it once."""
        self._thread.start()

    def set_wanted(self, deployment: Deployment | None) -> None:
        """Set the deployment to serve and return at once; None: no teacher."""
        with self._changed:
            if deployment != self._wanted:
                self._wanted = deployment
                self._changed.notify_all()

    def stop(self) -> None:
        """Drain the teacher within its grace period, and end the thread."""
        with self._changed:
            self._wanted, self._stopping = None, True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    # --- the thread

    def _run(self) -> None:
        while True:
            wanted = self._next()
            try:
                if self._has_to_end(wanted):
                    self._end()
                elif wanted is not None:
                    self._start(wanted)
            except InterruptedError:  # another deployment is wanted, or none
                self._end()
                self._show("idle", None)  # `_end` shows nothing if no teacher runs yet
            except EdlError as error:
                self._end()
                self._fail(wanted, error)
            except Exception as error:
                log.exception("a bug: a step of the teacher host failed")
                self._end()
                self._fail(wanted, ProcessFailed(f"{type(error).__name__}: {error}"))
            if wanted is None and self._stopping:
                return

    def _next(self) -> Deployment | None:
        """Wait until there is something to do; return the wanted deployment."""
        with self._changed:
            while not self._due():
                self._changed.wait(self._sleep_s())
            return self._wanted

    def _has_to_end(self, wanted: Deployment | None) -> bool:
        """Whether the teacher has ended or is no longer wanted."""
        teacher = self._teacher
        if teacher.process is None:
            return False
        return not teacher.process.alive or not _same(teacher.deployment, wanted)

    def _due(self) -> bool:
        teacher, wanted = self._teacher, self._wanted
        if teacher.process is not None:
            if self._has_to_end(wanted):
                return True
            if teacher.deployment is not None and time.monotonic() - teacher.since_s > _HEALTHY_S:
                name = retry_key(teacher.deployment)
                self._pauses = {n: pause for n, pause in self._pauses.items() if n != name}
            return False
        if wanted is None:
            if self._status.state == "failing" and not self.status.blocked:
                self._show("idle", None)
            return self._stopping
        return self._pauses.get(retry_key(wanted), RetryPause()).until_s <= time.monotonic()

    def _sleep_s(self) -> float | None:
        """Return the seconds until a retry is due; None: there is none."""
        if self._teacher.process is not None:
            return _POLL_S
        now = time.monotonic()
        return min(
            (pause.until_s - now for pause in self._pauses.values() if now < pause.until_s),
            default=None,
        )

    def _check(self, deployment: Deployment) -> None:
        """Raise InterruptedError if this deployment is no longer wanted."""
        if self._stopping or not _same(deployment, self._wanted):
            raise InterruptedError

    def _start(self, deployment: Deployment) -> None:
        self._show("fetching", deployment)

        def check() -> None:
            self._check(deployment)

        def log_progress(text: str) -> None:
            log.info("%s", text)
            self._show("fetching", deployment, text)

        model = self._cache.fetch(deployment, check, log_progress)
        check()
        self._show("starting", deployment)
        self._teacher = _RunningTeacher(
            deployment, self._spawn(deployment, model), time.monotonic()
        )
        self._await_ready(self._teacher.process, check)
        self._show("serving", deployment)

    def _spawn(self, deployment: Deployment, model: Path) -> Process:
        own = self._settings
        log_dir = own.log_dir
        command = python_command(
            f"teacher of {deployment.service}",
            "edl",
            "teacher",
            "serve",
            f"--model={model}",
            f"--service={deployment.service}",
            f"--teacher-id={own.machine_id}",
            f"--devices={','.join(own.devices)}",
            *arguments(deployment.options),
            # Last, as these override options of the deployment.
            *own.teacher.arguments(),
            f"--ttl={own.ttl_s}",
            # Variables, as all users of this machine can read command lines.
            env={"EDL_COORDINATOR": own.coordinator, "EDL_BEAT_RELAY": str(own.beat_relay)},
            log=None if log_dir is None else log_dir / f"{deployment.service}.log",
        )
        return start(command)

    def _await_ready(self, process: Process | None, check: Callable[[], None]) -> None:
        assert process is not None
        try:
            process.expect(TEACHER_READY, self._settings.teacher.start_s, check)
        except ProcessFailed:
            if process.alive:
                raise
            raise ProcessFailed(_describe_end(process)) from None

    def _end(self) -> None:
        """Drain the teacher, if it has not ended already."""
        teacher = self._teacher
        if teacher.process is None or teacher.deployment is None:
            return
        if not teacher.process.alive:
            self._teacher = _RunningTeacher()
            self._ended(teacher)
            return
        self._show("draining", teacher.deployment)
        teacher.process.terminate()
        if teacher.process.wait(self._settings.teacher.grace_s + _LEAVE_S) is None:
            log.warning("the teacher of %s did not end: killed", teacher.deployment.service)
            teacher.process.kill()
            teacher.process.wait(_LEAVE_S)
        self._teacher = _RunningTeacher()
        self._show("idle", None)

    def _ended(self, teacher: _RunningTeacher) -> None:
        """Record the end of a teacher that the host did not drain."""
        assert teacher.deployment is not None
        assert teacher.process is not None
        if self._status.state == "serving" and teacher.process.returncode == 0:
            log.info("the teacher of %s was drained", teacher.deployment.service)
            self._on_drained()
            with self._changed:
                self._wanted = None
            self._show("idle", None)
        elif self._status.state == "serving":
            self._fail(teacher.deployment, ProcessFailed(_describe_end(teacher.process)))

    def _fail(self, deployment: Deployment | None, error: EdlError) -> None:
        if deployment is None:
            return
        base_s, cap_s = _WRONG_S if isinstance(error, UsageError) else _FAILED_S
        name, now = retry_key(deployment), time.monotonic()
        pause = self._pauses.get(name, RetryPause()).failed(now, self._rng, base_s, cap_s, sure=0.5)
        self._pauses = {**self._pauses, name: pause}
        self._errors[name] = str(error)
        log.error("%s; next attempt in %.0f s or later", error, pause.until_s - now)
        self._show("failing", deployment, str(error))

    def _show(self, state: State, deployment: Deployment | None, why: str = "") -> None:
        service = "" if deployment is None else deployment.service
        content = "" if deployment is None else deployment.content_id
        self._status = HostStatus(state, service, content, why)
        self._on_change()


@dataclass(frozen=True, slots=True)
class _RunningTeacher:
    """The teacher that runs, or none."""

    deployment: Deployment | None = None
    process: Process | None = None
    since_s: float = field(default=0.0)


def _same(one: Deployment | None, other: Deployment | None) -> bool:
    """Whether both deployments need the same teacher."""
    if one is None or other is None:
        return one is other
    return (one.service, one.content_id) == (other.service, other.content_id)


def _describe_end(process: Process) -> str:
    ending = f"; its last line: {process.last_line}" if process.last_line else ""
    return f"{process.name} {describe_exit(process.returncode or 0)}{ending}"
