"""How fast a distillation is on given devices, by stages: the slowest decides, jitter takes a bit.

Per student and batch, in seconds:

    student    batch of the student + hand-over by the reader
    teacher    batch of a teacher + hand-over at it; of n teachers the n-th part
    round trip (batch of a teacher + transfer there and back) / requests in flight: with two of them
               the travel is hidden for as long as it is shorter than the computing; readers have
               more in flight where it is not
    links      bytes of a batch over the link of a teacher, and all of them over the student's
    head of    batches come in order: while the slowest teacher has the first, others are buffered
    line       up to `ut`

A prediction is of the steady state. What is fixed per batch was measured (`Costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, inf, isfinite

from .cluster import Cluster, Job
from .stages import Costs, DeviceGroup, Mesh, StudentPipeline, Thresholds


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


@dataclass(frozen=True, slots=True)
class Stage:
    """What limits the rate, and where to.

    Attributes:
        name: in words: "teachers", "the student's step", ...
        samples_per_s: what it would allow, of the whole job.
        remedy: what would lift it.
    """

    name: str
    samples_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """What is expected of a mesh in its steady state.

    Attributes:
        samples_per_s: of all students together.
        stages: slowest first: the first is the bottleneck, the second the next one.
        thresholds: `ut` and `lt` of the student with the fewest teachers, in batches.
        first_batch_s: from the first pull to the first labelled batch.
        lost: share of what the slowest stage allows that is lost by jitter or by waiting for a
            student with fewer teachers.
    """

    samples_per_s: float
    stages: tuple[Stage, ...]
    thresholds: Thresholds
    first_batch_s: float
    lost: float


def predict(cluster: Cluster, job: Job, mesh: Mesh, costs: Costs | None = None) -> Prediction:
    """What a mesh does.

    Args:
        cluster: its devices.
        job: its rates are those of the devices, unhindered.
        mesh: who does what.
        costs: what is fixed per batch; None: as measured.

    Raises:
        ValueError: a kind of devices is not in the cluster, or has no rate for what it is to do;
            or there is no teacher.
    """
    if not mesh.teams or min(team.count for team in mesh.teams) <= 0 or mesh.students < 1:
        raise ValueError("a mesh has at least one student and one teacher")
    costs, total = costs or Costs(), 0.0
    seats: list[StudentPipeline] = []
    allowed: dict[str, float] = {}
    for share, there in _moments(cluster, mesh.teams):
        dealt = [
            (students, StudentPipeline.of(cluster, job, mesh, teams, costs))
            for students, teams in deal(there, mesh.students)
        ]
        total += share * _together(job, [(students, seat.rate) for students, seat in dealt])
        for of_each in zip(*(seat.stages() for _, seat in dealt), strict=True):
            name = of_each[0][0]
            rates = [(n, rate) for (n, _), (_, rate, _) in zip(dealt, of_each, strict=True)]
            allowed[name] = allowed.get(name, 0.0) + share * _together(job, rates)
        seats += [seat for _, seat in dealt]
    worst = min(seats, key=lambda seat: seat.rate)
    stages = sorted(
        (Stage(name, allowed[name] * mesh.rows, remedy) for name, _, remedy in worst.stages()),
        key=lambda stage: stage.samples_per_s,
    )
    return Prediction(
        samples_per_s=total * mesh.rows,
        stages=tuple(stages),
        thresholds=worst.limits,
        first_batch_s=worst.reaction_s,
        lost=max(0.0, 1 - total * mesh.rows / stages[0].samples_per_s),
    )


def _moments(
    cluster: Cluster, teams: Sequence[DeviceGroup]
) -> list[tuple[float, tuple[DeviceGroup, ...]]]:
    """For which share of the time which teachers are there: as many as on average, or one more.

    Of 40 that are there for 97 % of the time, 38 or 39 are: with 8 students that wait for each
    other that is not 4.85 for each, but 4 for the slowest.
    """
    there = tuple(DeviceGroup(t.kind, t.count * cluster.kind(t.kind).availability) for t in teams)
    if len(there) > 1 or not float(teams[0].count).is_integer():
        return [(1.0, there)]
    kind, count = there[0].kind, there[0].count
    fewer = floor(count + 1e-9)
    share = count - fewer
    if share < 1e-9:
        return [(1.0, (DeviceGroup(kind, fewer),))]
    one_more = (share, (DeviceGroup(kind, fewer + 1),))
    # While none is there nothing is trained.
    return [one_more, (1 - share, (DeviceGroup(kind, fewer),))] if fewer else [one_more]


def _together(job: Job, rates: Sequence[tuple[int, float]]) -> float:
    """What all students do, of how many do what: who waits for the slowest does as that does."""
    if job.synchronous:
        return sum(students for students, _ in rates) * min(rate for _, rate in rates)
    return sum(students * rate for students, rate in rates)


def deal(teams: Sequence[DeviceGroup], students: int) -> list[tuple[int, tuple[DeviceGroup, ...]]]:
    """Who gets which teachers, as the coordinator's assignment shares them out: evenly.

    Args:
        teams: all teachers.
        students: how many share them.

    Returns:
        How many students have which teachers. One who has a part of a teacher, shares it. Teachers
        of several kinds are taken as an even mixture.
    """
    whole = float(teams[0].count).is_integer()
    if len(teams) > 1 or not whole:
        return [(students, tuple(DeviceGroup(team.kind, team.count / students) for team in teams))]
    kind, count = teams[0].kind, int(teams[0].count)
    if count >= students:
        each, more = divmod(count, students)
        groups = [(more, each + 1.0), (students - more, float(each))]
    else:
        each, more = divmod(students, count)
        groups = [(more * (each + 1), 1 / (each + 1)), ((count - more) * each, 1 / each)]
    return [(number, (DeviceGroup(kind, part),)) for number, part in groups if number]


def step_s(job: Job, kind: str, rows: int, costs: Costs | None = None) -> float:
    """Seconds of a student's batch, with its loader and without teachers: of N-training.

    Args:
        job: as of `predict`.
        kind: of the student's device.
        rows: of a batch.
        costs: with these, labelled batches come from a reader, which has them on disk.

    Raises:
        ValueError: the job has no rate for the kind.
    """
    own = job.rate("student", kind).batch_s(rows) + (0.0 if costs is None else costs.student_s)
    if job.source_samples_per_s is None:
        return own
    return max(own, rows / job.source_samples_per_s)


def online_s(job: Job, kind: str, rows: int) -> float:
    """Seconds of a batch where the student's device runs the teacher, too.

    Raises:
        ValueError: as for `step_s`, for either model.
    """
    return step_s(job, kind, rows) + job.rate("teacher", kind).batch_s(rows)
