"""`edl down`: stops a mesh, and removes what is left of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...runtime.errors import ProcessFailed, UsageError
from ...runtime.supervise import Identity, wait_gone
from .state_directory import MeshRecord, StateDirectory, recorded_meshes, relative_path

#: Seconds within which processes end after their `edl up` was killed.
ORPHANS_S: Final = 12.0
#: Seconds within which a killed process must be gone.
_KILL_S: Final = 5.0
#: Seconds within which an `edl up` writes its record after it holds the lock.
_WRITES_S: Final = 5.0
_LOOK_S: Final = 0.02


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
        directory: its state directory.
        within_s: seconds for an orderly end, before all is killed. None: its own grace periods.
        say: called with progress messages.
        keep_logs: keep the logs and checkpoints in its directory.
        orphans_s: seconds that processes have whose `edl up` was killed.

    Returns:
        False: there was nothing to stop.

    Raises:
        ProcessFailed: a process does not end even when it is killed.
    """
    began_s = time.monotonic()

    def left_s(most_s: float) -> float:
        if within_s is None:
            return most_s
        return min(most_s, max(0.0, began_s + within_s - time.monotonic()))

    with directory.held() as ours:
        state = directory.read()
        # A keeper that runs although we hold the lock: somebody has removed the lock file.
        if ours and (state is None or not state.keeper.runs):
            left = [] if state is None else state.processes
            stop_orphans(left, say, left_s(orphans_s))
            _clear(directory, keep_logs)
            return bool(left)
    state = _keeper_of(directory)
    if state is not None:
        _end_keeper(state, state.grace_s if within_s is None else within_s, say)
        stop_orphans((directory.read() or state).processes, say, left_s(orphans_s))
    with directory.held() as ours:
        if ours:  # else it was started again
            _clear(directory, keep_logs)
    return True


def stop_orphans(
    left: Sequence[Identity], say: Callable[[str], None], within_s: float = ORPHANS_S
) -> None:
    """Wait until processes end whose `edl up` is gone; kill them after `within_s`.

    Raises:
        ProcessFailed: one does not end even when it is killed.
    """
    if not left:
        return
    what = "a process" if len(left) == 1 else f"{len(left)} processes"
    say(f"waiting for {what} of a mesh whose 'edl up' was killed")
    late = wait_gone(left, within_s)
    for one in late:
        one.send(signal.SIGKILL)
    if stuck := wait_gone(late, _KILL_S):
        pids = ", ".join(str(one.pid) for one in stuck)
        raise ProcessFailed(f"killed, yet still there: processes {pids}")


def _keeper_of(directory: StateDirectory) -> MeshRecord | None:
    """Return the record of a running mesh; None: it has ended meanwhile."""
    deadline = time.monotonic() + _WRITES_S
    while (state := directory.read()) is None or not state.keeper.runs:
        with directory.held() as ours:
            if ours:
                return None
        if time.monotonic() > deadline:
            raise ProcessFailed(f"somebody holds {directory.folder}, and says not who it is")
        time.sleep(_LOOK_S)
    return state


def _end_keeper(state: MeshRecord, within_s: float, say: Callable[[str], None]) -> None:
    keeper = state.keeper
    if within_s > 0:
        if state.phase != "leaving":  # a second signal would skip the grace periods
            keeper.send(signal.SIGTERM)
        keeper.send(signal.SIGCONT)  # it may be suspended by Ctrl-Z
        if not wait_gone([keeper], within_s):
            return
        say(f"process {keeper.pid} has not ended within {within_s:g} s and is killed")
    keeper.send(signal.SIGKILL)
    if wait_gone([keeper], _KILL_S):
        raise ProcessFailed(f"killed, yet still there: process {keeper.pid}")


def _clear(directory: StateDirectory, keep_logs: bool) -> None:
    if keep_logs:
        directory.forget()
    else:
        directory.clear()


def selected_meshes(file: Path | None, every: bool, base: Path) -> list[tuple[StateDirectory, str]]:
    """The places that are meant, and what their meshes are called.

    Args:
        file: of one mesh; None: the only one that is up.
        every: all of this user.
        base: folder of places.

    Raises:
        UsageError: the file is none and no mesh has been started from it; or no file is named, and
            there is not exactly one mesh.
    """
    there = recorded_meshes(base)
    running = [
        (directory, state) for directory, state in there if state.keeper.runs or state.processes
    ]
    if file is not None:
        if every:
            raise UsageError("a file, or --all: one of both")
        directory = StateDirectory.of(file, base)
        if not (file.exists() or directory.folder.exists()):  # a mesh may outlive its file
            names = ", ".join(sorted(relative_path(Path(state.file)) for _, state in running))
            raise UsageError(f"there is no file {file}; up: {names or 'no mesh'}")
        return [(directory, str(file))]
    if running and not every:  # what is written of those that were killed is in nobody's way
        there = running
    found = [(directory, relative_path(Path(state.file))) for directory, state in there]
    if len(found) > 1 and not every:
        names = ", ".join(sorted(name for _, name in found))
        raise UsageError(f"several meshes are there: name one of {names}, or say --all")
    if not found and not every:
        raise UsageError("no mesh is up")
    return found
