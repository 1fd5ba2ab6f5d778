"""When the parts of a mesh on one machine start, start again, are given up, and leave.

They start in the order coordinator, teachers, students, each kind as soon as the one before is
ready, and leave the other way round: a student finds its teachers to the last, a teacher its
coordinator. What ends unasked starts again, at once the first time, after pauses that grow while it
keeps dying young; what never gets ready is given up, and the mesh with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from ...scheduler.backoff import RandomLike, retry_s
from ...scheduler.job_states import USAGE_CODE, NodeEnding, ending_of

Role = Literal["coordinator", "teacher", "student"]
#: due: to be started, now or after a pause; starting: not ready yet; running: ready; leaving: told
#: to end. The others are ends: done (a student, well), failed (given up), left (as it was told).
Phase = Literal["due", "starting", "running", "leaving", "done", "failed", "left"]

ALIVE: Final = ("starting", "running", "leaving")
#: In which order they start.
ROLES: Final[tuple[Role, ...]] = ("coordinator", "teacher", "student")
#: One that ran so long before it ended is no sign of something that keeps failing.
HEALTHY_S: Final = 30.0
#: Bounds of the pauses before it starts again.
BASE_S, CAP_S = 0.5, 30.0
#: Starts of a coordinator or teacher that was never ready, until the mesh is given up.
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the mesh.

    Attributes:
        name: its own.
        role: what it is.
        service: of a teacher: what it serves.
        grace_s: one that is told to leave is killed when it is still there so long after.
        ready_s: one that is not ready so long after its start is killed.
        retries: of a student: how often it may end badly before it has failed.
        trains: it is an `edl student train`, whose exit codes are known.
    """

    name: str
    role: Role
    service: str = ""
    grace_s: float = 10.0
    ready_s: float = 120.0
    retries: int = 3
    trains: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """How a part stands.

    Attributes:
        part: which.
        phase: see `Phase`.
        since_s: when the phase began.
        due_s: due: not started before; starting, leaving: killed then.
        served: it was ready once, at any start.
        starts: how often it was started.
        young: how many of its ends in a row came within `HEALTHY_S`.
        failures: how often it ended badly.
        code: exit code of its last end, -N after signal N; None: it has not ended yet.
    """

    part: Part
    phase: Phase = "due"
    since_s: float = 0.0
    due_s: float = float("-inf")
    served: bool = False
    starts: int = 0
    young: int = 0
    failures: int = 0
    code: int | None = None

    @property
    def alive(self) -> bool:
        """Whether its process runs."""
        return self.phase in ALIVE


@dataclass(frozen=True, slots=True)
class Orders:
    """What is to be done now, by names.

    Attributes:
        start: these processes are to be started.
        tell: these are to be told to leave.
        kill: these are late.
    """

    start: tuple[str, ...] = ()
    tell: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mesh:
    """All parts, and what was asked of them.

    Attributes:
        standings: of all parts, as they were named.
        keep: it stays when all students have ended.
        stopping: it is to end.
        urgent: at once.
    """

    standings: tuple[Standing, ...]
    keep: bool = False
    stopping: bool = False
    urgent: bool = False

    def of(self, name: str) -> Standing:
        """How the part of this name stands."""
        return next(one for one in self.standings if one.part.name == name)

    def with_role(self, role: Role) -> list[Standing]:
        """The parts of one role."""
        return [one for one in self.standings if one.part.role == role]

    @property
    def up(self) -> bool:
        """Whether all of it is there: everything runs, or is a student that has ended."""
        there = all(one.phase in ("running", "done", "failed") for one in self.standings)
        return there and self.broken is None and not self.stopping

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.stopping and not any(one.alive for one in self.standings)

    @property
    def broken(self) -> Standing | None:
        """The first part without which there is no mesh, and that was given up."""
        failed = (one for one in self.standings if one.phase == "failed")
        return next((one for one in failed if one.part.role != "student"), None)

    @property
    def exit_code(self) -> int:
        """Of one that is over: that of the student that failed first, 1 after a signal; else 0."""
        failed = [one for one in self.with_role("student") if one.phase == "failed"]
        if not failed:
            return 0
        return max(1, min(failed, key=lambda one: one.since_s).code or 1)


def mesh_of(parts: Iterable[Part], keep: bool = False) -> Mesh:
    """A mesh of which nothing runs yet.

    Raises:
        ValueError: two parts have one name, or there is not exactly one coordinator.
    """
    mesh = Mesh(tuple(Standing(part) for part in parts), keep)
    names = [one.part.name for one in mesh.standings]
    if len(set(names)) < len(names) or len(mesh.with_role("coordinator")) != 1:
        raise ValueError(f"one coordinator, and a name for each: {names}")
    return mesh


def started(mesh: Mesh, name: str, now: float) -> Mesh:
    """A process was started as `Orders` said, or could not be: then `ended` follows."""

    def change(one: Standing) -> Standing:
        due_s = now + one.part.ready_s
        return replace(one, phase="starting", since_s=now, due_s=due_s, starts=one.starts + 1)

    return _changed(mesh, name, change)


def ready(mesh: Mesh, name: str, now: float) -> Mesh:
    """A process has said that it is ready; one that leaves already is not asked back."""

    def change(one: Standing) -> Standing:
        if one.phase != "starting":
            return one
        return replace(one, phase="running", since_s=now, served=True)

    return _changed(mesh, name, change)


def ended(mesh: Mesh, name: str, code: int, ran_s: float, now: float, rng: RandomLike) -> Mesh:
    """A process has ended.

    Args:
        mesh: as it was.
        name: of the part.
        code: its exit code, -N after signal N.
        ran_s: seconds from its start to its end.
        now: seconds of a clock that does not go back.
        rng: spreads the pauses.
    """

    def change(one: Standing) -> Standing:
        young = 0 if ran_s >= HEALTHY_S else one.young + 1
        known = replace(one, since_s=now, young=young, code=code)
        ending = _ending(one, code)
        if ending == "left":
            return replace(known, phase="left")
        if ending == "done":
            return replace(known, phase="done")
        known = replace(known, failures=one.failures + 1)
        if ending == "hopeless" or _given_up(known):
            return replace(known, phase="failed")
        pause_s = retry_s(max(young - 1, 0), rng, BASE_S, CAP_S)
        return replace(known, phase="due", due_s=now + pause_s)

    return _changed(mesh, name, change)


def stop(mesh: Mesh, urgent: bool = False) -> Mesh:
    """It is to end: in order, or at once."""
    return replace(mesh, stopping=True, urgent=mesh.urgent or urgent)


def decide(mesh: Mesh, now: float) -> tuple[Mesh, Orders]:
    """What is to be done now, and the mesh when those to leave were told.

    Each order to start is followed by `started`. Asked again it orders nothing twice, but for what
    is late, which is to be killed until it has ended.
    """
    if not mesh.stopping and _finished(mesh):
        mesh = stop(mesh)
    if mesh.stopping:
        return _leave(mesh, now)
    start = tuple(
        one.part.name
        for one in mesh.standings
        if one.phase == "due" and now >= one.due_s and _may_start(mesh, one.part)
    )
    return mesh, Orders(start, kill=_late(mesh, now))


def _finished(mesh: Mesh) -> bool:
    """Whether nothing is left to be done for it."""
    students = mesh.with_role("student")
    over = bool(students) and all(one.phase in ("done", "failed") for one in students)
    return mesh.broken is not None or (over and not mesh.keep)


def _may_start(mesh: Mesh, part: Part) -> bool:
    """Whether what it stands on is there: for a student, a teacher of each service."""
    runs = [one.part for one in mesh.standings if one.phase == "running"]
    if part.role == "coordinator":
        return True
    if not any(one.role == "coordinator" for one in runs):
        return False
    services = {one.part.service for one in mesh.with_role("teacher")}
    return part.role == "teacher" or services <= {one.service for one in runs}


def _leave(mesh: Mesh, now: float) -> tuple[Mesh, Orders]:
    """Students first, then teachers, then the coordinator; those that do not run stay away."""
    last = next((role for role in reversed(ROLES) if _any_alive(mesh, role)), None)
    tell: list[str] = []
    standings: list[Standing] = []
    for one in mesh.standings:
        if one.phase == "due":
            one = replace(one, phase="left", since_s=now)
        elif one.phase in ("starting", "running") and (mesh.urgent or one.part.role == last):
            tell.append(one.part.name)
            one = replace(one, phase="leaving", since_s=now, due_s=now + one.part.grace_s)
        standings.append(one)
    mesh = replace(mesh, standings=tuple(standings))
    if not mesh.urgent:
        return mesh, Orders(tell=tuple(tell), kill=_late(mesh, now))
    return mesh, Orders(kill=tuple(one.part.name for one in standings if one.alive))


def _any_alive(mesh: Mesh, role: Role) -> bool:
    return any(one.alive for one in mesh.with_role(role))


def _late(mesh: Mesh, now: float) -> tuple[str, ...]:
    late = (one for one in mesh.standings if one.phase in ("starting", "leaving"))
    return tuple(one.part.name for one in late if now > one.due_s)


def _ending(one: Standing, code: int) -> NodeEnding:
    """How it ended: one that serves never ends well by itself."""
    told = one.phase == "leaving"
    if one.part.role == "student":
        return ending_of(code, told, one.part.trains)
    if told:
        return "left"
    # One that was ready had options that work: then the code is an accident's.
    return "hopeless" if code == USAGE_CODE and one.phase == "starting" else "failed"


def _given_up(one: Standing) -> bool:
    """Whether one more start would be in vain."""
    if one.part.role == "student":
        return one.failures > one.part.retries
    return not one.served and one.failures >= ATTEMPTS


def _changed(mesh: Mesh, name: str, change: Callable[[Standing], Standing]) -> Mesh:
    standings = (change(one) if one.part.name == name else one for one in mesh.standings)
    return replace(mesh, standings=tuple(standings))
