"""Runs the processes of a mesh as `mesh_state` decides."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ...coordinator.store.redis_url import masked
from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.lifecycle import Stop
from ...runtime.supervise import Process, identity_of, start, stop_all
from .display import MeshDisplay, MeshView, ProcessRun, changes, up_line
from .mesh_state import MeshState, decide, ended, initial_state, ready, started, stop_requested
from .plan import COORDINATOR, LaunchPlan

#: Seconds between checks of the processes.
_POLL_S: Final = 0.1
#: Exit code of shells for a command that cannot be started.
_NOT_STARTED_CODE: Final = 127


class MeshRunner:
    """Runs the mesh of a plan. Used by one thread.

    Args:
        plan: the processes.
        logs: folder for the output of each process.
        display: display of the mesh.
        record: called with the view after each change. If it raises UsageError, it is called again
            with the next view, even without a change.
        keep: whether the mesh stays up when all students have ended.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        logs: Path,
        display: MeshDisplay,
        record: Callable[[MeshView], None],
        keep: bool,
    ) -> None:
        self._plan, self._logs = plan, logs
        self._display, self._record = display, record
        self._rng = random.Random()
        self._mesh = initial_state(plan.processes, keep)
        self._latest_runs: dict[str, ProcessRun] = {}
        self._ready_event = threading.Event()
        self._url = plan.redis
        self._up_s: float | None = None
        self._record_failed = False
        self._start_s = time.monotonic()

    def run(self, stop: Stop) -> MeshView:
        """Run until the mesh has ended; return the final view.

        The mesh ends when all students have ended, when it fails, or when `stop` is requested.
        """
        self._start_s = time.monotonic()
        try:
            while not self._mesh.over:
                self._step(stop)
        finally:  # leave no process after an error
            processes = [run.process for run in self._latest_runs.values()]
            stop_all([p for p in processes if p is not None and p.alive], 0.0)
        return self._view()

    def _step(self, stop: Stop) -> None:
        """Wait briefly for a process that becomes ready; then handle all events and act."""
        before = self._mesh
        self._ready_event.wait(_POLL_S)
        self._ready_event.clear()
        self._handle_ready()
        self._handle_ended()
        if stop.requested and not (self._mesh.stopping and self._mesh.urgent >= stop.urgent):
            self._set_state(stop_requested(self._mesh, stop.urgent))
        now = time.monotonic()
        mesh, actions = decide(self._mesh, now)
        self._set_state(mesh)
        for name in actions.start:
            self._start(name)
        for name in actions.terminate:
            self._running_process(name).terminate()
        for name in actions.kill:
            self._running_process(name).kill()
        if self._up_s is None and self._mesh.up:
            self._up_s = time.monotonic() - self._start_s
            self._display.say(up_line(self._plan.summary(), self._up_s, masked(self._url or "")))
        view = self._display.view = self._view()
        if self._mesh != before or self._record_failed:
            self._try_to_record(view)

    def _try_to_record(self, view: MeshView) -> None:
        """Record the state; the mesh continues if this fails."""
        try:
            self._record(view)
        except UsageError as error:
            if not self._record_failed:
                self._display.say(f"the mesh continues, but its record cannot be written: {error}")
            self._record_failed = True
        else:
            self._record_failed = False

    def _view(self) -> MeshView:
        return MeshView(
            self._mesh, self._latest_runs, self._url or "", self._up_s, time.monotonic()
        )

    def _set_state(self, mesh: MeshState) -> None:
        """Set the state, and print its changes."""
        for line in changes(self._mesh, mesh, self._latest_runs, self._logs):
            self._display.say(line)
        self._mesh = mesh

    def _start(self, name: str) -> None:
        now, spec = time.monotonic(), self._mesh.of(name).spec
        self._set_state(started(self._mesh, name, now))

        def on_line(line: str) -> None:
            if line.strip():
                run.last = line
            self._display.print_output(name, line)
            if spec.ready and (match := re.search(spec.ready, line)):
                run.ready = match
                self._ready_event.set()

        run = self._latest_runs[name] = ProcessRun(None, None, now)
        try:
            run.process = start(self._plan.command(spec, self._url, self._logs), echo=on_line)
        except ProcessFailed as error:
            run.last = str(error)
            self._set_state(ended(self._mesh, name, _NOT_STARTED_CODE, 0.0, now, self._rng))
            return
        run.identity = identity_of(run.process.pid)
        if not spec.ready:
            self._set_state(ready(self._mesh, name, now))

    def _running_process(self, name: str) -> Process:
        process = self._latest_runs[name].process
        assert process is not None, "decide() acts only on processes that run"
        return process

    def _handle_ready(self) -> None:
        for name, run in self._latest_runs.items():
            if run.ready is None or self._mesh.of(name).phase != "starting":
                continue
            groups = run.ready.groups()
            if name == COORDINATOR:
                self._url = self._plan.redis or groups[0]
            run.address = groups[-1]
            self._set_state(ready(self._mesh, name, time.monotonic()))

    def _handle_ended(self) -> None:
        now = time.monotonic()
        for name, run in self._latest_runs.items():
            process = run.process
            if process is None or process.alive or not self._mesh.of(name).alive:
                continue
            code = process.returncode or 0
            ran_s = now - run.started_s
            run.address, run.identity = "", None
            self._set_state(ended(self._mesh, name, code, ran_s, now, self._rng))
