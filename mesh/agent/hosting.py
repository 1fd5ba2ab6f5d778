"""The teacher of a machine: carries out what is wanted of it, one step after another, in a thread.

What is wanted may change at any moment. A model on its way, or one that loads, is given up then; a
teacher that serves finishes what it has, and only when it is gone does the next one begin.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from ...coordinator.machines import Deployment
from ...coordinator.machines.options import arguments
from ...coordinator.machines.records import State, attempt_of
from ...errors import EdlError, ProcessFailed, UsageError
from ...scheduler.backoff import RetryPause
from ...supervise import Process, describe_exit, python_command, start
from ..local import TEACHER_READY
from .fetching import Cache
from .settings import AgentSettings

log = logging.getLogger(__name__)

#: How soon it is seen that something else is wanted while a model loads.
_SLICE_S: Final = 0.1
#: What cannot work is tried again after half a minute to ten minutes, what may, sooner.
_WRONG_S: Final = (30.0, 600.0)
_FAILED_S: Final = (5.0, 300.0)
#: Beyond its grace period a teacher gets this long to end.
_LEAVE_S: Final = 5.0
#: A teacher that stayed so long has started well: what failed before is forgotten.
_HEALTHY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class HostView:
    """How the teacher of a machine does.

    Attributes:
        state: one of `records.STATES`, but "yielded".
        service: whose it is; where it failed, whose it was to be.
        content_id: of it.
        why: what it waits for, or what went wrong, in words.
        blocked: `attempt_of` those that are not to be tried yet.
        troubles: what went wrong with each of these, in words.
    """

    state: State = "idle"
    service: str = ""
    content_id: str = ""
    why: str = ""
    blocked: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()


class Host:
    """Has the teacher that is wanted, or none.

    Args:
        settings: of the agent.
        cache: where models lie.
        on_change: called when `view` has changed, in any thread.
        rng: spreads attempts.
    """

    def __init__(
        self,
        settings: AgentSettings,
        cache: Cache,
        on_change: Callable[[], None] = lambda: None,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._cache = cache
        self._on_change = on_change
        self._rng = rng or random.Random()
        self._changed = threading.Condition()
        self._wanted: Deployment | None = None
        self._stopping = False
        self._view = HostView()
        self._rests: dict[str, RetryPause] = {}  # by attempt; made anew with each change
        self._troubles: dict[str, str] = {}
        self._has = _Has()
        self._thread = threading.Thread(target=self._run, name="edl-host", daemon=True)

    @property
    def view(self) -> HostView:
        """How it is, as of now."""
        now, rests = time.monotonic(), self._rests
        blocked = tuple(name for name, rest in rests.items() if now < rest.until_s)
        troubles = tuple(self._troubles.get(name, "") for name in blocked)
        return replace(self._view, blocked=blocked, troubles=troubles)

    @property
    def empty(self) -> bool:
        """Whether nothing of a teacher runs here."""
        return self._has.process is None and self._view.state in ("idle", "failing")

    def start(self) -> None:
        """Begin; once only."""
        self._thread.start()

    def want(self, deployment: Deployment | None) -> None:
        """Have a teacher of this from now on, or none. Returns at once."""
        with self._changed:
            if deployment != self._wanted:
                self._wanted = deployment
                self._changed.notify_all()

    def stop(self) -> None:
        """Let the teacher finish what it has, within its grace period, and end."""
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
                if self._is_over(wanted):
                    self._end()
                elif wanted is not None:
                    self._begin(wanted)
            except InterruptedError:  # something else is wanted: look what
                self._end()
            except EdlError as error:
                self._end()
                self._fail(wanted, error)
            except Exception as error:
                log.exception("a step of the host failed by our own mistake")
                self._end()
                self._fail(wanted, ProcessFailed(f"{type(error).__name__}: {error}"))
            if wanted is None and self._stopping:
                return

    def _next(self) -> Deployment | None:
        """What is wanted, as soon as something has to be done for it."""
        with self._changed:
            while not self._due():
                self._changed.wait(self._sleep_s())
            return self._wanted

    def _is_over(self, wanted: Deployment | None) -> bool:
        """Whether there is a teacher that has ended, or that is not wanted."""
        has = self._has
        if has.process is None:
            return False
        return not has.process.alive or not _same(has.deployment, wanted)

    def _due(self) -> bool:
        has, wanted = self._has, self._wanted
        if has.process is not None:
            if self._is_over(wanted):
                return True
            if has.deployment is not None and time.monotonic() - has.since_s > _HEALTHY_S:
                name = attempt_of(has.deployment)
                self._rests = {n: rest for n, rest in self._rests.items() if n != name}
            return False
        if wanted is None:
            if self._view.state == "failing" and not self.view.blocked:
                self._show("idle", None)
            return self._stopping
        return self._rests.get(attempt_of(wanted), RetryPause()).until_s <= time.monotonic()

    def _sleep_s(self) -> float | None:
        """How long nothing can become due by itself; a teacher's end is looked for."""
        if self._has.process is not None:
            return _SLICE_S
        now = time.monotonic()
        return min(
            (rest.until_s - now for rest in self._rests.values() if now < rest.until_s),
            default=None,
        )

    def _check(self, deployment: Deployment) -> None:
        """Raise InterruptedError when something else is wanted meanwhile."""
        if self._stopping or not _same(deployment, self._wanted):
            raise InterruptedError

    def _begin(self, deployment: Deployment) -> None:
        self._show("fetching", deployment)

        def check() -> None:
            self._check(deployment)

        def tell(text: str) -> None:
            log.info("%s", text)
            self._show("fetching", deployment, text)

        model = self._cache.fetch(deployment, check, tell)
        check()
        self._show("starting", deployment)
        self._has = _Has(deployment, self._spawn(deployment, model), time.monotonic())
        self._await_ready(deployment, self._has.process)
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
            *own.teacher.arguments(),  # last: of an option that stands there twice, this counts
            # Not on the command line, which everybody on this machine may read.
            env={"EDL_COORDINATOR": own.coordinator},
            log=None if log_dir is None else log_dir / f"{deployment.service}.log",
        )
        return start(command)

    def _await_ready(self, deployment: Deployment, process: Process | None) -> None:
        assert process is not None
        until_s = time.monotonic() + self._settings.teacher.start_s
        while True:
            self._check(deployment)
            left_s = until_s - time.monotonic()
            try:
                process.expect(TEACHER_READY, min(_SLICE_S, max(0.0, left_s)))
                return
            except ProcessFailed:
                if not process.alive:
                    raise ProcessFailed(_ending(process)) from None
                if left_s <= 0:
                    raise

    def _end(self) -> None:
        """Let the teacher finish what it has; at once where it has ended already."""
        has = self._has
        if has.process is None or has.deployment is None:
            return
        if not has.process.alive:
            self._has = _Has()
            self._ended(has)
            return
        self._show("draining", has.deployment)
        has.process.send_signal(signal.SIGTERM)
        if has.process.wait(self._settings.teacher.grace_s + _LEAVE_S) is None:
            log.warning("the teacher of %s did not end: killed", has.deployment.service)
            has.process.kill()
            has.process.wait(_LEAVE_S)
        self._has = _Has()
        self._show("idle", None)

    def _ended(self, has: _Has) -> None:
        """A teacher ended though nobody here wished it."""
        assert has.deployment is not None
        assert has.process is not None
        if self._view.state == "serving":
            self._fail(has.deployment, ProcessFailed(_ending(has.process)))

    def _fail(self, deployment: Deployment | None, error: EdlError) -> None:
        if deployment is None:
            return
        base_s, cap_s = _WRONG_S if isinstance(error, UsageError) else _FAILED_S
        name, now = attempt_of(deployment), time.monotonic()
        rest = self._rests.get(name, RetryPause()).failed(now, self._rng, base_s, cap_s, sure=0.5)
        self._rests = {**self._rests, name: rest}
        self._troubles[name] = str(error)
        log.error("%s; it is tried again in %.0f s at the earliest", error, rest.until_s - now)
        self._show("failing", deployment, str(error))

    def _show(self, state: State, deployment: Deployment | None, why: str = "") -> None:
        service = "" if deployment is None else deployment.service
        content = "" if deployment is None else deployment.content_id
        self._view = HostView(state, service, content, why)
        self._on_change()


@dataclass(frozen=True, slots=True)
class _Has:
    """The teacher that is there."""

    deployment: Deployment | None = None
    process: Process | None = None
    since_s: float = field(default=0.0)


def _same(one: Deployment | None, other: Deployment | None) -> bool:
    """Whether a teacher of the one is a teacher of the other."""
    if one is None or other is None:
        return one is other
    return (one.service, one.content_id) == (other.service, other.content_id)


def _ending(process: Process) -> str:
    said = next((line.strip() for line in reversed(process.tail()) if line.strip()), "")
    last = f"; its last line: {said}" if said else ""
    return f"{process.name} {describe_exit(process.returncode or 0)}{last}"
