"""Starts, watches and ends the teacher process of a machine. One thread does this, step by step.

The wanted deployment may change at any time. Then a download or the start of a teacher is aborted;
a serving teacher is drained, and the next teacher starts when the drained one has ended. A serving
teacher is kept if only its options or the location of its model have changed.
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
#: Base and limit, in seconds, of the growing pause before a retry. A UsageError of the agent or its
#: teacher has longer pauses, because only a user can fix it.
_USAGE_ERROR_PAUSE_S: Final = (30.0, 600.0)
_FAILURE_PAUSE_S: Final = (5.0, 300.0)
#: Seconds after the grace period before a teacher is killed, and the longest wait for a killed one.
_EXIT_MARGIN_S: Final = 5.0
#: Seconds of serving after which earlier failures of a teacher's deployment are forgotten.
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
        on_change: called in any thread when the teacher's state in `status` has changed.
        on_drained: called in the host's thread when a serving teacher has ended with code 0 and
            this host had not drained it: after `edl drain` or a SIGTERM.
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
        # Pause and error of each failed deployment, by `retry_key`. Other threads read this
        # dictionary, so it is replaced, never changed.
        self._failures: dict[str, tuple[RetryPause, str]] = {}
        self._teacher: _RunningTeacher | None = None
        self._thread = threading.Thread(target=self._run, name="edl-host", daemon=True)

    @property
    def status(self) -> Report:
        """Report with the fields about the teacher and failed deployments. Thread-safe."""
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
            wanted = self._wait_for_step()
            try:
                if self._must_end(wanted):
                    self._end_teacher()
                elif wanted is not None:
                    self._start_teacher(wanted)
            except InterruptedError:  # another or a changed deployment is wanted, or none
                self._end_teacher()
                # `_end_teacher` sets no status if no teacher runs yet.
                self._set_status("idle", None)
            except EdlError as error:
                self._end_teacher()
                self._record_failure(wanted, error)
            except Exception as error:
                log.exception("a bug: a step of the teacher host failed")
                self._end_teacher()
                self._record_failure(wanted, ProcessFailed(f"{type(error).__name__}: {error}"))
            if wanted is None and self._stopping:
                return

    def _wait_for_step(self) -> Deployment | None:
        """Wait until a step is due; return the wanted deployment."""
        with self._changed:
            while not self._step_due():
                self._changed.wait(self._wait_s())
            return self._wanted

    def _must_end(self, wanted: Deployment | None) -> bool:
        """Whether the teacher has ended or is no longer wanted."""
        teacher = self._teacher
        if teacher is None:
            return False
        return not teacher.process.alive or not _same_teacher(teacher.deployment, wanted)

    def _step_due(self) -> bool:
        """Whether the thread has to act; first forget failures that no longer count."""
        teacher, wanted = self._teacher, self._wanted
        if teacher is not None:
            if teacher.ready_s is not None and time.monotonic() - teacher.ready_s > _HEALTHY_S:
                healthy = retry_key(teacher.deployment)
                self._failures = {k: v for k, v in self._failures.items() if k != healthy}
            return self._must_end(wanted)
        if wanted is None:
            if self._status.state == "failing" and not self.status.blocked:
                self._set_status("idle", None)
            return self._stopping
        return self._retry_pause(wanted).until_s <= time.monotonic()

    def _retry_pause(self, deployment: Deployment) -> RetryPause:
        pause, _ = self._failures.get(retry_key(deployment), (RetryPause(), ""))
        return pause

    def _wait_s(self) -> float | None:
        """Return the seconds until the next check or retry is due; None: neither is."""
        if self._teacher is not None:
            return _POLL_S
        now = time.monotonic()
        left_s = [pause.until_s - now for pause, _ in self._failures.values()]
        return min((seconds for seconds in left_s if seconds > 0), default=None)

    def _raise_if_unwanted(self, deployment: Deployment) -> None:
        """Raise InterruptedError if this deployment is no longer wanted, or was changed."""
        wanted = self._wanted
        if self._stopping or wanted is None or _start_inputs(wanted) != _start_inputs(deployment):
            raise InterruptedError

    def _start_teacher(self, deployment: Deployment) -> None:
        self._set_status("fetching", deployment)
        raise_if_cancelled = partial(self._raise_if_unwanted, deployment)

        def log_progress(text: str) -> None:
            log.info("%s", text)
            self._set_status("fetching", deployment, text)

        model = self._cache.fetch(deployment, raise_if_cancelled, log_progress)
        raise_if_cancelled()
        self._set_status("starting", deployment)
        process = self._spawn(deployment, model)
        self._teacher = _RunningTeacher(deployment, process)
        self._await_ready(process, raise_if_cancelled)
        self._teacher = _RunningTeacher(deployment, process, time.monotonic())
        self._set_status("serving", deployment)

    def _spawn(self, deployment: Deployment, model: Path) -> Process:
        settings = self._settings
        log_dir = settings.log_dir
        command = python_command(
            f"teacher of {deployment.service}",
            "edl",
            "teacher",
            "serve",
            f"--model={model}",
            f"--service={deployment.service}",
            f"--teacher-id={settings.machine_id}",
            f"--devices={','.join(settings.devices)}",
            *arguments(deployment.options),
            # Last, as these override options of the deployment.
            *settings.teacher_options,
            f"--grace={settings.grace_s}",
            f"--ttl={settings.ttl_s}",
            # Variables, as all users of this machine can read command lines.
            env={
                "EDL_COORDINATOR": settings.coordinator,
                "EDL_BEAT_RELAY": str(settings.beat_relay),
            },
            log=None if log_dir is None else log_dir / f"{deployment.service}.log",
        )
        return start(command)

    def _await_ready(self, process: Process, raise_if_cancelled: Callable[[], None]) -> None:
        try:
            process.expect(TEACHER_READY, TEACHER_START_S, raise_if_cancelled)
        except ProcessFailed:
            if process.alive:
                raise
            refused = process.returncode == UsageError.exit_code
            raise (UsageError if refused else ProcessFailed)(_describe_end(process)) from None

    def _end_teacher(self) -> None:
        """Drain the teacher. If it has ended already, handle its exit."""
        teacher = self._teacher
        if teacher is None:
            return
        if not teacher.process.alive:
            self._teacher = None
            self._handle_exit(teacher)
            return
        self._set_status("draining", teacher.deployment)
        teacher.process.terminate()
        if teacher.process.wait(self._settings.grace_s + _EXIT_MARGIN_S) is None:
            log.warning("the teacher of %s did not end: killed", teacher.deployment.service)
            teacher.process.kill()
            teacher.process.wait(_EXIT_MARGIN_S)
        self._teacher = None
        self._set_status("idle", None)

    def _handle_exit(self, teacher: _RunningTeacher) -> None:
        """Handle the end of a teacher that this host did not drain."""
        if self._status.state == "serving" and teacher.process.returncode == 0:
            log.info("the teacher of %s was drained", teacher.deployment.service)
            self._on_drained()
            with self._changed:
                self._wanted = None
            self._set_status("idle", None)
        elif self._status.state == "serving":
            self._record_failure(teacher.deployment, ProcessFailed(_describe_end(teacher.process)))

    def _record_failure(self, deployment: Deployment | None, error: EdlError) -> None:
        if deployment is None:
            return
        base_s, cap_s = _USAGE_ERROR_PAUSE_S if isinstance(error, UsageError) else _FAILURE_PAUSE_S
        now = time.monotonic()
        pause = self._retry_pause(deployment).failed(now, self._rng, base_s, cap_s, min_share=0.5)
        self._failures = {**self._failures, retry_key(deployment): (pause, str(error))}
        log.error("%s; next attempt in %.0f s or later", error, pause.until_s - now)
        self._set_status("failing", deployment, str(error))

    def _set_status(self, state: State, deployment: Deployment | None, why: str = "") -> None:
        service = "" if deployment is None else deployment.service
        content = "" if deployment is None else deployment.content_id
        self._status = Report(state=state, service=service, content_id=content, why=why)
        self._on_change()


def _same_teacher(one: Deployment | None, other: Deployment | None) -> bool:
    """Whether the same teacher serves both deployments; None: no teacher."""
    if one is None or other is None:
        return one is other
    return (one.service, one.content_id) == (other.service, other.content_id)


def _describe_end(process: Process) -> str:
    ending = f"; its last line: {process.last_line}" if process.last_line else ""
    return f"{process.name} {describe_exit(process.returncode or 0)}{ending}"


def _start_inputs(deployment: Deployment) -> tuple[object, ...]:
    """Return what a start of a teacher depends on."""
    return deployment.service, deployment.content_id, deployment.model_url, deployment.options
