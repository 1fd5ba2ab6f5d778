"""Runs a mesh in the foreground or the background; it locks the pid file and records the run."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Final

from ...coordinator.store.redis_url import masked
from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.lifecycle import Stop
from ...runtime.supervise import Background, describe_exit, identity_of, python_command
from ...scheduler.job_states import USAGE_CODE
from .display import MeshDisplay, MeshView, describe_end, shortened
from .down import stop_orphans
from .mesh_state import ROLES, ProcessState
from .plan import LaunchPlan
from .runner import MeshRunner
from .state_directory import MeshRecord, ProcessRecord, StateDirectory, relative_path

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
        specs = self.plan.processes
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
        return replace(state, phase=phase, url=view.url, entries=entries)


def _entry(one: ProcessState, view: MeshView) -> ProcessRecord:
    run = view.latest_runs.get(one.spec.name)
    if run is None or not one.alive:
        return ProcessRecord(one.spec.name, one.spec.role, one.phase)
    return ProcessRecord(one.spec.name, one.spec.role, one.phase, run.identity, run.address)


def run_mesh(mesh: MeshRun, display: MeshDisplay, stop: Stop) -> int:
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
        runner = MeshRunner(
            mesh.plan, mesh.logs, display, lambda view: pid_file.write(mesh.record(view)), mesh.keep
        )
        view = runner.run(stop)
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


def _exit_code(view: MeshView, display: MeshDisplay) -> int:
    """Return the exit code of a mesh that has ended; raise an error if the mesh has failed."""
    if (broken := view.mesh.broken) is not None:
        run = view.latest_runs.get(broken.spec.name)
        last = shortened(run.last) if run is not None else ""
        if run is not None and run.process is None:  # it could not be started
            raise ProcessFailed(last)
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
        identity = identity_of(background.pid)
        said = terminated = False
        while True:
            code, record = background.wait(_POLL_S), directory.read()
            for line in _new_lines(log):
                said = True
                write(line)
            if code is not None:
                break
            if stop.requested:
                if not terminated and identity is not None:
                    identity.send(signal.SIGTERM)
                terminated = True
            elif record is not None and record.keeper == identity and record.phase == "up":
                background.leave()
                return None
    if code and not said:  # the log may be empty as the disk is full
        write(f"'edl up' {describe_exit(code)}, without output in {directory.background_log}")
    return code


def _new_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines that were appended to a file; leave an incomplete one for the next call."""
    while (line := file.readline()).endswith(b"\n"):
        yield line[:-1].decode("utf-8", "replace")
    file.seek(-len(line), os.SEEK_CUR)
