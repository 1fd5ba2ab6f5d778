"""Simulations that the reproductions of the paper's section 4 share.

The simulator drives the same modules as a live mesh, in virtual time. Devices have no jitter, as
the paper gives no variance; machines are linked by 10 Gbit/s; an image has 150,528 bytes (224 x 224
x 3), its soft labels 4,000. The paper leaves `ut` and `lt` to the user. Both are set as `edl plan`
advises: the volume `lt` lasts until a batch that is pulled at `lt` is labelled.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from math import inf, isfinite
from typing import Final

from ...scheduler.pipeline_model import thresholds
from ...scheduler.simulator import simulate
from ...scheduler.simulator.scenario import NetworkLink, Scenario, StudentGroup, TeacherGroup

LINK: Final = NetworkLink(bandwidth_bytes_per_s=1.25e9, latency_s=0.0002)
#: Requests in flight per teacher.
WINDOW: Final = 2


@dataclass(frozen=True, slots=True)
class Mesh:
    """A mesh of equal students and equal teachers.

    Attributes:
        t_s_s: seconds per sample of a student.
        t_t_s: seconds per sample of a teacher.
        teachers: number of teachers of all students together.
        batch: samples of a batch.
        students: number of students: ranks of one job, in one server.
        connection_s: seconds that each connected teacher adds to each step of the server.
    """

    t_s_s: float
    t_t_s: float
    teachers: int
    batch: int
    students: int = 1
    connection_s: float = 0.0


def rate_alone(t_s_s: float, *, batch: int, batches: int, students: int = 1) -> float:
    """Simulate students without remote teachers (N-training, Online); return samples per second.

    Args:
        t_s_s: seconds per sample; for Online, of student and teacher together.
        batch: samples of a batch.
        batches: batches of each student.
        students: ranks of one job.
    """
    group = StudentGroup(
        "student",
        t_s_s,
        count=students,
        batch=batch,
        together=students > 1,
        needs_labels=False,
    )
    return _rate(Scenario((group,), batches=batches, link=LINK))


def rate_on_mesh(mesh: Mesh, *, batches: int) -> float:
    """Simulate students that have all teachers of the mesh (EDL-Dist); return samples per second.

    The rate is that of the last third, see `_rate`.

    Args:
        mesh: the mesh; its students share the teachers equally.
        batches: batches of each student.

    Raises:
        ValueError: the teachers cannot be shared equally.
    """
    share = mesh.teachers // mesh.students
    if share * mesh.students != mesh.teachers:
        raise ValueError(
            f"{mesh.teachers} teachers cannot be shared equally by {mesh.students} students"
        )
    return _rate(_scenario(mesh, batches, (share, share)), share)


def teachers_wanted(mesh: Mesh, *, batches: int) -> int:
    """Return how many teachers the students want after all batches, as decided by Algorithm 1.

    Args:
        mesh: the mesh; each student may get any number of its teachers.
        batches: batches of each student.
    """
    result = simulate(_scenario(mesh, batches, (1, mesh.teachers)), random.Random)
    return sum(student.want for student in result.students)


def _scenario(mesh: Mesh, batches: int, bounds: tuple[int, int]) -> Scenario:
    """Return the scenario of a mesh; `bounds`: least and most teachers of a student."""
    # Thresholds as if each student had its share of all teachers: its real number is not known yet.
    in_flight = WINDOW * mesh.teachers / mesh.students
    steps_per_s = 1 / (mesh.batch * mesh.t_s_s)
    buffer = thresholds(steps_per_s, mesh.batch * mesh.t_t_s, 0.0, in_flight, 0, inf)
    students = StudentGroup(
        "student",
        mesh.t_s_s,
        count=mesh.students,
        batch=mesh.batch,
        together=mesh.students > 1,
        teachers_min=bounds[0],
        teachers_max=bounds[1],
        upper=buffer.upper,
        lower=buffer.lower,
        # The server also has the connections of the other ranks' teachers.
        connection_s=mesh.connection_s * mesh.students,
    )
    teachers = TeacherGroup("teacher", mesh.t_t_s, count=mesh.teachers)
    return Scenario((students,), (teachers,), batches=batches, link=LINK, window=WINDOW)


def _rate(scenario: Scenario, period: int = 1) -> float:
    """Return the samples per second of all students, over about the last third of their batches.

    By then, the batches that the first windows delivered at once are used up. The rate is computed
    over a multiple of `period` steps: teachers that start together answer together, in bursts of as
    many batches as there are teachers.
    """
    result = simulate(scenario, random.Random, keep_batches=True)
    (group,) = scenario.students
    ends_by_student: dict[str, list[float]] = {}
    for step in result.steps:
        ends_by_student.setdefault(step.student, []).append(step.ended_s)
    total = 0.0
    for ends_s in ends_by_student.values():
        steps = max(len(ends_s) // 3 // period, 1) * period
        total += steps * group.batch / (ends_s[-1] - ends_s[-1 - steps])
    return total


@dataclass(frozen=True, slots=True)
class Scaling:
    """Amdahl's law: seconds per sample on c cores are `fixed_s + shared_s / c`.

    Attributes:
        fixed_s: time that does not depend on the cores.
        shared_s: time that the cores share.
    """

    fixed_s: float
    shared_s: float

    @classmethod
    def through(cls, first: tuple[int, float], second: tuple[int, float]) -> Scaling:
        """Fit the law to two measured rates.

        Args:
            first: number of cores, and samples per second on them.
            second: the same for another number of cores.

        Raises:
            ValueError: the numbers of cores are equal, a rate is not positive, or more cores are
                slower or more than proportionally faster, which the law cannot describe.
        """
        (c1, r1), (c2, r2) = sorted((first, second))
        if c1 < 1 or c1 == c2 or not (0 < r1 < inf and 0 < r2 < inf):
            raise ValueError(f"needs two numbers of cores with rates above 0: {first}, {second}")
        t1, t2 = 1 / r1, 1 / r2
        shared_s = (t1 - t2) * c1 * c2 / (c2 - c1)
        fixed_s = t1 - shared_s / c1
        if shared_s < 0 or fixed_s < -1e-9 * t2:
            raise ValueError(f"Amdahl's law cannot describe both {first} and {second}")
        return cls(max(fixed_s, 0.0), shared_s)

    def seconds(self, cores: int) -> float:
        """Return the seconds per sample."""
        return self.fixed_s + self.shared_s / cores

    def rate(self, cores: int) -> float:
        """Return the samples per second."""
        return 1 / self.seconds(cores)


def labelling_rate(online: float, alone: float) -> float:
    """Return the samples per second that a device labels, from two rates of training on it.

    Online, both models share the device: 1 / online = 1 / alone + 1 / labelling (paper, section 2).

    Args:
        online: samples per second with the teacher on the same device.
        alone: samples per second without it (N-training).

    Raises:
        ValueError: not 0 < online < alone.
    """
    if not (0 < online < alone and isfinite(alone)):
        raise ValueError(f"needs 0 < online < alone, not {online} and {alone}")
    return 1 / (1 / online - 1 / alone)
