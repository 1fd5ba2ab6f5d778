"""Prediction of a distillation's speed on given devices: its slowest stage decides.

Seconds per student and batch:

    student    batch of the student + hand-over by the reader
    teacher    (batch of a teacher + hand-over at it) / number of teachers
    round trip (batch of a teacher + transfer there and back) / requests in flight. Two requests
               hide the transfer while it is shorter than the computation; readers keep more in
               flight where it is longer
    links      bytes of a batch over the link of a teacher, and of all batches over the student's
    head of    batches are delivered in order: while the slowest teacher has the first one, others
    line       are buffered up to `ut`

Jitter takes a little off. A buffer that teachers fill and a student empties, both with jitter, is a
random walk between two walls. At the lower wall the student waits, at the upper one the teachers
do. As a diffusion with drift `d` and variance `v` between walls `K` apart, the flow lost at the
lower wall is d / (exp(2 d K / v) - 1), or v / 2K for d = 0 (Harrison, Brownian Motion and
Stochastic Flow Systems, 1985, section 5.6).

A prediction describes the steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, expm1, floor, hypot, inf, log1p

from .cluster import Cluster, DeviceLink, Distillation

#: Part of a link that batches can use; headers and acknowledgements take the rest.
FULL = 0.95
#: Part of the student's rate that jitter may cost before a larger buffer is worth its memory.
LOST = 0.005
#: Standard deviations of the reaction time that `lt` covers.
SPREADS = 3.0
#: Fixed seconds per batch, measured on loopback between processes: of a teacher, from the network
#: to its device and back; of a student, from the reader to the training loop.
TEACHER_BATCH_S = 0.3e-3
STUDENT_BATCH_S = 0.1e-3


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Teachers of one kind.

    Attributes:
        kind: name of their devices.
        count: number of devices; a fraction for one student of several.
    """

    kind: str
    count: float


@dataclass(frozen=True, slots=True)
class PlannedMesh:
    """Students and teachers of a plan.

    Attributes:
        student: kind of the students' devices.
        students: number of students.
        teams: the teachers.
        rows: rows of a student's batch.
    """

    student: str
    students: int
    teams: tuple[DeviceGroup, ...]
    rows: int

    @property
    def teachers(self) -> int:
        """Number of teachers."""
        return int(sum(team.count for team in self.teams))


def throughput(made: float, used: float, variance: float, room: float) -> float:
    """Return the throughput of the buffer, in the unit of the two rates.

    Args:
        made: batches per second labelled with unlimited room.
        used: batches per second trained with unlimited supply.
        variance: variance of their difference, in batches squared per second.
        room: batches that the buffer holds.
    """
    if made <= 0 or used <= 0:
        return 0.0
    ideal = min(made, used)
    if variance <= 0 or room == inf:
        return ideal
    one_by_one = 1 / (1 / made + 1 / used)
    if room <= 0:
        return one_by_one
    drift, reach = made - used, 2 * (made - used) * room / variance
    if abs(reach) < 1e-9:
        lost = variance / (2 * room)
    else:
        lost = 0.0 if reach > 700 else drift / expm1(reach)
    return min(max(used - lost, one_by_one), ideal)


def room_for(made: float, used: float, variance: float) -> float:
    """Return the buffer in batches at which jitter costs no more than `LOST` of the rate.

    Args:
        made: see `throughput`.
        used: see `throughput`.
        variance: see `throughput`.
    """
    if variance <= 0:
        return 0.0
    drift, target = abs(made - used), LOST * min(made, used)
    if drift < 1e-9 * used:
        return variance / (2 * target)
    return variance / (2 * drift) * log1p(drift / target)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The `ut` and `lt` of Algorithm 1, in batches of one student.

    Attributes:
        upper: above it no new batch is pulled.
        lower: below it pulling resumes.
        ideal: `upper` without a limit of memory.
    """

    upper: int
    lower: int
    ideal: int


def thresholds(
    used: float, reaction_s: float, spread_s: float, windows: float, cushion: float, most: float
) -> Thresholds:
    """Compute both thresholds.

    `lt` must last from the resumption of pulling until the first new batch is labelled: a transfer
    in each direction and a batch of the slowest teacher, with their spread. `ut` is far enough
    above it that all teachers have work when pulling resumes, and that jitter is absorbed.

    Args:
        used: batches per second that the student takes.
        reaction_s: seconds from sending a batch to an idle teacher to receiving its labels.
        spread_s: standard deviation of `reaction_s`.
        windows: requests that its teachers have in flight.
        cushion: batches against jitter, from `room_for`.
        most: batches that fit into memory.
    """
    lower = max(1, ceil(used * (reaction_s + SPREADS * spread_s)))
    ideal = lower + max(ceil(windows / 2), ceil(cushion), 1)
    upper = max(1, min(ideal, int(min(most, 1e12))))
    return Thresholds(upper, min(lower, upper - 1), ideal)


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Teachers of one kind, as one student uses them.

    Attributes:
        count: available teachers; a fraction is shared with other students.
        busy_s: seconds of a batch at one of them.
        link_s: seconds of a batch on its link, in the slower direction.
        wire_s: seconds of a batch from the student to it and back.
        jitter: relative jitter of a batch.
        wire_jitter: relative jitter of a transfer.
        window: requests in flight at each: enough to hide the transfer, as far as allowed.
    """

    count: float
    busy_s: float
    link_s: float
    wire_s: float
    jitter: float
    wire_jitter: float
    window: int

    @property
    def trip_s(self) -> float:
        """Seconds between answers that the transfer allows."""
        return (self.busy_s + self.wire_s) / self.window

    @property
    def slowest_s(self) -> float:
        """Longest seconds of a batch at one of them, behind others of the same window."""
        return max(self.window, 1 / min(self.count, 1)) * self.busy_s

    @property
    def rate(self) -> float:
        """Batches per second of all together."""
        return self.count / max(self.busy_s, self.link_s, self.trip_s)


@dataclass(frozen=True, slots=True)
class StudentPipeline:
    """A student with its teachers.

    Attributes:
        used: batches per second trained with unlimited supply.
        source: batches per second of its loader.
        groups: its teachers.
        wire: batches per second of its own link.
        jitter: relative jitter of a student's step.
        limits: `ut` and `lt`.
        reaction_s: seconds from sending a batch to an idle teacher to receiving its labels.
    """

    used: float
    source: float
    groups: tuple[GroupRates, ...]
    wire: float
    jitter: float
    limits: Thresholds
    reaction_s: float

    @classmethod
    def of(
        cls, cluster: Cluster, job: Distillation, mesh: PlannedMesh, teams: Sequence[DeviceGroup]
    ) -> StudentPipeline:
        """Return one student of the mesh, with these teachers."""
        rows, link = mesh.rows, cluster.kind(mesh.student).link
        own = job.rate("student", mesh.student)
        groups = tuple(_group_rates(cluster, job, team, rows, link) for team in teams)
        used = 1 / (own.batch_s(rows) + STUDENT_BATCH_S)
        source = inf if job.source_samples_per_s is None else job.source_samples_per_s / rows
        slowest = max(groups, key=lambda group: group.busy_s + group.wire_s)
        reaction_s = slowest.busy_s + slowest.wire_s
        windows = sum(group.window * group.count for group in groups)
        jitter = room_for(
            sum(group.count / group.busy_s for group in groups),
            used,
            _variance(groups, used, own.jitter),
        )
        # Batches that others label while the slowest teacher has the head of the line.
        ahead = min(used, source) * max(group.slowest_s for group in groups) - windows
        limits = thresholds(
            used=min(used, source),
            reaction_s=reaction_s,
            spread_s=hypot(slowest.busy_s * slowest.jitter, slowest.wire_s * slowest.wire_jitter),
            windows=windows,
            cushion=max(jitter, ahead),
            most=inf if job.buffer_bytes is None else job.buffer_bytes / job.batch_bytes(rows),
        )
        wire = 1 / _link_s(job, link, rows)
        return cls(used, source, groups, wire, own.jitter, limits, reaction_s)

    @property
    def made(self) -> float:
        """Batches per second labelled with unlimited room."""
        labelled = sum(group.rate for group in self.groups)
        return min(labelled, self.wire, self.source, self.head_of_line, self.pauses)

    @property
    def windows(self) -> float:
        """Requests in flight at all teachers; a fraction for shared ones."""
        return sum(group.window * group.count for group in self.groups)

    @property
    def head_of_line(self) -> float:
        """Batches per second while the slowest teacher keeps the first of them."""
        room = self.limits.upper + max(self.windows, 1.0)
        return room / max(group.slowest_s for group in self.groups)

    @property
    def pauses(self) -> float:
        """Batches per second with pulling that pauses at `ut` and resumes at `lt`.

        If `lt` does not last until new labels arrive, the student starves after each pause.
        """
        starved_s = self.reaction_s - self.limits.lower / self.used
        if starved_s <= 0:
            return inf
        batches = self.limits.upper - self.limits.lower + self.windows
        return batches / (batches / self.used + starved_s)

    @property
    def rate(self) -> float:
        """Batches per second that it trains."""
        variance = _variance(self.groups, self.used, self.jitter)
        room = self.limits.upper + sum(group.count for group in self.groups)
        return throughput(self.made, self.used, variance, room)

    def stages(self) -> list[tuple[str, float, str]]:
        """Return name, batches per second and remedy of each stage, always in this order."""
        groups = self.groups
        computing = sum(group.count / group.busy_s for group in groups)
        trips = sum(group.count / group.trip_s for group in groups)
        links = sum(group.count / group.link_s for group in groups)
        return [
            ("the student's step", self.used, "a faster device for the student, or more students"),
            ("the student's loader", self.source, "more workers of the loader"),
            ("the teachers", computing, "more or faster teachers"),
            ("round trips", trips, "more requests in flight, or links of less latency"),
            ("the student's link", self.wire, "a wider link, smaller inputs (uint8), top-k labels"),
            ("the teachers' links", links, "wider links, smaller inputs, more teachers"),
            ("pauses of a small buffer", self.pauses, "more buffer (buffer_bytes)"),
            ("the head of the line", self.head_of_line, "more buffer, or teachers that are alike"),
        ]


def _link_s(job: Distillation, link: DeviceLink, rows: int) -> float:
    """Return the seconds of a batch on a link, in the slower direction."""
    return rows * max(job.sample_bytes, job.label_bytes) / (FULL * link.bandwidth_bytes_per_s)


def _group_rates(
    cluster: Cluster, job: Distillation, team: DeviceGroup, rows: int, own: DeviceLink
) -> GroupRates:
    kind, rate = cluster.kind(team.kind), job.rate("teacher", team.kind)
    out, back = rows * job.sample_bytes, rows * job.label_bytes
    narrow = min(kind.link.bandwidth_bytes_per_s, own.bandwidth_bytes_per_s)
    wire_s = (out + back) / narrow + 2 * (kind.link.latency_s + own.latency_s)
    busy_s = rate.batch_s(rows) + TEACHER_BATCH_S
    return GroupRates(
        count=team.count,
        busy_s=busy_s,
        link_s=_link_s(job, kind.link, rows),
        wire_s=wire_s,
        jitter=rate.jitter,
        wire_jitter=max(kind.link.jitter, own.jitter),
        window=min(max(job.window, ceil(1 + wire_s / busy_s)), job.window_max),
    )


def _variance(groups: Sequence[GroupRates], used: float, jitter: float) -> float:
    """Return the variance of labelled minus trained batches, in batches squared per second."""
    labelled = sum(group.count / group.busy_s * group.jitter**2 for group in groups)
    return labelled + used * jitter**2


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage that limits the rate.

    Attributes:
        name: "teachers", "the student's step", ...
        samples_per_s: its limit, for the whole job.
        remedy: what would raise it.
    """

    name: str
    samples_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of a mesh in its steady state.

    Attributes:
        samples_per_s: of all students together.
        stages: slowest first: the first one is the bottleneck.
        thresholds: `ut` and `lt` of the student with the fewest teachers, in batches.
        first_batch_s: seconds from the first pull to the first labelled batch.
        lost: share of the slowest stage's rate lost by jitter, or by waiting for a student with
            fewer teachers.
    """

    samples_per_s: float
    stages: tuple[PipelineStage, ...]
    thresholds: Thresholds
    first_batch_s: float
    lost: float


def predict(cluster: Cluster, job: Distillation, mesh: PlannedMesh) -> Prediction:
    """Predict a mesh.

    Args:
        cluster: its devices.
        job: with the rates of undisturbed devices.
        mesh: its students and teachers.

    Raises:
        ValueError: a kind of devices is not in the cluster, or has no rate for its role; or there
            is no teacher.
    """
    if not mesh.teams or min(team.count for team in mesh.teams) <= 0 or mesh.students < 1:
        raise ValueError("a mesh has at least one student and one teacher")
    total = 0.0
    pipelines: list[StudentPipeline] = []
    allowed: dict[str, float] = {}
    for share, there in _availability(cluster, mesh.teams):
        dealt = [
            (students, StudentPipeline.of(cluster, job, mesh, teams))
            for students, teams in divide_teachers(there, mesh.students)
        ]
        total += share * _together(job, [(students, pipeline.rate) for students, pipeline in dealt])
        for of_each in zip(*(pipeline.stages() for _, pipeline in dealt), strict=True):
            name = of_each[0][0]
            rates = [(n, rate) for (n, _), (_, rate, _) in zip(dealt, of_each, strict=True)]
            allowed[name] = allowed.get(name, 0.0) + share * _together(job, rates)
        pipelines += [pipeline for _, pipeline in dealt]
    worst = min(pipelines, key=lambda pipeline: pipeline.rate)
    stages = sorted(
        (
            PipelineStage(name, allowed[name] * mesh.rows, remedy)
            for name, _, remedy in worst.stages()
        ),
        key=lambda stage: stage.samples_per_s,
    )
    return Prediction(
        samples_per_s=total * mesh.rows,
        stages=tuple(stages),
        thresholds=worst.limits,
        first_batch_s=worst.reaction_s,
        lost=max(0.0, 1 - total * mesh.rows / stages[0].samples_per_s),
    )


def _availability(
    cluster: Cluster, teams: Sequence[DeviceGroup]
) -> list[tuple[float, tuple[DeviceGroup, ...]]]:
    """Return shares of time, and the teachers available in each: the average, or one more.

    Of 40 devices available 97 % of the time, 38 or 39 are there. For 8 students that wait for each
    other that is 4 for the slowest, not 4.85 for each.
    """
    there = tuple(DeviceGroup(t.kind, t.count * cluster.kind(t.kind).availability) for t in teams)
    if len(there) > 1 or not float(teams[0].count).is_integer():
        return [(1.0, there)]
    kind, count = there[0].kind, there[0].count
    fewer = floor(count + 1e-9)
    share = count - fewer
    if fewer and share < 1e-9:
        return [(1.0, (DeviceGroup(kind, fewer),))]
    one_more = (share, (DeviceGroup(kind, fewer + 1),))
    # Without any teacher nothing is trained.
    return [one_more, (1 - share, (DeviceGroup(kind, fewer),))] if fewer else [one_more]


def _together(job: Distillation, rates: Sequence[tuple[int, float]]) -> float:
    """Return the rate of all students; synchronous ones are as fast as the slowest."""
    if job.synchronous:
        return sum(students for students, _ in rates) * min(rate for _, rate in rates)
    return sum(students * rate for students, rate in rates)


def divide_teachers(
    teams: Sequence[DeviceGroup], students: int
) -> list[tuple[int, tuple[DeviceGroup, ...]]]:
    """Divide the teachers among the students evenly, as the coordinator's assignment does.

    Args:
        teams: all teachers.
        students: number of students.

    Returns:
        Numbers of students, and their teachers. A student with a part of a teacher shares it.
        Teachers of several kinds are treated as an even mixture.
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
