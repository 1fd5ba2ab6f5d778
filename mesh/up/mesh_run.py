"""Runs a mesh in the foreground or the background; it locks the pid file and records the run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from ...coordinator.store.redis_url import masked
from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.lifecycle import Stop
from ...runtime.supervise import Background, describe_exit, identity_of, python_command
from ...scheduler.job_states import USAGE_CODE
from .display import LineDisplay, MeshView, describe_end, shortened
from .down import stop_orphans
from .mesh_state import ROLES, ProcessState
from .plan import LaunchPlan
from .runner import MeshRunner
from .state_directory import LockedPidFile, MeshRecord, ProcessRecord, StateDirectory, relative_path

#: Seconds added to the grace periods of all roles.
_MARGIN_S: Final = 5.0
#: Seconds between checks of an `edl up` in the background.
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class MeshRun:
    """A mesh to run.

    Attributes:
        file: absolute path of the mesh's file.
        directory: state directory.
        plan: processes of the mesh.
        logs: absolute path of the folder of logs.
        keep: stay up when all students have ended.
    """

    file: Path
    directory: StateDirectory
    plan: LaunchPlan
    logs: Path
    keep: bool = False

    @property
    def grace_s(self) -> float:
        """Maximum seconds of an orderly end, in which one role ends after the other."""
        specs = [planned.spec for planned in self.plan.processes]
        roles = [[spec.grace_s for spec in specs if spec.role == role] for role in ROLES]
        return sum(max(graces, default=0.0) for graces in roles) + _MARGIN_S

    def record(self, view: MeshView | None) -> MeshRecord:
        """Return the record of the mesh; view None: no process has started."""
        keeper = identity_of(os.getpid())
        assert keeper is not None  # this process
        state = MeshRecord(str(self.file), keeper, logs=str(self.logs), grace_s=self.grace_s)
        if view is None:
            return state
        phase = "leaving" if view.mesh.stopping else "starting" if view.up_s is None else "up"
        entries = tuple(_entry(one, view) for one in view.mesh.processes)
        return MeshRecord(state.file, keeper, phase, view.url, state.logs, self.grace_s, entries)


def _entry(one: ProcessState, view: MeshView) -> ProcessRecord:
    running = view.running.get(one.spec.name)
    if running is None or not one.alive:
        return ProcessRecord(one.spec.name, one.spec.role, one.phase)
    return ProcessRecord(one.spec.name, one.spec.role, one.phase, running.identity, running.address)


def run_mesh(mesh: MeshRun, display: LineDisplay, stop: Stop) -> int:
    """Run a mesh until it ends.

    Returns:
        Exit code: 0, or that of the student that failed first.

    Raises:
        UsageError: the mesh is up already, its directory cannot be written, or options of the
            coordinator or of a teacher are invalid.
        ProcessFailed: the coordinator or a teacher has failed.
    """
    directory = mesh.directory
    with directory.lock() as pid_file:
        before = directory.read()
        if pid_file is None:
            raise UsageError(already_up(mesh.file, before))
        record = mesh.record(None)
        if before is not None:  # its 'edl up' was killed
            record = replace(record, entries=before.entries)
        pid_file.write(record)
        stop_orphans(record.running, display.say)
        _prepare(mesh)
        if directory.checkpoints.exists():
            display.say(
                f"trainings without --checkpoint resume from {directory.checkpoints};"
                f" 'edl down {relative_path(mesh.file)}' deletes it"
            )
        changed = _Recorder(mesh, pid_file, display).write
        view = MeshRunner(mesh.plan, mesh.logs, display, changed, keep=mesh.keep).run(stop)
    return _exit_code(view, display)


def already_up(file: Path, state: MeshRecord | None) -> str:
    """Return the error message about a mesh that is up already."""
    name = relative_path(file)
    if state is None or not state.keeper.runs:
        return f"another 'edl up' or 'edl down' of {name} is at work: try again"
    facts = [f"pid {state.keeper.pid}"]
    if state.entries:
        runs = sum(one.phase in ("running", "done") for one in state.entries)
        facts.append(f"{runs} of {len(state.entries)} processes")
    facts += [masked(state.url)] if state.url else []
    facts.append(f"logs in {state.logs}")
    return f"{name} is up already ({', '.join(facts)}): 'edl down {name}' ends it"


class _Recorder:
    """Writes the record of a mesh; the mesh continues if this fails.

    Args:
        mesh: the mesh.
        pid_file: its pid file.
        display: shows the first of consecutive failures.
    """

    def __init__(self, mesh: MeshRun, pid_file: LockedPidFile, display: LineDisplay) -> None:
        self._mesh, self._pid_file, self._display = mesh, pid_file, display
        self._failed = False

    def write(self, view: MeshView) -> bool:
        """Write the record; return whether it was written."""
        try:
            self._pid_file.write(self._mesh.record(view))
            self._failed = False
        except UsageError as error:
            if not self._failed:
                self._display.say(f"the mesh continues, but its record cannot be written: {error}")
            self._failed = True
        return not self._failed


def _prepare(mesh: MeshRun) -> None:
    """Delete old logs in the state directory, and create the folders of the mesh.

    Checkpoints stay, and so does a folder of logs that the user has named.
    """
    directory = mesh.directory
    try:
        if directory.logs.exists():
            shutil.rmtree(directory.logs)
        directory.folder.mkdir(0o700, parents=True, exist_ok=True)
        mesh.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write logs in {mesh.logs}: {error.strerror}; --logs names another folder"
        ) from error


def _exit_code(view: MeshView, display: LineDisplay) -> int:
    """Return the exit code of a mesh that has ended; raise an error if the mesh has failed."""
    if (broken := view.mesh.broken) is not None:
        running = view.running.get(broken.spec.name)
        last = shortened(running.last) if running is not None else ""
        kind = UsageError if broken.code == USAGE_CODE else ProcessFailed
        raise kind(
            f"{broken.spec.name} {describe_end(broken.code)}" + (f": {last}" if last else "")
        )
    display.say("the mesh has ended")
    return view.mesh.exit_code


def run_in_background(
    file: Path,
    directory: StateDirectory,
    options: Sequence[str],
    write: Callable[[str], None],
    stop: Stop,
) -> int | None:
    """Start `edl up` in the background and wait until the mesh is up.

    Args:
        file: file of the mesh.
        directory: its state directory.
        options: options of `edl up` for the process in the background.
        write: called with each line of output of the process.
        stop: a request to stop sends SIGTERM to the process.

    Returns:
        Exit code of the process if it has ended; None: the mesh is up.

    Raises:
        UsageError: the mesh is up already, or its directory cannot be written.
        ProcessFailed: the process cannot be started.
    """
    if (record := directory.read()) is not None and record.keeper.runs:
        raise UsageError(already_up(file, record))
    with directory.open_background_log() as log:
        words = ("up", str(file), *options)
        background = Background(
            python_command("edl up", "edl", *words, log=directory.background_log)
        )
        tail = _Tail(log, write)
        code = _until_up(background, directory, tail, stop)
        if code and not tail.any:  # the log may be empty as the disk is full
            write(f"'edl up' {describe_exit(code)}, without output in {directory.background_log}")
    return code


def _until_up(
    background: Background, directory: StateDirectory, tail: _Tail, stop: Stop
) -> int | None:
    """Return the exit code of the process if it ends before the mesh is up, otherwise None."""
    identity = identity_of(background.pid)
    terminated = False
    while (code := background.wait(_POLL_S)) is None:
        tail.update()
        state = directory.read()
        if stop.requested:
            if not terminated and identity is not None:
                identity.send(signal.SIGTERM)
            terminated = True
        elif state is not None and state.keeper == identity and state.phase == "up":
            tail.update()
            background.leave()
            return None
    tail.update()
    return code


class _Tail:
    """Copies lines that are appended to a file.

    Attributes:
        any: there were lines.
    """

    def __init__(self, file: BinaryIO, write: Callable[[str], None]) -> None:
        self._file, self._write, self._at = file, write, 0
        self.any = False

    def update(self) -> None:
        """Write new lines."""
        self._file.seek(self._at)
        data = self._file.read()
        end = data.rfind(b"\n") + 1
        self._at += end
        for line in data[:end].decode("utf-8", "replace").splitlines():
            self.any = True
            self._write(line)
