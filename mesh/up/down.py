"""`edl down`: stops a mesh, and removes its state directory."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.supervise import Identity, wait_gone
from .state_directory import MeshRecord, StateDirectory, recorded_meshes, relative_path

#: Seconds that processes have to end after their `edl up` was killed.
ORPHANS_S: Final = 12.0
#: Seconds within which a killed process must end.
_KILL_TIMEOUT_S: Final = 5.0
#: Seconds within which a process that holds the lock must write its record, or release the lock.
_LOCK_TIMEOUT_S: Final = 5.0
_POLL_S: Final = 0.02


def stop_mesh(
    directory: StateDirectory,
    within_s: float | None,
    say: Callable[[str], None],
    *,
    keep_logs: bool = False,
    orphans_s: float = ORPHANS_S,
) -> bool:
    """Stop a mesh.

    Args:
        directory: state directory of the mesh.
        within_s: seconds for an orderly end, before all processes are killed; None: grace periods
            of the mesh.
        say: called with lines about the progress.
        keep_logs: keep the logs and checkpoints in the directory.
        orphans_s: seconds that processes have to end if their `edl up` was killed.

    Returns:
        False: there was nothing to stop.

    Raises:
        ProcessFailed: a killed process does not end, or the process that holds the lock is unknown.
        UsageError: the pid file cannot be written.
    """
    start_s = time.monotonic()

    def left_s(most_s: float) -> float:
        if within_s is None:
            return most_s
        return min(most_s, max(0.0, start_s + within_s - time.monotonic()))

    ended, give_up_s = False, start_s + _LOCK_TIMEOUT_S
    while True:
        with directory.lock() as pid_file:
            record = directory.read()
            if pid_file is not None:
                orphans = [] if record is None else record.running
                stop_orphans(orphans, say, left_s(orphans_s))
                if not keep_logs:
                    directory.delete()
                return ended or bool(orphans)
        if record is not None and record.keeper.runs:
            if ended:  # the mesh was started again
                return True
            _end_keeper(record, record.grace_s if within_s is None else within_s, say)
            ended, give_up_s = True, time.monotonic() + _LOCK_TIMEOUT_S
        elif time.monotonic() > give_up_s:
            raise ProcessFailed(
                f"another process holds the lock of {directory.pid_file}: try again"
            )
        else:  # a killed process holds its lock until its last thread has ended
            time.sleep(_POLL_S)


def stop_orphans(
    orphans: Sequence[Identity], say: Callable[[str], None], within_s: float = ORPHANS_S
) -> None:
    """Wait until the processes of a killed `edl up` end; kill them after `within_s` seconds.

    Raises:
        ProcessFailed: a killed process does not end.
    """
    if not orphans:
        return
    subject = "a process" if len(orphans) == 1 else f"{len(orphans)} processes"
    say(f"waiting for {subject} of a mesh whose 'edl up' was killed")
    _kill(wait_gone(orphans, within_s))


def _kill(processes: Sequence[Identity]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)
    if stuck := wait_gone(processes, _KILL_TIMEOUT_S):
        names = ", ".join(f"process {process.pid}" for process in stuck)
        raise ProcessFailed(f"still running after SIGKILL: {names}")


def _end_keeper(record: MeshRecord, within_s: float, say: Callable[[str], None]) -> None:
    keeper = record.keeper
    if within_s > 0:
        if record.phase != "leaving":  # a second signal would skip the grace periods
            keeper.send(signal.SIGTERM)
        keeper.send(signal.SIGCONT)  # Ctrl-Z may have suspended the process
        if not wait_gone([keeper], within_s):
            return
        say(f"process {keeper.pid} has not ended within {within_s:g} s and is killed")
    _kill([keeper])


def selected_meshes(
    file: Path | None, all_meshes: bool, base: Path
) -> list[tuple[StateDirectory, str]]:
    """Return the state directories and names of the selected meshes.

    Args:
        file: file of the mesh; None: the only mesh that is up.
        all_meshes: select all meshes of this user.
        base: folder of the state directories.

    Raises:
        UsageError: the file does not exist, and no mesh was started from it; `file` and
            `all_meshes` are both given; or neither is given, and there is not exactly one mesh.
    """
    recorded = recorded_meshes(base)
    running = [
        (directory, record)
        for directory, record in recorded
        if record.keeper.runs or record.running
    ]
    if file is not None:
        if all_meshes:
            raise UsageError("give a file or --all, not both")
        directory = StateDirectory.of(file, base)
        if not (file.exists() or directory.folder.exists()):  # the file may have been deleted
            names = ", ".join(sorted(relative_path(Path(record.file)) for _, record in running))
            raise UsageError(f"there is no file {file}; up: {names or 'no mesh'}")
        return [(directory, str(file))]
    if running and not all_meshes:  # ignore records of killed meshes
        recorded = running
    selected = [(directory, relative_path(Path(record.file))) for directory, record in recorded]
    if len(selected) > 1 and not all_meshes:
        names = ", ".join(sorted(name for _, name in selected))
        raise UsageError(f"several meshes run: name one of {names}, or use --all")
    if not selected and not all_meshes:
        raise UsageError("no mesh is up")
    return selected
