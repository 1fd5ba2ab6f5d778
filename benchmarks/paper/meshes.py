"""Runs of the simulator that the reproductions of the paper's section 4 share.

It is the exact data plane: the modules that decide in a live mesh, in virtual time. Devices do not
jitter, as the paper gives no variance; machines are linked by 10 Gbit/s, and a picture travels as
150,528 bytes (224 x 224 x 3), its soft labels as 4,000. The paper leaves `ut` and `lt` to the user;
they are what `edl plan` would say: `lt` lasts until a batch is labelled that is pulled at `lt`.
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
    """Students and teachers that are alike.

    Attributes:
        t_s_s: seconds per sample of a student.
        t_t_s: seconds per sample of a teacher.
        teachers: of all students together.
        batch: samples of a batch.
        students: ranks of one job, in one server.
        connection_s: what each teacher costs each step of the server that it is connected to.
    """

    t_s_s: float
    t_t_s: float
    teachers: int
    batch: int
    students: int = 1
    connection_s: float = 0.0


def alone(t_s_s: float, *, batch: int, batches: int, students: int = 1) -> float:
    """Samples per second of students that ask nobody for labels (N-training; Online).

    Args:
        t_s_s: seconds per sample; Online, of student and teacher together.
        batch: samples of a batch.
        batches: that each trains.
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


def taught(mesh: Mesh, *, batches: int) -> float:
    """Samples per second of students that have all teachers of the mesh (EDL-Dist).

    The rate is that of the end, as `_rate` says.

    Args:
        mesh: each student has the same number of its teachers.
        batches: that each student trains.
    """
    share = mesh.teachers // mesh.students
    if share * mesh.students != mesh.teachers:
        raise ValueError(
            f"{mesh.teachers} teachers cannot be shared equally by {mesh.students} students"
        )
    return _rate(_scenario(mesh, batches, (share, share)), share)


def wanted(mesh: Mesh, *, batches: int) -> int:
    """How many teachers the students want in the end, when Algorithm 1 decides.

    Args:
        mesh: teachers that are there to be had.
        batches: that each student trains.
    """
    result = simulate(_scenario(mesh, batches, (1, mesh.teachers)), random.Random)
    return sum(student.want for student in result.students)


def _scenario(mesh: Mesh, batches: int, bounds: tuple[int, int]) -> Scenario:
    """What is simulated, with least and most teachers of a student."""
    # Thresholds for all the teachers that it may have, as those it will have are not known yet.
    windows = WINDOW * mesh.teachers / mesh.students
    room = thresholds(1 / (mesh.batch * mesh.t_s_s), mesh.batch * mesh.t_t_s, 0.0, windows, 0, inf)
    learners = StudentGroup(
        "student",
        mesh.t_s_s,
        count=mesh.students,
        batch=mesh.batch,
        together=mesh.students > 1,
        teachers_min=bounds[0],
        teachers_max=bounds[1],
        upper=room.upper,
        lower=room.lower,
        # Its server also has the connections of the other ranks' teachers.
        connection_s=mesh.connection_s * mesh.students,
    )
    labellers = TeacherGroup("teacher", mesh.t_t_s, count=mesh.teachers)
    return Scenario((learners,), (labellers,), batches=batches, link=LINK, window=WINDOW)


def _rate(scenario: Scenario, period: int = 1) -> float:
    """Samples per second of all students, over about the last third of their batches.

    What the first windows bring at once has to be used up before a rate is the lasting one. It is
    taken from the end of one step to that of another, a multiple of `period` steps later: teachers
    that began together also answer together, in bursts of as many batches as there are teachers.
    """
    result = simulate(scenario, random.Random, keep_batches=True)
    (group,) = scenario.students
    ends: dict[str, list[float]] = {}
    for step in result.stepped:
        ends.setdefault(step.student, []).append(step.ended_s)
    total = 0.0
    for ended in ends.values():
        steps = max(len(ended) // 3 // period, 1) * period
        total += steps * group.batch / (ended[-1] - ended[-1 - steps])
    return total


@dataclass(frozen=True, slots=True)
class Scaling:
    """Amdahl's law: seconds per sample on c cores are `fixed_s + shared_s / c`.

    Attributes:
        fixed_s: what more cores do not shorten.
        shared_s: what they do.
    """

    fixed_s: float
    shared_s: float

    @classmethod
    def through(cls, first: tuple[int, float], second: tuple[int, float]) -> Scaling:
        """The law through two measured cells.

        Args:
            first: cores, and samples per second on them.
            second: the same for another number of cores.

        Raises:
            ValueError: the numbers of cores are equal or a rate is not positive; or more cores are
                slower, or faster than in proportion, of which no such law tells.
        """
        (c1, r1), (c2, r2) = sorted((first, second))
        if c1 < 1 or c1 == c2 or not (0 < r1 < inf and 0 < r2 < inf):
            raise ValueError(f"needs two numbers of cores with rates above 0: {first}, {second}")
        t1, t2 = 1 / r1, 1 / r2
        shared_s = (t1 - t2) * c1 * c2 / (c2 - c1)
        fixed_s = t1 - shared_s / c1
        if shared_s < 0 or fixed_s < -1e-9 * t2:
            raise ValueError(f"no Amdahl's law goes through {first} and {second}")
        return cls(max(fixed_s, 0.0), shared_s)

    def seconds(self, cores: int) -> float:
        """Seconds per sample."""
        return self.fixed_s + self.shared_s / cores

    def rate(self, cores: int) -> float:
        """Samples per second."""
        return 1 / self.seconds(cores)


def labelling_rate(online: float, alone: float) -> float:
    """Samples per second that a device labels, from two rates of training on it.

    Both models take turns there: 1 / online = 1 / alone + 1 / labelling (paper, section 2).

    Args:
        online: samples per second with the teacher on the same device.
        alone: samples per second without it (N-training).

    Raises:
        ValueError: not 0 < online < alone.
    """
    if not (0 < online < alone and isfinite(alone)):
        raise ValueError(f"needs 0 < online < alone, not {online} and {alone}")
    return 1 / (1 / online - 1 / alone)
