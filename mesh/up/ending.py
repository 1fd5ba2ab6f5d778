"""`edl down` at work: a mesh is told to end, and nothing of it stays."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...errors import ProcessFailed, UsageError
from ...supervise import Identity, wait_gone
from .place import Place, State, all_places, short

#: Within which processes have ended whose keeper was killed: the longest grace that they have then.
ORPHANS_S: Final = 12.0
#: After KILL.
_KILL_S: Final = 5.0
#: Of one that has taken its place and not yet written who it is.
_WRITES_S: Final = 5.0
_LOOK_S: Final = 0.02


def end(
    place: Place,
    within_s: float | None,
    say: Callable[[str], None],
    *,
    keep_logs: bool = False,
    orphans_s: float = ORPHANS_S,
) -> bool:
    """End the mesh of a place, whoever keeps it or kept it.

    Args:
        place: of the mesh.
        within_s: for an orderly end; then all of it is killed. None: as long as its own graces
            allow.
        say: takes what there is to tell.
        keep_logs: leave the logs and checkpoints that the place has.
        orphans_s: for processes whose keeper is gone; then they are killed.

    Returns:
        False: there was nothing to end.

    Raises:
        ProcessFailed: something of it does not even end when it is killed.
    """
    began_s = time.monotonic()

    def left_s(most_s: float) -> float:
        if within_s is None:
            return most_s
        return min(most_s, max(0.0, began_s + within_s - time.monotonic()))

    with place.held() as ours:
        state = place.read()
        # Who holds no lock and yet runs has had its file removed by hand: it is the keeper still.
        if ours and (state is None or not state.keeper.runs):
            left = [] if state is None else state.processes
            end_remains(left, say, left_s(orphans_s))
            _clear(place, keep_logs)
            return bool(left)
    state = _keeper_of(place)
    if state is not None:
        _end_keeper(state, state.grace_s if within_s is None else within_s, say)
        end_remains((place.read() or state).processes, say, left_s(orphans_s))
    with place.held() as ours:
        if ours:  # else somebody has started it anew
            _clear(place, keep_logs)
    return True


def end_remains(
    left: Sequence[Identity], say: Callable[[str], None], within_s: float = ORPHANS_S
) -> None:
    """See that processes end whose keeper is gone: they notice it themselves, or are killed.

    Raises:
        ProcessFailed: one does not even end when it is killed.
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


def _keeper_of(place: Place) -> State | None:
    """The state of a mesh that is kept; None: it has ended meanwhile."""
    deadline = time.monotonic() + _WRITES_S
    while (state := place.read()) is None or not state.keeper.runs:
        with place.held() as ours:
            if ours:
                return None
        if time.monotonic() > deadline:
            raise ProcessFailed(f"somebody holds {place.folder}, and says not who it is")
        time.sleep(_LOOK_S)
    return state


def _end_keeper(state: State, within_s: float, say: Callable[[str], None]) -> None:
    keeper = state.keeper
    if within_s > 0:
        if state.phase != "leaving":  # else a second wish would hurry it
            keeper.send(signal.SIGTERM)
        keeper.send(signal.SIGCONT)  # one that Ctrl-Z has suspended could not act on it
        if not wait_gone([keeper], within_s):
            return
        say(f"process {keeper.pid} has not ended within {within_s:g} s and is killed")
    keeper.send(signal.SIGKILL)
    if wait_gone([keeper], _KILL_S):
        raise ProcessFailed(f"killed, yet still there: process {keeper.pid}")


def _clear(place: Place, keep_logs: bool) -> None:
    if keep_logs:
        place.forget()
    else:
        place.clear()


def meant(file: Path | None, every: bool, base: Path) -> list[tuple[Place, str]]:
    """The places that are meant, and what their meshes are called.

    Args:
        file: of one mesh; None: the only one that is up.
        every: all of this user.
        base: folder of places.

    Raises:
        UsageError: the file is none and no mesh has been started from it; or no file is named, and
            there is not exactly one mesh.
    """
    there = all_places(base)
    running = [(place, state) for place, state in there if state.keeper.runs or state.processes]
    if file is not None:
        if every:
            raise UsageError("a file, or --all: one of both")
        place = Place.of(file, base)
        if not (file.exists() or place.folder.exists()):  # a mesh may outlive its file
            names = ", ".join(sorted(short(Path(state.file)) for _, state in running))
            raise UsageError(f"there is no file {file}; up: {names or 'no mesh'}")
        return [(place, str(file))]
    if running and not every:  # what is written of those that were killed is in nobody's way
        there = running
    found = [(place, short(Path(state.file))) for place, state in there]
    if len(found) > 1 and not every:
        names = ", ".join(sorted(name for _, name in found))
        raise UsageError(f"several meshes are there: name one of {names}, or say --all")
    if not found and not every:
        raise UsageError("no mesh is up")
    return found
