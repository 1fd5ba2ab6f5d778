"""CPU use and latencies of Redis and a service manager with 10,000 teachers and 1,000 students.

The members are simulated (`load/`), the protocols are real. Each teacher registers, sends each
heartbeat in its own packet, answers probes, and may die or join; each student holds a stream and
reports every second. Redis and the manager are separate processes. After all teachers are admitted,
three phases follow: nothing happens; teachers die at random times; the students want more teachers
than there are, and teachers join.

A second run has a tenth of the members. The benchmark `assignment` adds the cost of one change
and of a rebuild, at full size.
"""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil

from ..coordinator.calling.client import ask_status
from ..coordinator.embedded import start_embedded
from ..coordinator.manager.overview import ADMITTED
from ..mesh.local import COORDINATOR_READY
from ..runtime.errors import ProcessFailed
from ..runtime.lifecycle import wait_until
from ..runtime.supervise import Process, python_command, start
from . import assignment
from .children import Child
from .load.registry_client import SPEEDS
from .load.students import run_students
from .load.teachers import run_teachers
from .report import BenchmarkReport, Goal, Row, quantile

if TYPE_CHECKING:
    import redis

log = logging.getLogger(__name__)

SERVICE: Final = "crowd"
TTL_S: Final = 6.0
FULL_TEACHERS, FULL_STUDENTS = 10_000, 1_000
#: Share of the teachers that students want at first; the rest can replace dead ones at once.
WANTED_SHARE: Final = 0.9
#: Share of the teachers that die; as many join.
CHANGED_SHARE: Final = 0.02
#: Limits of the cores that Redis and the manager use at full size. They scale with the number of
#: teachers, down to `LEAST_SCALE`: with fewer teachers, most of the work does not depend on their
#: number.
REDIS_CORES, MANAGER_CORES = 0.12, 1.0
LEAST_SCALE: Final = 0.1
#: Limits in seconds: from the registration of a teacher to its assignment, and from the end of its
#: lease until a student learns of the loss.
JOIN_S, DEATH_S = 0.5, 0.25
_READY_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class LoadStats:
    """Figures for one number of teachers and students.

    Attributes:
        teachers: number of teachers.
        students: number of students.
        quiet: cores (CPU seconds per second) of "redis" and "manager" while nothing happens.
        busy: the same while teachers die, or while they join, whichever is greater.
        join_s: seconds from registration to assignment of each teacher that joined.
        death_s: seconds from the end of the lease until a student learns of the loss, for each
            dead teacher that was assigned.
        beats_per_s: heartbeats per second of all teachers.
        late_s: greatest delay of a heartbeat, in seconds: shows whether the simulation kept up.
    """

    teachers: int
    students: int
    quiet: Mapping[str, float]
    busy: Mapping[str, float]
    join_s: Sequence[float]
    death_s: Sequence[float]
    beats_per_s: float
    late_s: float


def run(
    quick: bool,
    teachers: int = FULL_TEACHERS,
    students: int = FULL_STUDENTS,
    seconds: float | None = None,
) -> BenchmarkReport:
    """Measure with all members, then with a tenth of them.

    Args:
        quick: measure only with a tenth of the members.
        teachers: number of teachers.
        students: number of students.
        seconds: length of each phase; None: 20 s, or 5 s if `quick`.
    """
    tenth = max(teachers // 10, 10), max(students // 10, 1)
    sizes = [tenth] if quick else [(teachers, students), tenth]
    phase_s = seconds or (5.0 if quick else 20.0)
    # With few members, a tenth of them is the same size.
    runs = [measure(*size, phase_s) for size in dict.fromkeys(sizes)]
    goals = [goal for stats in runs for goal in _goals(stats)]
    goals += assignment.run(quick=quick, teachers=teachers, students=students).goals
    return BenchmarkReport([_row(stats) for stats in runs], goals)


def measure(teachers: int, students: int, seconds: float, ttl_s: float = TTL_S) -> LoadStats:
    """Run all phases with one number of members.

    Args:
        teachers: number of teachers.
        students: number of students.
        seconds: length of each phase.
        ttl_s: TTL of all leases; there are pauses of this length between phases.

    Raises:
        ProcessFailed: a process did not start, or ended unexpectedly.
    """
    changes = max(round(teachers * CHANGED_SHARE), 5)
    with ExitStack() as stack:
        server, url = start_embedded()
        stack.callback(server.stop)
        arguments = ("coordinator", "serve", "--redis", url, "--ttl", ttl_s)
        manager = start(python_command("manager", "edl", *arguments, isolated=True))
        stack.callback(manager.stop)
        address = manager.expect(COORDINATOR_READY, _READY_S)[2]
        load = (teachers, ttl_s, changes, seconds)
        teacher_load = Child(stack, "the teachers", run_teachers, url, SERVICE, *load)
        wanted = _wanted_teachers(teachers, students)
        student_load = Child(stack, "the students", run_students, url, SERVICE, students, *wanted)
        size = f"{teachers:,} teachers and {students:,} students"
        log.info("waiting until %s are admitted", size)
        for child in (teacher_load, student_load):
            child.receive()
        _await_admission(address, teachers)
        meter = stack.enter_context(_meter(url, manager))
        time.sleep(ttl_s)  # until the work after the registrations is done
        log.info("%s: nothing happens for %g s", size, seconds)
        quiet = meter.over(seconds)
        log.info("%s: %d teachers die", size, changes)
        _next_phase(teacher_load, student_load)
        dying = meter.over(seconds + ttl_s)
        _next_phase(student_load)
        time.sleep(ttl_s)  # until all teachers are assigned
        log.info("%s: %d teachers join", size, changes)
        _next_phase(teacher_load)
        joining = meter.over(seconds + JOIN_S)
        _next_phase(teacher_load, student_load)
        of_teachers, of_students = teacher_load.receive(), student_load.receive()
        died = _assigned_deaths(of_teachers, of_students)
    return LoadStats(
        teachers=teachers,
        students=students,
        quiet=quiet,
        busy={name: max(dying[name], joining[name]) for name in dying},
        join_s=_latencies(of_teachers["joined"], of_students["gained"]),
        death_s=[late_s - ttl_s for late_s in _latencies(died, of_students["lost"])],
        beats_per_s=of_teachers["beats"] / of_teachers["beating_s"],
        late_s=of_teachers["late_s"],
    )


def _wanted_teachers(teachers: int, students: int) -> tuple[int, int]:
    """Return how many teachers a student wants at first, and how many more in the last phase.

    Students count in slow teachers; a fast teacher counts as several. In the last phase the
    students want more than all teachers, including those that join.
    """
    slow = teachers / students * statistics.mean(SPEEDS) / min(SPEEDS)
    return max(round(slow * WANTED_SHARE), 1), math.ceil(slow)


class _Meter:
    """Reads the CPU time of Redis and the manager."""

    def __init__(self, client: redis.Redis, manager: Process) -> None:
        self._client = client
        self._manager = psutil.Process(manager.pid)

    def over(self, seconds: float) -> dict[str, float]:
        """Return the cores that each uses (CPU seconds per second) over the next `seconds`."""
        began, before = time.monotonic(), self._used_s()
        time.sleep(seconds)
        took_s = time.monotonic() - began
        return {name: (used - before[name]) / took_s for name, used in self._used_s().items()}

    def _used_s(self) -> dict[str, float]:
        info: Any = self._client.info("cpu")
        return {
            "redis": info["used_cpu_sys"] + info["used_cpu_user"],
            "manager": sum(self._manager.cpu_times()[:2]),
        }


@contextmanager
def _meter(url: str, manager: Process) -> Iterator[_Meter]:
    import redis

    with redis.Redis.from_url(url) as client:
        yield _Meter(client, manager)


def _await_admission(manager: str, teachers: int) -> None:
    """Wait until all teachers are admitted.

    The status begins with the teachers that are not admitted, so its first teacher shows whether
    there are any.
    """

    def are_admitted() -> bool:
        (service,) = ask_status(manager, service=SERVICE, max_members=1).services
        return service.teacher_count == teachers and service.teachers[0].admission == ADMITTED

    if not wait_until(are_admitted, _READY_S, 1.0):
        raise ProcessFailed(f"{teachers} teachers were not admitted within {_READY_S:g} s")


def _next_phase(*children: Child) -> None:
    for child in children:
        child.tell("next")


def _assigned_deaths(
    of_teachers: Mapping[str, Any], of_students: Mapping[str, Any]
) -> dict[str, float]:
    """Return the time of the last heartbeat of each dead teacher that was assigned to a student.

    Students do not learn of the death of an idle teacher.
    """
    died: dict[str, float] = of_teachers["died"]
    return {
        name: at
        for name, at in died.items()
        if name in of_students["lost"]
        or (name in of_students["gained"] and of_students["freed"].get(name, at) >= at)
    }


def _latencies(since: Mapping[str, float], until: Mapping[str, float]) -> list[float]:
    """Return `until - since` of each name in `since`, in seconds; infinite if not in `until`."""
    return [until.get(name, math.inf) - at for name, at in since.items()]


def _goals(stats: LoadStats) -> list[Goal]:
    size = f"{stats.teachers:,} x {stats.students:,}"
    redis, manager = stats.quiet["redis"], stats.quiet["manager"]
    scale = max(stats.teachers / FULL_TEACHERS, LEAST_SCALE)
    join_s, death_s = (quantile(late_s, 0.99) for late_s in (stats.join_s, stats.death_s))
    return [
        Goal.judge_speed(f"{size}: Redis, cores", redis, "<=", REDIS_CORES * scale),
        Goal.judge_speed(f"{size}: manager, cores", manager, "<=", MANAGER_CORES * scale),
        Goal.judge(f"{size}: join to assignment p99, s", join_s, "<=", JOIN_S),
        Goal.judge(f"{size}: death beyond TTL p99, s", death_s, "<=", DEATH_S),
    ]


def _row(stats: LoadStats) -> Row:
    return {
        "teachers": stats.teachers,
        "students": stats.students,
        "beats_per_s": stats.beats_per_s,
        "latest_beat_s": stats.late_s,
        "redis_cores": stats.quiet["redis"],
        "redis_cores_busy": stats.busy["redis"],
        "manager_cores": stats.quiet["manager"],
        "manager_cores_busy": stats.busy["manager"],
        "join_p50_s": quantile(stats.join_s, 0.5),
        "join_p99_s": quantile(stats.join_s, 0.99),
        "death_p50_s": quantile(stats.death_s, 0.5),
        "death_p99_s": quantile(stats.death_s, 0.99),
    }
