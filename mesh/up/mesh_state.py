"""Decides when the processes of a mesh start, restart, fail and stop.

Teachers start once the coordinator is ready, students once each service has a ready teacher or a
running fleet. They stop in the reverse order, so that students have teachers, and teachers a
coordinator, until they end.

A process that ends unexpectedly is restarted: at once the first time, then after growing pauses
while it keeps ending early. A student fails when its retries are used up. A coordinator or teacher
that does not get ready in `ATTEMPTS` starts fails, and then the mesh fails. Wrong options make a
command of `edl` fail without a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from ...scheduler.backoff import RandomLike, retry_s
from ...scheduler.job_states import USAGE_CODE, NodeEnding, ending_of

Role = Literal["coordinator", "teacher", "student"]
#: due: to be started, now or after a pause; starting: not ready yet; running: ready; leaving: sent
#: SIGTERM. Final phases: done (a student succeeded), failed (not restarted), left (ended while
#: leaving, or still due when the mesh stopped).
Phase = Literal["due", "starting", "running", "leaving", "done", "failed", "left"]

ALIVE: Final = ("starting", "running", "leaving")
#: Start order.
ROLES: Final[tuple[Role, ...]] = ("coordinator", "teacher", "student")
#: The end of a process counts as early if it comes within these seconds after the start.
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
        grace_s: seconds after SIGTERM within which it must end; otherwise it is killed.
        ready_s: seconds after its start within which it must be ready; otherwise it is killed.
        retries: number of failures that a student survives.
        argv: arguments of `edl`, or a program with arguments. `{coordinator}` is the Redis URL.
        is_edl: whether it is a command of `edl`, with known exit codes.
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
        was_ready: whether it was ready at least once.
        starts: number of starts.
        early_ends: number of consecutive early ends, see `HEALTHY_S`.
        failures: number of failures.
        code: exit code of the latest run that ended, -N after signal N; None: no run has ended.
    """

    spec: ProcessSpec
    phase: Phase = "due"
    since_s: float = 0.0
    due_s: float = float("-inf")
    was_ready: bool = False
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
        return next(process for process in self.processes if process.spec.name == name)

    def with_role(self, role: Role) -> list[ProcessState]:
        """Return the states of all processes of a role."""
        return [process for process in self.processes if process.spec.role == role]

    @property
    def up(self) -> bool:
        """Whether each process is ready, or is a student that has ended."""
        all_ready = all(
            process.phase in ("running", "done", "failed") for process in self.processes
        )
        return all_ready and self.broken is None and not self.stopping

    @property
    def over(self) -> bool:
        """Whether the mesh has ended."""
        return self.stopping and not any(process.alive for process in self.processes)

    @property
    def broken(self) -> ProcessState | None:
        """First coordinator or teacher in the plan that has failed; None: none."""
        failed = (process for process in self.processes if process.phase == "failed")
        return next((process for process in failed if process.spec.role != "student"), None)

    @property
    def exit_code(self) -> int:
        """Exit code of the student that failed first, 1 after a signal; 0: none has failed."""
        failed = [process for process in self.with_role("student") if process.phase == "failed"]
        if not failed:
            return 0
        return max(1, min(failed, key=lambda process: process.since_s).code or 1)


def initial_state(specs: Iterable[ProcessSpec], keep: bool = False) -> MeshState:
    """Return the state of a mesh before any process is started.

    Raises:
        ValueError: two processes share a name, or there is not exactly one coordinator.
    """
    mesh = MeshState(tuple(ProcessState(spec) for spec in specs), keep)
    names = [process.spec.name for process in mesh.processes]
    if len(set(names)) < len(names) or len(mesh.with_role("coordinator")) != 1:
        raise ValueError(f"a mesh has one coordinator, and no two equal names: {names}")
    return mesh


def started(mesh: MeshState, name: str, now: float) -> MeshState:
    """Record the start of a process; call `ended` next if the start fails."""
    process = mesh.of(name)
    due_s = now + process.spec.ready_s
    process = replace(
        process, phase="starting", since_s=now, due_s=due_s, starts=process.starts + 1
    )
    return _with_process(mesh, process)


def ready(mesh: MeshState, name: str, now: float) -> MeshState:
    """Record that a process is ready, if it is starting."""
    process = mesh.of(name)
    if process.phase != "starting":
        return mesh
    return _with_process(mesh, replace(process, phase="running", since_s=now, was_ready=True))


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
    process = mesh.of(name)
    early_ends = 0 if ran_s >= HEALTHY_S else process.early_ends + 1
    ending = _ending(process, code)
    process = replace(process, since_s=now, early_ends=early_ends, code=code)
    match ending:
        case "left" | "done":
            return _with_process(mesh, replace(process, phase=ending))
        case "failed" | "hopeless":
            process = replace(process, failures=process.failures + 1)
    if ending == "hopeless" or _is_given_up(process):
        return _with_process(mesh, replace(process, phase="failed"))
    pause_s = retry_s(max(early_ends - 1, 0), rng, BASE_S, CAP_S)
    return _with_process(mesh, replace(process, phase="due", due_s=now + pause_s))


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
        return _stop_roles(mesh, now)
    start = tuple(
        process.spec.name
        for process in mesh.processes
        if process.phase == "due" and now >= process.due_s and _may_start(mesh, process.spec)
    )
    return mesh, MeshActions(start, kill=_overdue(mesh, now))


def _finished(mesh: MeshState) -> bool:
    """Whether all students have ended, unless `keep`; or a coordinator or teacher has failed."""
    students = mesh.with_role("student")
    all_ended = bool(students) and all(process.phase in ("done", "failed") for process in students)
    return mesh.broken is not None or (all_ended and not mesh.keep)


def _may_start(mesh: MeshState, spec: ProcessSpec) -> bool:
    """Whether the coordinator is ready and, for a student, a teacher or fleet of each service."""
    if spec.role == "coordinator":
        return True
    if not any(process.phase == "running" for process in mesh.with_role("coordinator")):
        return False
    teachers = mesh.with_role("teacher")
    served = {process.spec.group for process in teachers if process.phase == "running"}
    return spec.role == "teacher" or served == {process.spec.group for process in teachers}


def _stop_roles(mesh: MeshState, now: float) -> tuple[MeshState, MeshActions]:
    """Stop students first, then teachers, then the coordinator; start nothing."""
    alive = [process.spec.role for process in mesh.processes if process.alive]
    last = max(alive, key=ROLES.index, default=None)
    terminate: list[str] = []
    processes: list[ProcessState] = []
    for process in mesh.processes:
        if process.phase == "due":
            process = replace(process, phase="left", since_s=now)
        elif process.phase in ("starting", "running") and (
            mesh.urgent or process.spec.role == last
        ):
            terminate.append(process.spec.name)
            process = replace(
                process, phase="leaving", since_s=now, due_s=now + process.spec.grace_s
            )
        processes.append(process)
    mesh = replace(mesh, processes=tuple(processes))
    if not mesh.urgent:
        return mesh, MeshActions(terminate=tuple(terminate), kill=_overdue(mesh, now))
    return mesh, MeshActions(
        kill=tuple(process.spec.name for process in processes if process.alive)
    )


def _overdue(mesh: MeshState, now: float) -> tuple[str, ...]:
    with_deadline = (
        process for process in mesh.processes if process.phase in ("starting", "leaving")
    )
    return tuple(process.spec.name for process in with_deadline if now > process.due_s)


def _ending(process: ProcessState, code: int) -> NodeEnding:
    """Classify an end. A coordinator or teacher that ends unexpectedly has failed."""
    was_leaving = process.phase == "leaving"
    if process.spec.role == "student":
        return ending_of(code, was_leaving, process.spec.is_edl)
    if was_leaving:
        return "left"
    # A process that was once ready has valid options, so its exit code does not mean wrong usage.
    return "hopeless" if code == USAGE_CODE and not process.was_ready else "failed"


def _is_given_up(process: ProcessState) -> bool:
    """Whether the process is not restarted any more."""
    if process.spec.role == "student":
        return process.failures > process.spec.retries
    return not process.was_ready and process.failures >= ATTEMPTS


def _with_process(mesh: MeshState, changed: ProcessState) -> MeshState:
    processes = (
        changed if process.spec.name == changed.spec.name else process for process in mesh.processes
    )
    return replace(mesh, processes=tuple(processes))
