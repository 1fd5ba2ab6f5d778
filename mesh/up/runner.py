"""Carries out what `startup.py` decides: starts, tells, kills, and looks again."""

from __future__ import annotations

import queue
import random
import re
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from ...coordinator.store.redis_url import masked
from ...errors import ProcessFailed
from ...lifecycle import Stop
from ...supervise import Identity, Process, identity_of, start, stop_all
from . import wording
from .members import COORDINATOR, Plan
from .startup import Mesh, decide, ended, mesh_of, ready, started, stop

#: Seconds between two looks at the processes; what they say is heard at once.
_LOOK_S: Final = 0.1
#: As shells have it.
_NOT_STARTED: Final = 127


class Display(Protocol):
    """Where a mesh is shown; `heard` is called by any thread, all else by one."""

    def say(self, text: str) -> None:
        """A line that stays."""

    def show(self, view: View) -> None:
        """How the mesh stands now."""

    def heard(self, name: str, line: str) -> None:
        """A process has printed this line."""


@dataclass(slots=True)
class Running:
    """What is known of one member's latest process.

    Attributes:
        process: None: it could not be started.
        identity: for the state file.
        started_s: by the monotonic clock.
        address: where it serves; empty: it does not.
        last: the last line that it printed.
    """

    process: Process | None
    identity: Identity | None
    started_s: float
    address: str = ""
    last: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """A mesh as it stands.

    Attributes:
        mesh: its parts.
        running: by name: those that were started.
        url: Redis URL; empty: not known yet.
        up_s: seconds until all of it was there; None: it never was.
        now_s: of the monotonic clock.
    """

    mesh: Mesh
    running: dict[str, Running]
    url: str
    up_s: float | None
    now_s: float


class Runner:
    """Keeps the mesh of a plan; used by one thread.

    Args:
        plan: what it consists of.
        logs: folder for the output of each process.
        display: is told what happens.
        changed: called with each view that is not as the one before, for what is written down;
            and again with the next one until it returns that it is.
        keep: the mesh stays when all students have ended.
        rng: spreads the pauses before what has died starts again.
    """

    def __init__(
        self,
        plan: Plan,
        logs: Path,
        display: Display,
        changed: Callable[[View], bool] = lambda view: True,
        *,
        keep: bool = False,
        rng: random.Random | None = None,
    ) -> None:
        self._plan, self._logs = plan, logs
        self._display, self._changed = display, changed
        self._rng = rng or random.Random()
        self._mesh = mesh_of((member.part for member in plan.members), keep)
        self._running: dict[str, Running] = {}
        self._ready: queue.SimpleQueue[tuple[str, Running, re.Match[str]]] = queue.SimpleQueue()
        self._url = plan.redis
        self._up_s: float | None = None
        self._unwritten = False
        self._begun_s = time.monotonic()

    def run(self, wish: Stop) -> View:
        """Keep the mesh until its students have ended, it cannot be kept, or it is to end."""
        self._begun_s = time.monotonic()
        try:
            while not self._mesh.over:
                self._turn(wish)
        finally:  # whatever went wrong here: nothing stays
            left = [one.process for one in self._running.values() if one.process is not None]
            stop_all([process for process in left if process.alive], 0.0)
        return self._view()

    def _turn(self, wish: Stop) -> None:
        """Wait a little for news, and do what follows from it."""
        before = self._mesh
        self._hear(_LOOK_S)
        self._see_who_ended()
        if wish.requested and not (self._mesh.stopping and self._mesh.urgent >= wish.urgent):
            self._become(stop(self._mesh, wish.urgent))
        now = time.monotonic()
        mesh, orders = decide(self._mesh, now)
        self._become(mesh)
        for name in orders.start:
            self._start(name)
        for name in orders.tell:
            self._tell(name)
        for name in orders.kill:
            self._kill(name)
        if self._up_s is None and self._mesh.up:
            self._up_s = time.monotonic() - self._begun_s
            self._display.say(
                wording.up(self._plan.described(), self._up_s, masked(self._url or ""))
            )
        view = self._view()
        self._display.show(view)
        if self._mesh != before or self._unwritten:
            self._unwritten = not self._changed(view)

    def _view(self) -> View:
        return View(self._mesh, self._running, self._url or "", self._up_s, time.monotonic())

    def _become(self, mesh: Mesh) -> None:
        """The mesh stands so now; says what of it a user wants to know."""
        for line in wording.changes(self._mesh, mesh, self._address, self._last, self._logs):
            self._display.say(line)
        self._mesh = mesh

    def _address(self, name: str) -> str:
        return self._running[name].address if name in self._running else ""

    def _last(self, name: str) -> str:
        return self._running[name].last if name in self._running else ""

    def _start(self, name: str) -> None:
        now, member = time.monotonic(), self._plan.of(name)
        self._become(started(self._mesh, name, now))
        pattern = re.compile(member.ready) if member.ready else None

        def heard(line: str) -> None:
            if line.strip():
                running.last = line
            self._display.heard(name, line)
            if pattern is not None and (match := pattern.search(line)):
                self._ready.put((name, running, match))

        running = self._running[name] = Running(None, None, now)
        try:
            running.process = start(self._plan.command(name, self._url, self._logs), echo=heard)
        except ProcessFailed as error:
            running.last = str(error)
            self._become(ended(self._mesh, name, _NOT_STARTED, 0.0, now, self._rng))
            return
        running.identity = identity_of(running.process.pid)
        if pattern is None:
            self._become(ready(self._mesh, name, now))

    def _hear(self, timeout_s: float) -> None:
        """Take note of who has said that it is ready; waits so long for the first."""
        try:
            found = [self._ready.get(timeout=timeout_s)]
            while not self._ready.empty():
                found.append(self._ready.get())
        except queue.Empty:
            return
        for name, running, match in found:
            if self._running.get(name) is not running:  # another one has taken its place
                continue
            groups = match.groups()
            if name == COORDINATOR:
                self._url = self._plan.redis or groups[0]
            running.address = groups[-1]
            self._become(ready(self._mesh, name, time.monotonic()))

    def _see_who_ended(self) -> None:
        now = time.monotonic()
        for name, running in self._running.items():
            process = running.process
            if process is None or process.alive or not self._mesh.of(name).alive:
                continue
            code = process.returncode or 0
            ran_s = now - running.started_s
            running.address, running.identity = "", None
            self._become(ended(self._mesh, name, code, ran_s, now, self._rng))

    def _tell(self, name: str) -> None:
        if (process := self._running[name].process) is not None:
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)  # a suspended one could not act on it

    def _kill(self, name: str) -> None:
        if (process := self._running[name].process) is not None:
            process.kill()
