"""Decides when the processes of a mesh start, restart, fail and stop.

Teachers start once the coordinator is ready, students once each service has a ready teacher. They
stop in the reverse order, so that students have teachers, and teachers a coordinator, until they
end. A process that ends unexpectedly is restarted: at once the first time, then after growing
pauses while it keeps ending early. A coordinator or teacher that never gets ready fails, and then
the mesh fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ...scheduler.backoff import RandomLike, retry_s
from ...scheduler.job_states import USAGE_CODE, NodeEnding, ending_of

Role = Literal["coordinator", "teacher", "student"]
#: due: to be started, now or after a pause; starting: not ready yet; running: ready; leaving: told
#: to end. Final phases: done (a student succeeded), failed (not restarted), left (ended as told).
Phase = Literal["due", "starting", "running", "leaving", "done", "failed", "left"]

ALIVE: Final = ("starting", "running", "leaving")
#: Start order.
ROLES: Final[tuple[Role, ...]] = ("coordinator", "teacher", "student")
#: Seconds after its start before which the end of a process counts as early.
HEALTHY_S: Final = 30.0
#: Base and limit in seconds of the growing pause before a restart.
BASE_S, CAP_S = 0.5, 30.0
#: Number of starts after which a coordinator or teacher that never got ready fails.
ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of the mesh, and the command that starts it.

    Attributes:
        name: name of the process.
        role: role of the process.
        group: key of its service or student in the file.
        grace_s: seconds within which it must end when told to; otherwise it is killed.
        ready_s: seconds after its start within which it must be ready; otherwise it is killed.
        retries: number of failures that a student survives.
        argv: arguments of `edl`, or a program with arguments. `{coordinator}` is the Redis URL.
        is_edl: it is a command of `edl`, with known exit codes.
        ready: pattern of the line that it prints when it is ready; empty: it is ready at once.
        env: environment variables.
    """

    name: str
    role: Role
    group: str = ""
    grace_s: float = 10.0
    ready_s: float = 120.0
    retries: int = 3
    argv: tuple[str, ...] = ()
    is_edl: bool = True
    ready: str = ""
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State of one process.

    Attributes:
        spec: the process.
        phase: see `Phase`.
        since_s: start of the phase.
        due_s: time of the next start in phase due; time at which it is killed in phases starting
            and leaving.
        served: it has been ready since the mesh started.
        starts: number of starts.
        early_ends: number of consecutive early ends, see `HEALTHY_S`.
        failures: number of failures.
        code: latest exit code, -N after signal N; None: it has not ended yet.
    """

    spec: ProcessSpec
    phase: Phase = "due"
    since_s: float = 0.0
    due_s: float = float("-inf")
    served: bool = False
    starts: int = 0
    early_ends: int = 0
    failures: int = 0
    code: int | None = None

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self.phase in ALIVE


@dataclass(frozen=True, slots=True)
class MeshActions:
    """Names of processes to act on now.

    Attributes:
        start: processes to start.
        terminate: processes to send SIGTERM.
        kill: processes to send SIGKILL.
    """

    start: tuple[str, ...] = ()
    terminate: tuple[str, ...] = ()
    kill: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MeshState:
    """State of all processes.

    Attributes:
        processes: states in the order of the plan.
        keep: the mesh stays up when all students have ended.
        stopping: the mesh is stopping.
        urgent: it stops at once, without grace periods.
    """

    processes: tuple[ProcessState, ...]
    keep: bool = False
    stopping: bool = False
    urgent: bool = False

    def of(self, name: str) -> ProcessState:
        """Return the state of a process."""
        return next(one for one in self.processes if one.spec.name == name)

    def with_role(self, role: Role) -> list[ProcessState]:
        """Return the states of all processes of a role."""
        return [one for one in self.processes if one.spec.role == role]

    @property
    def up(self) -> bool:
        """Whether each process is ready, or is a student that has ended."""
        there = all(one.phase in ("running", "done", "failed") for one in self.processes)
        return there and self.broken is None and not self.stopping

    @property
    def over(self) -> bool:
        """Whether the mesh has ended."""
        return self.stopping and not any(one.alive for one in self.processes)

    @property
    def broken(self) -> ProcessState | None:
        """First coordinator or teacher in the plan that has failed; None: none."""
        failed = (one for one in self.processes if one.phase == "failed")
        return next((one for one in failed if one.spec.role != "student"), None)

    @property
    def exit_code(self) -> int:
        """Exit code of the student that failed first, 1 after a signal; 0: none has failed."""
        failed = [one for one in self.with_role("student") if one.phase == "failed"]
        if not failed:
            return 0
        return max(1, min(failed, key=lambda one: one.since_s).code or 1)


def initial_state(specs: Iterable[ProcessSpec], keep: bool = False) -> MeshState:
    """Return the state of a mesh before any process is started.

    Raises:
        ValueError: two processes share a name, or there is not exactly one coordinator.
    """
    mesh = MeshState(tuple(ProcessState(spec) for spec in specs), keep)
    names = [one.spec.name for one in mesh.processes]
    if len(set(names)) < len(names) or len(mesh.with_role("coordinator")) != 1:
        raise ValueError(f"one coordinator, and a name for each: {names}")
    return mesh


def started(mesh: MeshState, name: str, now: float) -> MeshState:
    """Record the start of a process; call `ended` next if the start fails."""
    one = mesh.of(name)
    due_s = now + one.spec.ready_s
    one = replace(one, phase="starting", since_s=now, due_s=due_s, starts=one.starts + 1)
    return _with(mesh, one)


def ready(mesh: MeshState, name: str, now: float) -> MeshState:
    """Record that a process is ready, if it is starting."""
    one = mesh.of(name)
    if one.phase != "starting":
        return mesh
    return _with(mesh, replace(one, phase="running", since_s=now, served=True))


def ended(
    mesh: MeshState, name: str, code: int, ran_s: float, now: float, rng: RandomLike
) -> MeshState:
    """Record that a process has ended.

    Args:
        mesh: the state before.
        name: name of the process.
        code: exit code, -N after signal N.
        ran_s: seconds from its start to its end.
        now: seconds of a monotonic clock.
        rng: source of jitter for the pause before a restart.
    """
    one = mesh.of(name)
    early_ends = 0 if ran_s >= HEALTHY_S else one.early_ends + 1
    ending = _ending(one, code)
    one = replace(one, since_s=now, early_ends=early_ends, code=code)
    match ending:
        case "left" | "done":
            return _with(mesh, replace(one, phase=ending))
        case "failed" | "hopeless":
            one = replace(one, failures=one.failures + 1)
    if ending == "hopeless" or _given_up(one):
        return _with(mesh, replace(one, phase="failed"))
    pause_s = retry_s(max(early_ends - 1, 0), rng, BASE_S, CAP_S)
    return _with(mesh, replace(one, phase="due", due_s=now + pause_s))


def stop_requested(mesh: MeshState, urgent: bool = False) -> MeshState:
    """Record a request to stop the mesh, in order or at once."""
    return replace(mesh, stopping=True, urgent=mesh.urgent or urgent)


def decide(mesh: MeshState, now: float) -> tuple[MeshState, MeshActions]:
    """Return the next state, and the actions to take now.

    The caller calls `started` for each process in `start`. Kills are repeated until the process
    ends; other actions are not.
    """
    if not mesh.stopping and _finished(mesh):
        mesh = stop_requested(mesh)
    if mesh.stopping:
        return _leave(mesh, now)
    start = tuple(
        one.spec.name
        for one in mesh.processes
        if one.phase == "due" and now >= one.due_s and _may_start(mesh, one.spec)
    )
    return mesh, MeshActions(start, kill=_late(mesh, now))


def _finished(mesh: MeshState) -> bool:
    """Whether all students have ended, or a coordinator or teacher has failed."""
    students = mesh.with_role("student")
    over = bool(students) and all(one.phase in ("done", "failed") for one in students)
    return mesh.broken is not None or (over and not mesh.keep)


def _may_start(mesh: MeshState, spec: ProcessSpec) -> bool:
    """Whether the processes that it needs are ready: a student needs a teacher of each service."""
    if spec.role == "coordinator":
        return True
    if not any(one.phase == "running" for one in mesh.with_role("coordinator")):
        return False
    teachers = mesh.with_role("teacher")
    served = {one.spec.group for one in teachers if one.phase == "running"}
    return spec.role == "teacher" or served == {one.spec.group for one in teachers}


def _leave(mesh: MeshState, now: float) -> tuple[MeshState, MeshActions]:
    """Stop students first, then teachers, then the coordinator; start nothing."""
    alive = [one.spec.role for one in mesh.processes if one.alive]
    last = max(alive, key=ROLES.index, default=None)
    terminate: list[str] = []
    processes: list[ProcessState] = []
    for one in mesh.processes:
        if one.phase == "due":
            one = replace(one, phase="left", since_s=now)
        elif one.phase in ("starting", "running") and (mesh.urgent or one.spec.role == last):
            terminate.append(one.spec.name)
            one = replace(one, phase="leaving", since_s=now, due_s=now + one.spec.grace_s)
        processes.append(one)
    mesh = replace(mesh, processes=tuple(processes))
    if not mesh.urgent:
        return mesh, MeshActions(terminate=tuple(terminate), kill=_late(mesh, now))
    return mesh, MeshActions(kill=tuple(one.spec.name for one in processes if one.alive))


def _late(mesh: MeshState, now: float) -> tuple[str, ...]:
    late = (one for one in mesh.processes if one.phase in ("starting", "leaving"))
    return tuple(one.spec.name for one in late if now > one.due_s)


def _ending(one: ProcessState, code: int) -> NodeEnding:
    """Classify an end. A coordinator or teacher that ends unexpectedly has failed."""
    was_told = one.phase == "leaving"
    if one.spec.role == "student":
        return ending_of(code, was_told, one.spec.is_edl)
    if was_told:
        return "left"
    # A process that was once ready has valid options, so its exit code does not mean wrong usage.
    return "hopeless" if code == USAGE_CODE and not one.served else "failed"


def _given_up(one: ProcessState) -> bool:
    """Whether the process is not restarted any more."""
    if one.spec.role == "student":
        return one.failures > one.spec.retries
    return not one.served and one.failures >= ATTEMPTS


def _with(mesh: MeshState, changed: ProcessState) -> MeshState:
    processes = (changed if one.spec.name == changed.spec.name else one for one in mesh.processes)
    return replace(mesh, processes=tuple(processes))
