"""Converts a plan to a scenario for `edl simulate`, which also models failures and starts."""

from __future__ import annotations

from ...scheduler.cluster import Cluster, DeviceLink, Distillation
from ...scheduler.pipeline_model import (
    LINK_SHARE,
    STUDENT_BATCH_S,
    TEACHER_BATCH_S,
    DeviceGroup,
    PlannedMesh,
    Prediction,
)
from ...scheduler.simulator.scenario import NetworkLink, Scenario, StudentGroup, TeacherGroup

#: Number of simulated batches per student, enough for a steady rate: on average, as students may
#: differ in speed. About the first `WARM_UP` do not count.
BATCHES, WARM_UP = 2000, 50


def scenario_of(
    cluster: Cluster, job: Distillation, mesh: PlannedMesh, prediction: Prediction
) -> Scenario:
    """Make the scenario of a planned mesh.

    Each student asks for exactly its share of the teachers, as the plan assumes.

    Args:
        cluster: devices; the scenario has the average available number of each kind.
        job: the distillation.
        mesh: devices of students and teachers.
        prediction: prediction for this mesh; gives `ut` and `lt`.
    """
    rows, limits = mesh.rows, prediction.thresholds
    student_rate = job.rate("student", mesh.student)
    source_s = 0.0 if job.source_samples_per_s is None else rows / job.source_samples_per_s
    teachers = [_teacher_group(cluster, job, mesh, group) for group in mesh.teacher_groups]
    total = sum(group.count for group in teachers)
    share = max(1, -(-total // mesh.students))
    students = StudentGroup(
        name=mesh.student,
        count=mesh.students,
        batch=rows,
        t_s_s=student_rate.sample_s,
        overhead_s=student_rate.batch_overhead_s + STUDENT_BATCH_S,
        jitter=student_rate.jitter,
        source_s=source_s,
        upper=max(limits.upper, 1),
        lower=limits.lower,
        teachers_min=share,
        teachers_max=share,
        together=job.synchronous and mesh.students > 1,
        input_bytes=job.sample_bytes,
        label_bytes=job.label_bytes,
        link=_network_link(cluster.kind(mesh.student).link),
    )
    batch_s = rows * mesh.students / prediction.samples_per_s
    return Scenario(
        name=job.name,
        students=(students,),
        teachers=tuple(teachers),
        duration_s=BATCHES * batch_s,
        warm_up_s=WARM_UP * batch_s,
        window=job.window,
        window_max=job.window_max,
    )


def _teacher_group(
    cluster: Cluster, job: Distillation, mesh: PlannedMesh, group: DeviceGroup
) -> TeacherGroup:
    kind, rate = cluster.kind(group.kind), job.rate("teacher", group.kind)
    return TeacherGroup(
        name=kind.name if kind.name != mesh.student else f"{kind.name}-teachers",
        count=max(1, round(group.count * kind.availability)),
        t_t_s=rate.sample_s,
        batch_overhead_s=rate.batch_overhead_s + TEACHER_BATCH_S,
        jitter=rate.jitter,
        link=_network_link(kind.link),
        price_per_hour=kind.price_per_hour,
    )


def _network_link(link: DeviceLink) -> NetworkLink:
    return NetworkLink(LINK_SHARE * link.bandwidth_bytes_per_s, link.latency_s, link.jitter)
