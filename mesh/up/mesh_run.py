"""Runs a mesh in the foreground or the background; locks the pid file and records the run."""

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

#: Seconds added to the sum of the grace periods of all roles.
_EXIT_MARGIN_S: Final = 5.0
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
        keep: whether the mesh stays up when all students have ended.
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
        return sum(max(graces, default=0.0) for graces in roles) + _EXIT_MARGIN_S

    def record(self, view: MeshView | None) -> MeshRecord:
        """Return the record of the mesh; view None: no process has started."""
        keeper = identity_of(os.getpid())
        assert keeper is not None  # this process
        record = MeshRecord(str(self.file), keeper, logs=str(self.logs), grace_s=self.grace_s)
        if view is None:
            return record
        phase = "leaving" if view.mesh.stopping else "starting" if view.up_s is None else "up"
        entries = tuple(_entry(process, view) for process in view.mesh.processes)
        return replace(record, phase=phase, url=view.url, entries=entries)


def _entry(process: ProcessState, view: MeshView) -> ProcessRecord:
    run = view.latest_runs.get(process.spec.name)
    if run is None or not process.alive:
        return ProcessRecord(process.spec.name, process.spec.role, process.phase)
    return ProcessRecord(
        process.spec.name, process.spec.role, process.phase, run.identity, run.address
    )


def run_mesh(mesh: MeshRun, display: MeshDisplay, stop: Stop) -> int:
    """Run a mesh until it ends.

    Returns:
        Exit code: that of the student that failed first; 0: no student failed.

    Raises:
        UsageError: the mesh is up already, its directory cannot be written, or options of the
            coordinator or of a teacher are invalid.
        ProcessFailed: the coordinator or a teacher has failed.
    """
    directory = mesh.directory
    with directory.lock() as pid_file:
        former = directory.read()
        if pid_file is None:
            raise UsageError(already_up(mesh.file, former))
        record = mesh.record(None)
        if former is not None:  # the former 'edl up' was killed
            record = replace(record, entries=former.entries)
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


def already_up(file: Path, record: MeshRecord | None) -> str:
    """Return the error message about a mesh that is up already."""
    name = relative_path(file)
    if record is None or not record.keeper.runs:
        return f"another 'edl up' or 'edl down' of {name} is at work: try again"
    facts = [f"pid {record.keeper.pid}"]
    if record.entries:
        runs = sum(entry.phase in ("running", "done") for entry in record.entries)
        facts.append(f"{runs} of {len(record.entries)} processes")
    facts += [masked(record.url)] if record.url else []
    facts.append(f"logs in {record.logs}")
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
        arguments = ("up", str(file), *options)
        background = Background(
            python_command("edl up", "edl", *arguments, log=directory.background_log)
        )
        identity = identity_of(background.pid)
        has_output = terminated = False
        while True:
            code, record = background.wait(_POLL_S), directory.read()
            for line in _new_lines(log):
                has_output = True
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
    if code and not has_output:  # the disk may be full, so that the log is empty
        write(f"'edl up' {describe_exit(code)}, without output in {directory.background_log}")
    return code


def _new_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines that were appended to a file; leave an incomplete line for the next call."""
    while (line := file.readline()).endswith(b"\n"):
        yield line[:-1].decode("utf-8", "replace")
    file.seek(-len(line), os.SEEK_CUR)
