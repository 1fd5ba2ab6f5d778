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
#: Seconds within which a killed process must be gone.
_KILL_S: Final = 5.0
#: Seconds within which a process that holds the lock must write its record, or release the lock.
_WRITES_S: Final = 5.0
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
    """
    began_s = time.monotonic()

    def left_s(most_s: float) -> float:
        if within_s is None:
            return most_s
        return min(most_s, max(0.0, began_s + within_s - time.monotonic()))

    ended, waits_until = False, began_s + _WRITES_S
    while True:
        with directory.lock() as pid_file:
            record = directory.read()
            if pid_file is not None:
                left = [] if record is None else record.running
                stop_orphans(left, say, left_s(orphans_s))
                if not keep_logs:
                    directory.delete()
                return ended or bool(left)
        if record is not None and record.keeper.runs:
            if ended:  # the mesh was started again
                return True
            _end_keeper(record, record.grace_s if within_s is None else within_s, say)
            ended, waits_until = True, time.monotonic() + _WRITES_S
        elif time.monotonic() > waits_until:
            raise ProcessFailed(
                f"another process holds the lock of {directory.pid_file}: try again"
            )
        else:  # a killed process holds its lock until its last thread has ended
            time.sleep(_POLL_S)


def stop_orphans(
    left: Sequence[Identity], say: Callable[[str], None], within_s: float = ORPHANS_S
) -> None:
    """Wait until the processes of a killed `edl up` end; kill them after `within_s` seconds.

    Raises:
        ProcessFailed: a killed process does not end.
    """
    if not left:
        return
    what = "a process" if len(left) == 1 else f"{len(left)} processes"
    say(f"waiting for {what} of a mesh whose 'edl up' was killed")
    _kill(wait_gone(left, within_s))


def _kill(processes: Sequence[Identity]) -> None:
    for one in processes:
        one.send(signal.SIGKILL)
    if stuck := wait_gone(processes, _KILL_S):
        names = ", ".join(f"process {one.pid}" for one in stuck)
        raise ProcessFailed(f"still running after SIGKILL: {names}")


def _end_keeper(state: MeshRecord, within_s: float, say: Callable[[str], None]) -> None:
    keeper = state.keeper
    if within_s > 0:
        if state.phase != "leaving":  # a second signal would skip the grace periods
            keeper.send(signal.SIGTERM)
        keeper.send(signal.SIGCONT)  # Ctrl-Z may have suspended it
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
            `all_meshes` are both given; or none is given, and there is not exactly one mesh.
    """
    there = recorded_meshes(base)
    running = [
        (directory, state) for directory, state in there if state.keeper.runs or state.running
    ]
    if file is not None:
        if all_meshes:
            raise UsageError("give a file or --all, not both")
        directory = StateDirectory.of(file, base)
        if not (file.exists() or directory.folder.exists()):  # the file may have been deleted
            names = ", ".join(sorted(relative_path(Path(state.file)) for _, state in running))
            raise UsageError(f"there is no file {file}; up: {names or 'no mesh'}")
        return [(directory, str(file))]
    if running and not all_meshes:  # ignore records of killed meshes
        there = running
    found = [(directory, relative_path(Path(state.file))) for directory, state in there]
    if len(found) > 1 and not all_meshes:
        names = ", ".join(sorted(name for _, name in found))
        raise UsageError(f"several meshes run: name one of {names}, or use --all")
    if not found and not all_meshes:
        raise UsageError("no mesh is up")
    return found
