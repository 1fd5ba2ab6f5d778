"""`edl up` at work: its place is taken, the mesh is kept and written down, and left clean."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...coordinator.store.redis_url import masked
from ...errors import ProcessFailed, UsageError
from ...lifecycle import Stop
from ...scheduler.job_states import USAGE_CODE
from ...supervise import identity_of
from . import wording
from .display import Plain
from .ending import end_remains
from .members import Plan
from .place import Entry, Place, State, short
from .runner import Runner, View
from .startup import ROLES, Standing

#: Seconds beyond the graces of all roles within which a mesh has ended.
_MARGIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Keeping:
    """What is kept, and where.

    Attributes:
        file: the mesh's file, absolute.
        place: where it is written down.
        plan: what it consists of.
        logs: folder of logs, absolute.
        stays: it stays when all students have ended.
    """

    file: Path
    place: Place
    plan: Plan
    logs: Path
    stays: bool = False

    @property
    def grace_s(self) -> float:
        """Within which it ends when it is told to: one role after the other."""
        parts = [member.part for member in self.plan.members]
        roles = [[part.grace_s for part in parts if part.role == role] for role in ROLES]
        return sum(max(graces, default=0.0) for graces in roles) + _MARGIN_S

    def state(self, view: View | None) -> State:
        """What is written down of it."""
        keeper = identity_of(os.getpid())
        assert keeper is not None  # it is this process
        state = State(str(self.file), keeper, logs=str(self.logs), grace_s=self.grace_s)
        if view is None:
            return state
        phase = "leaving" if view.mesh.stopping else "starting" if view.up_s is None else "up"
        entries = tuple(_entry(one, view) for one in view.mesh.standings)
        return State(state.file, keeper, phase, view.url, state.logs, self.grace_s, entries)


def _entry(one: Standing, view: View) -> Entry:
    running = view.running.get(one.part.name)
    if running is None or not one.alive:
        return Entry(one.part.name, one.part.role, one.phase)
    return Entry(one.part.name, one.part.role, one.phase, running.identity, running.address)


def keep(keeping: Keeping, display: Plain, wish: Stop) -> int:
    """Keep a mesh until it has ended.

    Returns:
        The exit code: 0; where a student has failed, its own, or 1.

    Raises:
        UsageError: the mesh of this file is up already; nothing can be written; the options of the
            coordinator or of a teacher cannot work.
        ProcessFailed: one of them could not be kept.
    """
    place = keeping.place
    with taken(place, keeping.file, display):
        _prepare(keeping)
        if place.checkpoints.exists():
            display.say(
                f"trainings without --checkpoint go on from {place.checkpoints}:"
                f" 'edl down {short(keeping.file)}' removes what is there"
            )
        place.write(keeping.state(None))
        try:
            changed = _Record(keeping, display).write
            runner = Runner(keeping.plan, keeping.logs, display, changed, keep=keeping.stays)
            view = runner.run(wish)
        finally:
            place.forget()
    return _judged(view, display)


@contextmanager
def taken(place: Place, file: Path, display: Plain) -> Iterator[None]:
    """The place is this process's in the body; what was left by one that was killed has ended.

    Raises:
        UsageError: the mesh is up.
    """
    with place.held() as ours:
        if not ours:
            raise UsageError(already_up(file, place.read()))
        if (before := place.read()) is not None:
            if before.keeper.runs:  # the file of its lock was removed by hand
                raise UsageError(already_up(file, before))
            end_remains(before.processes, display.say)
            place.forget()
        yield


def already_up(file: Path, state: State | None) -> str:
    """What is said to who starts a mesh that is up."""
    name = short(file)
    if state is None:
        return f"{name} is about to start already: 'edl down {name}' ends it"
    told = [f"pid {state.keeper.pid}"]
    if state.entries:
        runs = sum(one.phase in ("running", "done") for one in state.entries)
        told.append(f"{runs} of {len(state.entries)} processes")
    told += [masked(state.url)] if state.url else []
    told.append(f"logs in {state.logs}")
    return f"{name} is up already ({', '.join(told)}): 'edl down {name}' ends it"


class _Record:
    """What is written down of a mesh; one that cannot be written down goes on all the same.

    Args:
        keeping: which mesh.
        display: is told, once, that a disk is full.
    """

    def __init__(self, keeping: Keeping, display: Plain) -> None:
        self._keeping, self._display = keeping, display
        self._told = False

    def write(self, view: View) -> bool:
        """The mesh stands so now; whether that is written down."""
        try:
            self._keeping.place.write(self._keeping.state(view))
            self._told = False
        except UsageError as error:
            if not self._told:
                self._display.say(f"the mesh goes on, but is not written down: {error}")
            self._told = True
        return not self._told


def _prepare(keeping: Keeping) -> None:
    """Logs begin anew; checkpoints, and what a user named, are left alone."""
    place = keeping.place
    try:
        if place.logs.exists():
            shutil.rmtree(place.logs)
        place.folder.mkdir(0o700, parents=True, exist_ok=True)
        keeping.logs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot write logs in {keeping.logs}: {error.strerror}; --logs names another folder"
        ) from error


def _judged(view: View, display: Plain) -> int:
    """What the end of a mesh means for who has started it."""
    if (broken := view.mesh.broken) is not None:
        running = view.running.get(broken.part.name)
        last = wording.shortened(running.last) if running is not None else ""
        kind = UsageError if broken.code == USAGE_CODE else ProcessFailed
        raise kind(f"{broken.part.name} {wording.how(broken.code)}" + (f": {last}" if last else ""))
    display.say("the mesh has ended")
    return view.mesh.exit_code
