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
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from ...coordinator.machines import Deployment, Report
from ...coordinator.machines.schema import State, arguments, retry_key
from ...runtime.errors import EdlError, ProcessFailed, UsageError
from ...runtime.supervise import Process, describe_exit, python_command, start
from ...scheduler.backoff import RetryPause
from ..local import TEACHER_READY, TEACHER_START_S
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
#: Seconds that a teacher has to serve until earlier failures of its deployment are forgotten.
_HEALTHY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _RunningTeacher:
    """The teacher that runs, or has just ended.

    Attributes:
        deployment: its deployment.
        process: its process.
        ready_s: monotonic time since which it serves; None: it is not ready yet.
    """

    deployment: Deployment
    process: Process
    ready_s: float | None = None


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
        self._status = Report()
        # Pause and error of each failed deployment, by `retry_key`; replaced, never changed.
        self._failures: dict[str, tuple[RetryPause, str]] = {}
        self._teacher: _RunningTeacher | None = None
        self._thread = threading.Thread(target=self._run, name="edl-host", daemon=True)

    @property
    def status(self) -> Report:
        """Current state: the fields of a report about the teacher and failed deployments."""
        now = time.monotonic()
        failures = self._failures.items()
        troubles = {name: error for name, (pause, error) in failures if now < pause.until_s}
        return replace(self._status, blocked=tuple(troubles), troubles=tuple(troubles.values()))

    @property
    def is_empty(self) -> bool:
        """Whether no teacher runs or starts here."""
        return self._teacher is None and self._status.state in ("idle", "failing")

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
        if teacher is None:
            return False
        return not teacher.process.alive or not _same(teacher.deployment, wanted)

    def _due(self) -> bool:
        teacher, wanted = self._teacher, self._wanted
        if teacher is not None:
            if teacher.ready_s is not None and time.monotonic() - teacher.ready_s > _HEALTHY_S:
                healthy = retry_key(teacher.deployment)
                self._failures = {n: one for n, one in self._failures.items() if n != healthy}
            return self._has_to_end(wanted)
        if wanted is None:
            if self._status.state == "failing" and not self.status.blocked:
                self._show("idle", None)
            return self._stopping
        return self._pause(wanted).until_s <= time.monotonic()

    def _pause(self, deployment: Deployment) -> RetryPause:
        pause, _ = self._failures.get(retry_key(deployment), (RetryPause(), ""))
        return pause

    def _sleep_s(self) -> float | None:
        """Return the seconds until a retry is due; None: there is none."""
        if self._teacher is not None:
            return _POLL_S
        now = time.monotonic()
        left_s = [pause.until_s - now for pause, _ in self._failures.values()]
        return min((one for one in left_s if one > 0), default=None)

    def _check(self, deployment: Deployment) -> None:
        """Raise InterruptedError if this deployment is no longer wanted."""
        if self._stopping or not _same(deployment, self._wanted):
            raise InterruptedError

    def _start(self, deployment: Deployment) -> None:
        self._show("fetching", deployment)
        check = partial(self._check, deployment)

        def log_progress(text: str) -> None:
            log.info("%s", text)
            self._show("fetching", deployment, text)

        model = self._cache.fetch(deployment, check, log_progress)
        check()
        self._show("starting", deployment)
        process = self._spawn(deployment, model)
        self._teacher = _RunningTeacher(deployment, process)
        self._await_ready(process, check)
        self._teacher = _RunningTeacher(deployment, process, time.monotonic())
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
            *own.teacher_options,
            f"--grace={own.grace_s}",
            f"--ttl={own.ttl_s}",
            # Variables, as all users of this machine can read command lines.
            env={"EDL_COORDINATOR": own.coordinator, "EDL_BEAT_RELAY": str(own.beat_relay)},
            log=None if log_dir is None else log_dir / f"{deployment.service}.log",
        )
        return start(command)

    def _await_ready(self, process: Process, check: Callable[[], None]) -> None:
        try:
            process.expect(TEACHER_READY, TEACHER_START_S, check)
        except ProcessFailed:
            if process.alive:
                raise
            raise ProcessFailed(_describe_end(process)) from None

    def _end(self) -> None:
        """Drain the teacher, if it has not ended already."""
        teacher = self._teacher
        if teacher is None:
            return
        if not teacher.process.alive:
            self._teacher = None
            self._ended(teacher)
            return
        self._show("draining", teacher.deployment)
        teacher.process.terminate()
        if teacher.process.wait(self._settings.grace_s + _LEAVE_S) is None:
            log.warning("the teacher of %s did not end: killed", teacher.deployment.service)
            teacher.process.kill()
            teacher.process.wait(_LEAVE_S)
        self._teacher = None
        self._show("idle", None)

    def _ended(self, teacher: _RunningTeacher) -> None:
        """Record the end of a teacher that the host did not drain."""
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
        now = time.monotonic()
        pause = self._pause(deployment).failed(now, self._rng, base_s, cap_s, sure=0.5)
        self._failures = {**self._failures, retry_key(deployment): (pause, str(error))}
        log.error("%s; next attempt in %.0f s or later", error, pause.until_s - now)
        self._show("failing", deployment, str(error))

    def _show(self, state: State, deployment: Deployment | None, why: str = "") -> None:
        service = "" if deployment is None else deployment.service
        content = "" if deployment is None else deployment.content_id
        self._status = Report(state=state, service=service, content_id=content, why=why)
        self._on_change()


def _same(one: Deployment | None, other: Deployment | None) -> bool:
    """Whether both deployments need the same teacher."""
    if one is None or other is None:
        return one is other
    return (one.service, one.content_id) == (other.service, other.content_id)


def _describe_end(process: Process) -> str:
    ending = f"; its last line: {process.last_line}" if process.last_line else ""
    return f"{process.name} {describe_exit(process.returncode or 0)}{ending}"
