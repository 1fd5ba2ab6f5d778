"""Which fleets of teachers a plan looks at: cheap labels first, as many as may help."""

from __future__ import annotations

from collections.abc import Iterator

from .cluster import Cluster, DeviceKind
from .mesh_values import Mesh, Team
from .workload import Job

#: Of a kind with more devices not every number is looked at.
FINE = 128
#: Fleets that could label so many times what the students train are large enough.
PLENTY = 1.5


def students_of(cluster: Cluster, job: Job) -> list[tuple[DeviceKind, int]]:
    """Devices that can train, each with the sizes of a batch that fit."""
    return [
        (kind, rows)
        for kind in cluster.devices
        if kind.may_be("student") and kind.name in job.student and kind.count >= job.students
        for rows in job.batch
        if fits(kind, job.student[kind.name].needs_bytes(rows))
    ]


def fits(kind: DeviceKind, needs_bytes: float) -> bool:
    """Whether a device of this kind has so much memory."""
    return kind.memory_bytes is None or needs_bytes <= kind.memory_bytes


def why_no_student(cluster: Cluster, job: Job) -> str:
    """What keeps every kind of devices from training."""
    reasons = []
    for kind in cluster.devices:
        if not kind.may_be("student"):
            reasons.append(f"{kind.name} are no students")
        elif kind.name not in job.student:
            reasons.append(f"the job has no rate of the student on {kind.name}")
        elif kind.count < job.students:
            reasons.append(f"of {kind.name} there are {kind.count}, not {job.students}")
        else:
            reasons.append(f"{kind.name} have too little memory")
    return f"no devices can train: {'; '.join(reasons)}"


def teachers_of(
    cluster: Cluster, job: Job, student: str, rows: int
) -> list[tuple[DeviceKind, int]]:
    """Kinds that can label beside the students, and how many; the cheapest labels first."""
    found = []
    for kind in cluster.devices:
        free = kind.count - (job.students if kind.name == student else 0)
        rate = job.teacher.get(kind.name)
        if free < 1 or rate is None or not kind.may_be("teacher"):
            continue
        micro = rows if rate.micro_batch is None else min(rows, rate.micro_batch)
        if fits(kind, rate.needs_bytes(micro)):
            found.append((kind.price_per_hour * rate.batch_s(rows), rate.sample_s, kind, free))
    found.sort(key=lambda entry: (entry[0], entry[1]))
    return [(kind, free) for _, _, kind, free in found]


def fleets(
    cluster: Cluster, job: Job, student: str, rows: int, teachers: int | None = None
) -> Iterator[Mesh]:
    """Meshes to look at, of one kind of teachers and of several.

    Args:
        cluster: its devices.
        job: what they do.
        student: the kind of devices that train.
        rows: of a batch.
        teachers: only fleets of so many; None: any number.
    """
    kinds = teachers_of(cluster, job, student, rows)
    step_s = job.rate("student", student).batch_s(rows)
    enough = PLENTY * job.students / step_s
    seen = set()
    for start in range(len(kinds)):
        before: tuple[Team, ...] = ()
        labelled, sum_before = 0.0, 0
        for kind, free in kinds[start:]:
            busy_s = job.rate("teacher", kind.name).batch_s(rows) / kind.availability
            lacking = max(0.0, enough - labelled) * busy_s
            for count in _counts(free, job.students, lacking, teachers, sum_before):
                teams = (*before, Team(kind.name, count))
                if teams not in seen:
                    seen.add(teams)
                    yield Mesh(student, job.students, teams, rows)
            labelled += free / busy_s
            sum_before += free
            before = (*before, Team(kind.name, free))
            if teachers is None and labelled >= enough:
                break


def _counts(
    free: int, students: int, lacking: float, teachers: int | None, before: int
) -> list[int]:
    """How many of a kind to look at, besides those of other kinds that are all taken."""
    if teachers is not None:
        return [teachers - before] if 1 <= teachers - before <= free else []
    most = min(free, max(int(lacking) + 1, students, 1))
    if most <= FINE:
        return list(range(1, most + 1))
    # Whole rounds of students, and so few that a plan of a very large cluster takes no minutes.
    stride = max(students, most // FINE)
    return sorted({*range(stride, most + 1, stride), most})
