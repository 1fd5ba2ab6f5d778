"""Prediction of a distillation's speed on given devices: its slowest stage decides.

Seconds per student and batch:

    student    step of the student + delivery by the reader
    teacher    (batch of a teacher + copies between its network and device) / number of teachers
    round trip (batch of a teacher + transfer there and back) / requests in flight. Two requests
               hide a transfer that is shorter than the computation; readers keep more requests in
               flight if it is longer
    links      bytes of a batch over the link of a teacher, and of all batches over the student's
    head of    batches are delivered in order: while the slowest teacher has the first batch, others
    line       are buffered up to `ut`

Jitter reduces the speed a little. The content of a buffer that teachers fill and a student empties,
both with jitter, is a random walk between two walls. At the lower wall the student waits, at the
upper wall the teachers wait. As a diffusion with drift `d` and variance `v` between walls `K`
apart, the flow lost at the lower wall is d / (exp(2 d K / v) - 1), or v / 2K for d = 0 (Harrison,
Brownian Motion and Stochastic Flow Systems, 1985, section 5.6).

A prediction describes the steady state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, expm1, floor, hypot, inf, log1p

from .cluster import Cluster, DeviceLink, Distillation

#: Part of a link that batches can use; headers and acknowledgements take the rest.
LINK_SHARE = 0.95
#: Part of the rate that jitter may cost; a larger buffer would not be worth its memory.
TOLERATED_LOSS = 0.005
#: Standard deviations of the reaction time that `lt` covers.
DEVIATIONS = 3.0
#: Fixed seconds per batch, measured between processes on one host: of a teacher, from the network
#: to its device and back; of a student, from the reader to the training loop.
TEACHER_BATCH_S = 0.3e-3
STUDENT_BATCH_S = 0.1e-3


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Teachers of one kind.

    Attributes:
        kind: name of the kind of their devices.
        count: number of teachers, each with one device; one student's share may be a fraction.
    """

    kind: str
    count: float


@dataclass(frozen=True, slots=True)
class PlannedMesh:
    """Students and teachers of a plan.

    Attributes:
        student: name of the kind of the students' devices.
        students: number of students.
        teacher_groups: the teachers, by kind of devices.
        rows: rows of a student's batch.
    """

    student: str
    students: int
    teacher_groups: tuple[DeviceGroup, ...]
    rows: int

    @property
    def teachers(self) -> int:
        return int(sum(group.count for group in self.teacher_groups))


def throughput(labelling_rate: float, training_rate: float, variance: float, room: float) -> float:
    """Return the throughput of the buffer, in the unit of the two rates.

    Args:
        labelling_rate: batches per second that would be labelled with an unlimited buffer.
        training_rate: batches per second that would be trained with an unlimited supply of labels.
        variance: variance of labelled minus trained batches, in batches squared per second.
        room: batches that fit into the buffer.
    """
    if labelling_rate <= 0 or training_rate <= 0:
        return 0.0
    ideal = min(labelling_rate, training_rate)
    if variance <= 0 or room == inf:
        return ideal
    alternating = 1 / (1 / labelling_rate + 1 / training_rate)
    if room <= 0:
        return alternating
    drift = labelling_rate - training_rate
    exponent = 2 * drift * room / variance
    if abs(exponent) < 1e-9:
        lost = variance / (2 * room)
    else:
        lost = 0.0 if exponent > 700 else drift / expm1(exponent)
    return min(max(training_rate - lost, alternating), ideal)


def room_for(labelling_rate: float, training_rate: float, variance: float) -> float:
    """Return the buffer, in batches, with which jitter costs `TOLERATED_LOSS` of the rate.

    Args:
        labelling_rate: see `throughput`.
        training_rate: see `throughput`.
        variance: see `throughput`.
    """
    if variance <= 0:
        return 0.0
    drift = abs(labelling_rate - training_rate)
    target = TOLERATED_LOSS * min(labelling_rate, training_rate)
    if drift < 1e-9 * training_rate:
        return variance / (2 * target)
    return variance / (2 * drift) * log1p(drift / target)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The `ut` and `lt` of Algorithm 1, in batches of one student.

    Attributes:
        upper: above it no new batch is pulled.
        lower: below it pulling resumes.
        ideal: what `upper` would be without a limit of memory.
    """

    upper: int
    lower: int
    ideal: int


def thresholds(
    training_rate: float,
    reaction_s: float,
    spread_s: float,
    windows: float,
    cushion: float,
    capacity: float,
) -> Thresholds:
    """Compute both thresholds.

    `lt` batches must last from the moment when pulling resumes until the first new batch is
    labelled: a transfer in each direction and a batch of the slowest teacher, with their spread.
    `ut` is so far above `lt` that all teachers have work when pulling resumes, and that jitter is
    absorbed.

    Args:
        training_rate: batches per second that the student takes.
        reaction_s: seconds from sending a batch to an idle teacher to receiving its labels.
        spread_s: standard deviation of `reaction_s`.
        windows: requests in flight at all teachers of the student.
        cushion: batches that absorb jitter, or that others label while the slowest teacher is busy.
        capacity: batches that fit into memory.
    """
    lower = max(1, ceil(training_rate * (reaction_s + DEVIATIONS * spread_s)))
    ideal = lower + max(ceil(windows / 2), ceil(cushion), 1)
    upper = max(1, min(ideal, int(min(capacity, 1e12))))
    return Thresholds(upper, min(lower, upper - 1), ideal)


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Teachers of one kind, as one student uses them.

    Attributes:
        count: available teachers; it may be a fraction, as an average over time or a part of a
            teacher that other students share.
        busy_s: seconds that a batch takes one teacher.
        link_s: seconds of a batch on a teacher's link, in the slower direction.
        transfer_s: seconds of transfer of a batch from the student to a teacher and back.
        jitter: relative jitter of `busy_s`.
        transfer_jitter: relative jitter of `transfer_s`.
        window: requests in flight per teacher: enough to hide the transfer, as far as allowed.
    """

    count: float
    busy_s: float
    link_s: float
    transfer_s: float
    jitter: float
    transfer_jitter: float
    window: int

    @property
    def trip_s(self) -> float:
        """Seconds between answers of one teacher if only its round trips limit it."""
        return (self.busy_s + self.transfer_s) / self.window

    @property
    def slowest_s(self) -> float:
        """Longest time of a batch at one teacher, behind the other requests of the window."""
        return max(self.window, 1 / min(self.count, 1)) * self.busy_s

    @property
    def rate(self) -> float:
        """Batches per second of all these teachers."""
        return self.count / max(self.busy_s, self.link_s, self.trip_s)


@dataclass(frozen=True, slots=True)
class StudentPipeline:
    """A student with its teachers.

    Attributes:
        training_rate: batches per second that it would train with an unlimited supply of labels.
        source_rate: batches per second of its loader.
        groups: its teachers.
        link_rate: batches per second that its own link allows.
        jitter: relative jitter of a student's step.
        limits: `ut` and `lt`.
        reaction_s: seconds from sending a batch to an idle teacher to receiving its labels.
    """

    training_rate: float
    source_rate: float
    groups: tuple[GroupRates, ...]
    link_rate: float
    jitter: float
    limits: Thresholds
    reaction_s: float

    @classmethod
    def of(
        cls, cluster: Cluster, job: Distillation, mesh: PlannedMesh, teachers: Sequence[DeviceGroup]
    ) -> StudentPipeline:
        """Return one student of the mesh, with these teachers."""
        rows, link = mesh.rows, cluster.kind(mesh.student).link
        own = job.rate("student", mesh.student)
        groups = tuple(_group_rates(cluster, job, group, rows, link) for group in teachers)
        training_rate = 1 / (own.batch_s(rows) + STUDENT_BATCH_S)
        source_rate = inf if job.source_samples_per_s is None else job.source_samples_per_s / rows
        slowest = max(groups, key=lambda group: group.busy_s + group.transfer_s)
        reaction_s = slowest.busy_s + slowest.transfer_s
        windows = sum(group.window * group.count for group in groups)
        jitter_room = room_for(
            sum(group.count / group.busy_s for group in groups),
            training_rate,
            _variance(groups, training_rate, own.jitter),
        )
        # Batches that other teachers label while the slowest one has the first batch of the line.
        ahead = min(training_rate, source_rate) * max(group.slowest_s for group in groups) - windows
        limits = thresholds(
            training_rate=min(training_rate, source_rate),
            reaction_s=reaction_s,
            spread_s=hypot(
                slowest.busy_s * slowest.jitter, slowest.transfer_s * slowest.transfer_jitter
            ),
            windows=windows,
            cushion=max(jitter_room, ahead),
            capacity=inf if job.buffer_bytes is None else job.buffer_bytes / job.batch_bytes(rows),
        )
        link_rate = 1 / _link_s(job, link, rows)
        return cls(training_rate, source_rate, groups, link_rate, own.jitter, limits, reaction_s)

    @property
    def labelling_rate(self) -> float:
        """Batches per second that all stages but the student's step allow, without jitter."""
        labelled = sum(group.rate for group in self.groups)
        return min(
            labelled, self.link_rate, self.source_rate, self.rate_in_order, self.rate_with_pauses
        )

    @property
    def windows(self) -> float:
        """Requests in flight at all teachers; those of shared teachers count in part."""
        return sum(group.window * group.count for group in self.groups)

    @property
    def rate_in_order(self) -> float:
        """Batches per second that delivery in order allows, limited by the slowest teacher."""
        room = self.limits.upper + max(self.windows, 1.0)
        return room / max(group.slowest_s for group in self.groups)

    @property
    def rate_with_pauses(self) -> float:
        """Batches per second that pauses of pulling between `ut` and `lt` allow.

        If `lt` batches do not last until new labels arrive, the student starves after each pause.
        """
        starved_s = self.reaction_s - self.limits.lower / self.training_rate
        if starved_s <= 0:
            return inf
        batches = self.limits.upper - self.limits.lower + self.windows
        return batches / (batches / self.training_rate + starved_s)

    @property
    def rate(self) -> float:
        """Batches per second that the student trains."""
        variance = _variance(self.groups, self.training_rate, self.jitter)
        room = self.limits.upper + sum(group.count for group in self.groups)
        return throughput(self.labelling_rate, self.training_rate, variance, room)

    def stages(self) -> list[tuple[str, float, str]]:
        """Return name, batches per second and remedy of each stage, always in the same order."""
        groups = self.groups
        computing = sum(group.count / group.busy_s for group in groups)
        trips = sum(group.count / group.trip_s for group in groups)
        links = sum(group.count / group.link_s for group in groups)
        return [
            (
                "the student's step",
                self.training_rate,
                "a faster device for the student, or more students",
            ),
            ("the student's loader", self.source_rate, "more workers of the loader"),
            ("the teachers", computing, "more or faster teachers"),
            ("round trips", trips, "more requests in flight, or links of less latency"),
            (
                "the student's link",
                self.link_rate,
                "a wider link, smaller inputs (uint8), top-k labels",
            ),
            ("the teachers' links", links, "wider links, smaller inputs, more teachers"),
            ("pauses of a small buffer", self.rate_with_pauses, "more buffer (buffer_bytes)"),
            ("the head of the line", self.rate_in_order, "more buffer, or teachers that are alike"),
        ]


def _link_s(job: Distillation, link: DeviceLink, rows: int) -> float:
    """Return the seconds of a batch on a link, in the slower direction."""
    return rows * max(job.sample_bytes, job.label_bytes) / (LINK_SHARE * link.bandwidth_bytes_per_s)


def _group_rates(
    cluster: Cluster, job: Distillation, group: DeviceGroup, rows: int, own: DeviceLink
) -> GroupRates:
    kind, rate = cluster.kind(group.kind), job.rate("teacher", group.kind)
    out, back = rows * job.sample_bytes, rows * job.label_bytes
    bandwidth = LINK_SHARE * min(kind.link.bandwidth_bytes_per_s, own.bandwidth_bytes_per_s)
    transfer_s = (out + back) / bandwidth + 2 * max(kind.link.latency_s, own.latency_s)
    busy_s = rate.batch_s(rows) + TEACHER_BATCH_S
    return GroupRates(
        count=group.count,
        busy_s=busy_s,
        link_s=_link_s(job, kind.link, rows),
        transfer_s=transfer_s,
        jitter=rate.jitter,
        transfer_jitter=max(kind.link.jitter, own.jitter),
        window=min(max(job.window, ceil(1 + transfer_s / busy_s)), job.window_max),
    )


def _variance(groups: Sequence[GroupRates], training_rate: float, jitter: float) -> float:
    """Return the variance of labelled minus trained batches, in batches squared per second."""
    labelled = sum(group.count / group.busy_s * group.jitter**2 for group in groups)
    return labelled + training_rate * jitter**2


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """A stage that limits the rate.

    Attributes:
        name: "the teachers", "the student's step", ...
        samples_per_s: the rate that it allows the whole job.
        remedy: what would raise this rate.
    """

    name: str
    samples_per_s: float
    remedy: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """Prediction of a mesh in its steady state.

    Attributes:
        samples_per_s: of all students together.
        stages: the slowest stage, which is the bottleneck, first.
        thresholds: `ut` and `lt` of the slowest student, in batches.
        first_batch_s: seconds from sending the first batch to receiving its labels.
        lost: share of the slowest stage's rate that is lost by jitter, or by waiting for a student
            with fewer teachers.
    """

    samples_per_s: float
    stages: tuple[PipelineStage, ...]
    thresholds: Thresholds
    first_batch_s: float
    lost: float


def predict(cluster: Cluster, job: Distillation, mesh: PlannedMesh) -> Prediction:
    """Predict a mesh.

    Args:
        cluster: the devices.
        job: the distillation, with the rates of undisturbed devices.
        mesh: its students and teachers.

    Raises:
        ValueError: a kind of devices is not in the cluster, or has no rate for its role; or there
            is no student or no teacher.
    """
    counts = [group.count for group in mesh.teacher_groups]
    if not counts or min(counts) <= 0 or mesh.students < 1:
        raise ValueError("a mesh must have at least one student and one teacher")
    total = 0.0
    pipelines: list[StudentPipeline] = []
    stage_rates: dict[str, float] = {}
    for share, available in _availability(cluster, mesh.teacher_groups):
        divided = [
            (students, StudentPipeline.of(cluster, job, mesh, teachers))
            for students, teachers in divide_teachers(available, mesh.students)
        ]
        total += share * _total_rate(job, [(count, pipeline.rate) for count, pipeline in divided])
        for stage in zip(*(pipeline.stages() for _, pipeline in divided), strict=True):
            name = stage[0][0]
            rates = [(count, rate) for (count, _), (_, rate, _) in zip(divided, stage, strict=True)]
            stage_rates[name] = stage_rates.get(name, 0.0) + share * _total_rate(job, rates)
        pipelines += [pipeline for _, pipeline in divided]
    worst = min(pipelines, key=lambda pipeline: pipeline.rate)
    stages = sorted(
        (
            PipelineStage(name, stage_rates[name] * mesh.rows, remedy)
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
    cluster: Cluster, teachers: Sequence[DeviceGroup]
) -> list[tuple[float, tuple[DeviceGroup, ...]]]:
    """Return shares of the time, and the teachers that are available in each share.

    For teachers of one kind, these are the average number, rounded down and up. Of 40 devices that
    are available for 97 % of the time, 38 or 39 are available at any moment. If 8 students wait for
    each other, the slowest one then has 4 teachers, while the average would be 4.85.
    """
    average = tuple(
        DeviceGroup(group.kind, group.count * cluster.kind(group.kind).availability)
        for group in teachers
    )
    if len(average) > 1 or not float(teachers[0].count).is_integer():
        return [(1.0, average)]
    kind, count = average[0].kind, average[0].count
    fewer = floor(count + 1e-9)
    share = count - fewer
    if fewer and share < 1e-9:
        return [(1.0, (DeviceGroup(kind, fewer),))]
    one_more = (share, (DeviceGroup(kind, fewer + 1),))
    # Without any teacher nothing is trained.
    return [one_more, (1 - share, (DeviceGroup(kind, fewer),))] if fewer else [one_more]


def _total_rate(job: Distillation, rates: Sequence[tuple[int, float]]) -> float:
    """Return the rate of all students; synchronous students are as fast as the slowest.

    `rates`: for each group of equal students their number, and the rate of one of them.
    """
    if job.synchronous:
        return sum(students for students, _ in rates) * min(rate for _, rate in rates)
    return sum(students * rate for students, rate in rates)


def divide_teachers(
    teachers: Sequence[DeviceGroup], students: int
) -> list[tuple[int, tuple[DeviceGroup, ...]]]:
    """Divide the teachers among the students evenly, as the coordinator's assignment does.

    Args:
        teachers: all teachers.
        students: number of students.

    Returns:
        For each group of equal students their number, and the teachers of one of them. A student
        with a part of a teacher shares it. Teachers of several kinds are treated as an even
        mixture.
    """
    if len(teachers) > 1 or not float(teachers[0].count).is_integer():
        return [(students, tuple(DeviceGroup(t.kind, t.count / students) for t in teachers))]
    kind, count = teachers[0].kind, int(teachers[0].count)
    if count >= students:
        each, more = divmod(count, students)
        groups = [(more, each + 1.0), (students - more, float(each))]
    else:
        each, more = divmod(students, count)
        groups = [(more * (each + 1), 1 / (each + 1)), ((count - more) * each, 1 / each)]
    return [(number, (DeviceGroup(kind, part),)) for number, part in groups if number]
