"""Plans the teachers of a distillation: candidate fleets, the best one, and the alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from .cluster import Cluster, DeviceKind, Distillation
from .pipeline_model import STUDENT_BATCH_S, DeviceGroup, PlannedMesh, Prediction, predict
from .rates import harmonic_mean_t_t, teachers_needed
from .verdicts import Aim, MeshVerdict, Method, MethodEstimate, judge

#: Up to this many devices of a kind, every number of teachers is evaluated. With more, multiples of
#: a stride and the largest number are evaluated: fewer than twice this many.
MOST_COUNTS = 128
#: Fleets that can label this multiple of what the students train are large enough.
PLENTY = 1.5


@dataclass(frozen=True, slots=True)
class MeshPlan:
    """A plan: how many teachers, what it costs, and whether it is worth it.

    Attributes:
        job: name of the job.
        currency: currency of costs.
        student: name of the kind of the students' devices.
        students: number of students.
        rows: rows of a student's batch.
        mesh: students and teachers; None: no mesh is possible.
        prediction: prediction for that mesh; None: no mesh is possible.
        needed: n = ceil(t_t / t_s), teachers for one student by the paper's ratio; 0: no mesh.
        micro_batches: by kind of teachers' devices, the rows that a device should take at once;
            kinds for which this is unknown are missing.
        upper_bytes: `ut` of a reader; 0: no mesh.
        lower_bytes: `lt` of a reader; 0: no mesh.
        estimates: the estimates of all four methods.
        verdict: which method to take.
    """

    job: str
    currency: str
    student: str
    students: int
    rows: int
    mesh: PlannedMesh | None
    prediction: Prediction | None
    needed: int
    micro_batches: Mapping[str, int]
    upper_bytes: int
    lower_bytes: int
    estimates: tuple[MethodEstimate, ...]
    verdict: MeshVerdict

    def estimate(self, method: Method) -> MethodEstimate:
        """Return the estimate of that method."""
        return next(estimate for estimate in self.estimates if estimate.method == method)


def student_kinds(cluster: Cluster, job: Distillation) -> list[tuple[DeviceKind, int]]:
    """Return the kinds of devices that can train, each with every batch size that fits.

    Raises:
        ValueError: there are none.
    """
    choices: list[tuple[DeviceKind, int]] = []
    reasons = []
    for kind in cluster.devices:
        if not kind.may_be("student"):
            reasons.append(f"{kind.name} may not be students")
        elif kind.name not in job.student:
            reasons.append(f"the job has no rate of the student on {kind.name}")
        elif kind.availability < 1:
            reasons.append(f"{kind.name} have an availability below 100 %, so can only be teachers")
        elif kind.count < job.students:
            reasons.append(f"there are {kind.count} {kind.name}, the job needs {job.students}")
        else:
            needs_bytes = job.student[kind.name].needs_bytes
            choices += [(kind, rows) for rows in job.batch if fits(kind, needs_bytes(rows))]
            reasons.append(f"{kind.name} have too little memory")
    if not choices:
        raise ValueError(f"no devices can train: {'; '.join(reasons)}")
    return choices


def fits(kind: DeviceKind, needs_bytes: float) -> bool:
    """Whether a device of this kind has that much memory."""
    return kind.memory_bytes is None or needs_bytes <= kind.memory_bytes


def teacher_kinds(
    cluster: Cluster, job: Distillation, student: str, rows: int
) -> list[tuple[DeviceKind, int]]:
    """Return the kinds of devices that can label, cheapest labels first, and how many are free."""
    priced = []
    for kind in cluster.devices:
        free = kind.count - (job.students if kind.name == student else 0)
        rate = job.teacher.get(kind.name)
        if free < 1 or rate is None or not kind.may_be("teacher"):
            continue
        if fits(kind, rate.needs_bytes(rows)):
            priced.append((kind.price_per_hour * rate.batch_s(rows), rate.sample_s, kind, free))
    priced.sort(key=lambda entry: (entry[0], entry[1]))
    return [(kind, free) for _, _, kind, free in priced]


def fleets(
    cluster: Cluster, job: Distillation, student: str, rows: int, teachers: int | None = None
) -> Iterator[PlannedMesh]:
    """Yield the meshes to evaluate, with teachers of one kind and of several kinds.

    Args:
        cluster: the devices.
        job: the distillation.
        student: the kind of the students' devices.
        rows: rows of a batch.
        teachers: only fleets of this size; None: any size.
    """
    kinds = teacher_kinds(cluster, job, student, rows)
    step_s = job.rate("student", student).batch_s(rows)
    enough = PLENTY * job.students / step_s
    seen = set()
    for start in range(len(kinds)):
        before: tuple[DeviceGroup, ...] = ()
        labelled, sum_before = 0.0, 0
        for kind, free in kinds[start:]:
            busy_s = job.rate("teacher", kind.name).batch_s(rows) / kind.availability
            devices_lacking = max(0.0, enough - labelled) * busy_s
            for count in _counts(free, job.students, devices_lacking, teachers, sum_before):
                groups = (*before, DeviceGroup(kind.name, count))
                if groups not in seen:
                    seen.add(groups)
                    yield PlannedMesh(student, job.students, groups, rows)
            labelled += free / busy_s
            sum_before += free
            before = (*before, DeviceGroup(kind.name, free))
            if teachers is None and labelled >= enough:
                break


def _counts(
    free: int, students: int, devices_lacking: float, teachers: int | None, before: int
) -> list[int]:
    """Return the numbers of devices of one kind to evaluate, with `before` devices of others."""
    if teachers is not None:
        return [teachers - before] if 1 <= teachers - before <= free else []
    max_count = min(free, max(int(devices_lacking) + 1, students, 1))
    if max_count <= MOST_COUNTS:
        return list(range(1, max_count + 1))
    # Multiples of the students, unless these are too many.
    stride = max(students, max_count // MOST_COUNTS)
    return sorted({*range(stride, max_count + 1, stride), max_count})


#: Times and costs up to this multiple of the best count as equal.
TIE = 1.01


def plan(
    cluster: Cluster, job: Distillation, aim: Aim = "fastest", teachers: int | None = None
) -> MeshPlan:
    """Plan a job on a cluster.

    Args:
        cluster: the devices.
        job: the distillation.
        aim: what to optimise, within the deadline and the budget if a mesh can keep them.
        teachers: exact number of teachers; None: any.

    Raises:
        ValueError: no devices can train the job.
    """
    choices = student_kinds(cluster, job)
    no_mesh = MethodEstimate("mesh", _why_no_mesh(job, teachers))
    rated: list[tuple[MethodEstimate, PlannedMesh, Prediction]] = []
    others = []
    for kind, rows in choices:
        first = len(rated)
        for each in fleets(cluster, job, kind.name, rows, teachers):
            predicted = predict(cluster, job, each)
            rated.append((_mesh_estimate(cluster, job, each, predicted), each, predicted))
        its_mesh = _best(job, [no_mesh, *(entry[0] for entry in rated[first:])], aim)
        others.append(_other_estimates(cluster, job, kind.name, rows, its_mesh))
    estimates = tuple(
        _best(job, of_method, aim)
        for of_method in (*zip(*others, strict=True), [no_mesh, *(entry[0] for entry in rated)])
    )
    n_training, online, _, best = estimates
    mesh, prediction = next((entry[1:] for entry in rated if entry[0] is best), (None, None))
    students = next(one for one in (best, online, n_training) if not one.why_not)
    limits, size = prediction and prediction.thresholds, job.batch_bytes(students.rows)
    return MeshPlan(
        job=job.name,
        currency=cluster.currency,
        student=students.student,
        students=job.students,
        rows=students.rows,
        mesh=mesh,
        prediction=prediction,
        needed=0 if mesh is None else _needed(job, mesh),
        micro_batches={} if mesh is None else _micro_batches(job, mesh),
        upper_bytes=int(limits.upper * size) if limits else 0,
        lower_bytes=int(limits.lower * size) if limits else 0,
        estimates=estimates,
        verdict=judge(cluster, job, estimates, mesh, aim),
    )


def cost_per_hour(cluster: Cluster, mesh: PlannedMesh) -> float:
    """Return the hourly price of a mesh; unavailable devices cost nothing."""
    total = mesh.students * cluster.kind(mesh.student).price_per_hour
    for group in mesh.teacher_groups:
        kind = cluster.kind(group.kind)
        total += group.count * kind.availability * kind.price_per_hour
    return total


def _best(job: Distillation, estimates: Sequence[MethodEstimate], aim: Aim) -> MethodEstimate:
    """Return a method's best estimate for the aim, within the job's limits if any is.

    Of those that are about equally good, the other criterion decides, then fewer teachers. If all
    are impossible, the result has all reasons.
    """
    possible = [estimate for estimate in estimates if not estimate.why_not]
    if not possible:
        reasons = dict.fromkeys(estimate.why_not for estimate in estimates)
        return MethodEstimate(estimates[0].method, "; ".join(reasons))
    allowed = [estimate for estimate in possible if estimate.within_limits(job)] or possible
    best = min(estimate.sort_key(aim)[0] for estimate in allowed)
    tied = [estimate for estimate in allowed if estimate.sort_key(aim)[0] <= TIE * best]
    return min(tied, key=lambda one: (one.sort_key(aim)[1], one.teachers, one.sort_key(aim)))


def _mesh_estimate(
    cluster: Cluster, job: Distillation, mesh: PlannedMesh, prediction: Prediction
) -> MethodEstimate:
    rate = prediction.samples_per_s
    epoch_s = job.samples / rate + prediction.first_batch_s
    return _estimate("mesh", cluster, job, mesh, rate, epoch_s)


def _estimate(
    method: Method,
    cluster: Cluster,
    job: Distillation,
    mesh: PlannedMesh,
    rate: float,
    epoch_s: float,
) -> MethodEstimate:
    total_s, per_hour = job.epochs * epoch_s, cost_per_hour(cluster, mesh)
    return MethodEstimate(
        method,
        samples_per_s=rate,
        epoch_s=epoch_s,
        total_s=total_s,
        cost_per_hour=per_hour,
        cost=per_hour * total_s / 3600,
        teachers=mesh.teachers,
        student=mesh.student,
        rows=mesh.rows,
    )


def _other_estimates(
    cluster: Cluster, job: Distillation, student: str, rows: int, mesh: MethodEstimate
) -> tuple[MethodEstimate, ...]:
    """Return the estimates of the methods other than the mesh, with these students and batches.

    Args:
        cluster: the devices.
        job: the distillation.
        student: kind of the students' devices.
        rows: rows of a batch.
        mesh: estimate of the best mesh with these students and batches.
    """
    alone = PlannedMesh(student, job.students, (), rows)

    def plain(method: Method, batch_s: float) -> MethodEstimate:
        rate = job.students * rows / batch_s
        return _estimate(method, cluster, job, alone, rate, job.samples / rate)

    n_training = plain("N-training", job.step_s(student, rows))
    if why_not := _why_not_online(cluster, job, student, rows):
        online = MethodEstimate("Online", why_not)
    else:
        online = plain("Online", job.online_s(student, rows))
    replayed = plain("offline store", job.step_s(student, rows, STUDENT_BATCH_S))
    return n_training, online, _store_estimate(job, replayed, mesh, online)


def _why_not_online(cluster: Cluster, job: Distillation, student: str, rows: int) -> str:
    """Explain why the student's devices cannot run the teacher too; empty: they can."""
    if student not in job.teacher:
        return f"the job has no rate of the teacher on {student}"
    both = job.student[student].needs_bytes(rows) + job.teacher[student].needs_bytes(rows)
    if not fits(cluster.kind(student), both):
        return f"both models need {both / 2**30:.3g} GiB of a {student}"
    return ""


def _why_no_mesh(job: Distillation, teachers: int | None) -> str:
    if not job.teacher:
        return "the job has no rate of the teacher on any devices"
    if teachers is not None:
        return f"the cluster does not have {teachers} devices for teachers"
    return "no devices can be its teachers"


def _store_estimate(
    job: Distillation, replayed: MethodEstimate, mesh: MethodEstimate, online: MethodEstimate
) -> MethodEstimate:
    """Return the estimate of labelling in the first epoch and replaying in the others."""
    if not job.fixed_inputs:
        return MethodEstimate(
            "offline store", "inputs change from epoch to epoch (fixed_inputs: false)"
        )
    possible = [estimate for estimate in (online, mesh) if not estimate.why_not]
    if not possible:
        return MethodEstimate("offline store", "nothing can label the first epoch")
    first = min(possible, key=lambda estimate: estimate.epoch_s)
    total_s = first.epoch_s + (job.epochs - 1) * replayed.epoch_s
    labelling = first.cost_per_hour * first.epoch_s / 3600
    cost = labelling + replayed.cost_per_hour * (total_s - first.epoch_s) / 3600
    return replace(
        replayed,
        samples_per_s=job.epochs * job.samples / total_s,
        epoch_s=total_s / job.epochs,
        total_s=total_s,
        cost_per_hour=cost / total_s * 3600,
        cost=cost,
        teachers=first.teachers,
    )


def _needed(job: Distillation, mesh: PlannedMesh) -> int:
    """Return the `n` of Algorithm 1, line 1.

    Each batch costs a fixed time besides the time of its samples. The time of a sample includes its
    share of this fixed time.
    """
    rows = mesh.rows
    times = [
        job.rate("teacher", group.kind).batch_s(rows) / rows
        for group in mesh.teacher_groups
        for _ in range(min(int(group.count), 1000))
    ]
    return teachers_needed(
        harmonic_mean_t_t(times), job.rate("student", mesh.student).batch_s(rows) / rows
    )


def _micro_batches(job: Distillation, mesh: PlannedMesh) -> dict[str, int]:
    kinds = [group.kind for group in mesh.teacher_groups]
    known = {kind: job.rate("teacher", kind).micro_batch for kind in kinds}
    return {kind: min(size, mesh.rows) for kind, size in known.items() if size is not None}
