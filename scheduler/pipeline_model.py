"""Predicts the speed of a distillation on given devices, by stages: the slowest decides.

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

A prediction describes the steady state. The fixed costs per batch are measured (`Costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, expm1, floor, hypot, inf, log1p

from .cluster import Cluster, DeviceLink, Distillation

#: What of a link is left for batches; headers and acknowledgements take the rest.
FULL = 0.95
#: What of the student's rate may be lost by jitter before more buffer is worth its memory.
LOST = 0.005
#: Spreads that going on early has to be safe against.
SPREADS = 3.0


@dataclass(frozen=True, slots=True)
class Costs:
    """What is fixed per batch, in seconds; measured on loopback between processes.

    Attributes:
        teacher_s: hand-over between the network and the device of a teacher.
        student_s: hand-over from the reader to the training loop.
    """

    teacher_s: float = 0.3e-3
    student_s: float = 0.1e-3


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Teachers of one kind.

    Attributes:
        kind: name of their devices.
        count: how many; for one student of several, a part.
    """

    kind: str
    count: float


@dataclass(frozen=True, slots=True)
class PlannedMesh:
    """Who does what.

    Attributes:
        student: the kind of devices that train.
        students: how many.
        teams: who labels.
        rows: of a student's batch.
    """

    student: str
    students: int
    teams: tuple[DeviceGroup, ...]
    rows: int

    @property
    def teachers(self) -> int:
        """How many there are."""
        return int(sum(team.count for team in self.teams))


def throughput(made: float, used: float, variance: float, room: float) -> float:
    """What goes through, in the unit of the two rates.

    Args:
        made: batches per second that would be labelled if there were always room.
        used: batches per second that would be trained if there were always one.
        variance: of the difference of both, in batches squared per second.
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


def room_for(made: float, used: float, variance: float, lost: float = LOST) -> float:
    """Batches that the buffer has to hold so that jitter costs no more than a share of the rate.

    Args:
        made: as of `throughput`.
        used: as of `throughput`.
        variance: as of `throughput`.
        lost: the share.
    """
    if variance <= 0:
        return 0.0
    drift, target = abs(made - used), lost * min(made, used)
    if drift < 1e-9 * used:
        return variance / (2 * target)
    return variance / (2 * drift) * log1p(drift / target)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The `ut` and `lt` of Algorithm 1, in batches of one student.

    Attributes:
        upper: above it no new batch is pulled.
        lower: below it pulling goes on.
        ideal: what `upper` would be if memory were no matter.
    """

    upper: int
    lower: int
    ideal: int


def thresholds(
    used: float, reaction_s: float, spread_s: float, windows: float, cushion: float, most: float
) -> Thresholds:
    """Both thresholds from what the links and devices do.

    `lt` has to last from the moment when pulling goes on until the first of the new batches is
    labelled: one transfer each way and one batch of the slowest teacher, and their spread. `ut`
    is so far above that all teachers have work when pulling goes on, and that jitter finds room.

    Args:
        used: batches per second that the student takes.
        reaction_s: seconds from sending a batch to an idle teacher to having its labels.
        spread_s: standard deviation of it.
        windows: requests that its teachers have in flight.
        cushion: batches against jitter, as `room_for` says.
        most: batches that memory allows.
    """
    lower = max(1, ceil(used * (reaction_s + SPREADS * spread_s)))
    ideal = lower + max(ceil(windows / 2), ceil(cushion), 1)
    upper = max(1, min(ideal, int(min(most, 1e12))))
    return Thresholds(upper, min(lower, upper - 1), ideal)


@dataclass(frozen=True, slots=True)
class GroupRates:
    """Teachers of one kind, as one student has them.

    Attributes:
        count: how many are there; a part of one is shared with other students.
        busy_s: seconds of a batch at one of them.
        wire_s: seconds of a batch on its link, both ways after each other.
        jitter: relative, of a batch.
        link: of each.
        window: requests in flight at each: as many as hide the travel, as far as allowed.
    """

    count: float
    busy_s: float
    wire_s: float
    jitter: float
    link: DeviceLink
    window: int

    @property
    def trip_s(self) -> float:
        """Seconds from one answer to the next that the travel allows."""
        return (self.busy_s + self.wire_s) / self.window

    @property
    def slowest_s(self) -> float:
        """Seconds that a batch can be at one of them, behind others of the same window."""
        return max(self.window, 1 / min(self.count, 1)) * self.busy_s

    def rate(self, full_s: float) -> float:
        """Batches per second, all together.

        Args:
            full_s: seconds of a batch on its link, in the direction that takes longer.
        """
        return self.count / max(self.busy_s, full_s, self.trip_s)


@dataclass(frozen=True, slots=True)
class StudentPipeline:
    """A student with its teachers.

    Attributes:
        used: batches per second that it would train if there were always one.
        source: batches per second that its loader yields.
        crews: its teachers.
        wire: batches per second that its own link carries.
        crew_wires: batches per second that the links of its teachers carry.
        jitter: relative, of a student's step.
        limits: `ut` and `lt`.
        reaction_s: seconds from sending a batch to an idle teacher to having its labels.
    """

    used: float
    source: float
    crews: tuple[GroupRates, ...]
    wire: float
    crew_wires: float
    jitter: float
    limits: Thresholds
    reaction_s: float

    @classmethod
    def of(
        cls,
        cluster: Cluster,
        job: Distillation,
        mesh: PlannedMesh,
        teams: Sequence[DeviceGroup],
        costs: Costs,
    ) -> StudentPipeline:
        """One student of the mesh, who has these teams."""
        rows, link = mesh.rows, cluster.kind(mesh.student).link
        out, back = rows * job.sample_bytes, rows * job.label_bytes
        own = job.rate("student", mesh.student)
        crews = tuple(_crew(cluster, job, team, rows, link, costs) for team in teams)
        used = 1 / (own.batch_s(rows) + costs.student_s)
        source = inf if job.source_samples_per_s is None else job.source_samples_per_s / rows
        larger = max(out, back)
        wire = FULL * link.bandwidth_bytes_per_s / larger
        crew_wires = sum(FULL * c.count * c.link.bandwidth_bytes_per_s / larger for c in crews)
        slowest = max(crews, key=lambda crew: crew.busy_s + crew.wire_s)
        reaction_s = slowest.busy_s + slowest.wire_s
        windows = sum(crew.window * crew.count for crew in crews)
        jitter = room_for(
            sum(crew.count / crew.busy_s for crew in crews),
            used,
            _variance(crews, used, own.jitter),
        )
        # What others label while the slowest teacher has the head of the line.
        ahead = min(used, source) * max(crew.slowest_s for crew in crews) - windows
        limits = thresholds(
            used=min(used, source),
            reaction_s=reaction_s,
            spread_s=hypot(
                slowest.busy_s * slowest.jitter,
                slowest.wire_s * max(slowest.link.jitter, link.jitter),
            ),
            windows=windows,
            cushion=max(jitter, ahead),
            most=inf if job.buffer_bytes is None else job.buffer_bytes / job.batch_bytes(rows),
        )
        return cls(used, source, crews, wire, crew_wires, own.jitter, limits, reaction_s)

    @property
    def made(self) -> float:
        """Batches per second that would be labelled if there were always room for them."""
        labelled = sum(crew.rate(crew.count / self._wires_of(crew)) for crew in self.crews)
        return min(labelled, self.wire, self.source, self.head_of_line, self.pauses)

    def _wires_of(self, crew: GroupRates) -> float:
        """Batches per second that the links of one crew carry."""
        whole = sum(c.count * c.link.bandwidth_bytes_per_s for c in self.crews)
        return self.crew_wires * crew.count * crew.link.bandwidth_bytes_per_s / whole

    @property
    def windows(self) -> float:
        """Requests in flight at all teachers; those of a part of a teacher count in part."""
        return sum(crew.window * crew.count for crew in self.crews)

    @property
    def head_of_line(self) -> float:
        """Batches per second while the first of them is at the slowest teacher, and stays there."""
        room = self.limits.upper + max(self.windows, 1.0)
        return room / max(crew.slowest_s for crew in self.crews)

    @property
    def pauses(self) -> float:
        """Batches per second where pulling pauses at `ut` and goes on at `lt`, again and again.

        Where `lt` is too low to last until new labels come, the student starves after each pause.
        """
        starved_s = self.reaction_s - self.limits.lower / self.used
        if starved_s <= 0:
            return inf
        batches = self.limits.upper - self.limits.lower + self.windows
        return batches / (batches / self.used + starved_s)

    @property
    def rate(self) -> float:
        """Batches per second that it trains."""
        variance = _variance(self.crews, self.used, self.jitter)
        room = self.limits.upper + sum(crew.count for crew in self.crews)
        return throughput(self.made, self.used, variance, room)

    def stages(self) -> list[tuple[str, float, str]]:
        """Name, batches per second and remedy of each stage; always the same, in this order."""
        crews = self.crews
        computing = sum(crew.count / crew.busy_s for crew in crews)
        trips = sum(crew.count / crew.trip_s for crew in crews)
        return [
            ("the student's step", self.used, "a faster device for the student, or more students"),
            ("the student's loader", self.source, "more workers of the loader"),
            ("the teachers", computing, "more or faster teachers"),
            ("round trips", trips, "more requests in flight, or links of less latency"),
            ("the student's link", self.wire, "a wider link, smaller inputs (uint8), top-k labels"),
            ("the teachers' links", self.crew_wires, "wider links, smaller inputs, more teachers"),
            ("pauses of a small buffer", self.pauses, "more buffer (buffer_bytes)"),
            ("the head of the line", self.head_of_line, "more buffer, or teachers that are alike"),
        ]


def _crew(
    cluster: Cluster,
    job: Distillation,
    team: DeviceGroup,
    rows: int,
    own: DeviceLink,
    costs: Costs,
) -> GroupRates:
    kind, rate = cluster.kind(team.kind), job.rate("teacher", team.kind)
    out, back = rows * job.sample_bytes, rows * job.label_bytes
    narrow = min(kind.link.bandwidth_bytes_per_s, own.bandwidth_bytes_per_s)
    wire_s = (out + back) / narrow + 2 * (kind.link.latency_s + own.latency_s)
    busy_s = rate.batch_s(rows) + costs.teacher_s
    return GroupRates(
        count=team.count,
        busy_s=busy_s,
        wire_s=wire_s,
        jitter=rate.jitter,
        link=kind.link,
        window=min(max(job.window, ceil(1 + wire_s / busy_s)), job.window_max),
    )


def _variance(crews: Sequence[GroupRates], used: float, jitter: float) -> float:
    """Of what is labelled less what is trained, in batches squared per second."""
    labelled = sum(crew.count / crew.busy_s * crew.jitter**2 for crew in crews)
    return labelled + used * jitter**2


@dataclass(frozen=True, slots=True)
class PipelineStage:
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
    stages: tuple[PipelineStage, ...]
    thresholds: Thresholds
    first_batch_s: float
    lost: float


def predict(
    cluster: Cluster, job: Distillation, mesh: PlannedMesh, costs: Costs | None = None
) -> Prediction:
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


def _together(job: Distillation, rates: Sequence[tuple[int, float]]) -> float:
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


def step_s(job: Distillation, kind: str, rows: int, costs: Costs | None = None) -> float:
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


def online_s(job: Distillation, kind: str, rows: int) -> float:
    """Seconds of a batch where the student's device runs the teacher, too.

    Raises:
        ValueError: as for `step_s`, for either model.
    """
    return step_s(job, kind, rows) + job.rate("teacher", kind).batch_s(rows)
