"""The whole mesh as one message: what the registry has, and what this manager knows better."""

from __future__ import annotations

from collections.abc import Iterable

from ..proto import coordinator_pb2 as pb
from .facts import student_from, teacher_from
from .registry import Registry


def mesh_status(
    registry: Registry, own: Iterable[pb.ServiceStatus], only: str = ""
) -> pb.MeshStatus:
    """Read who is alive and who serves whom.

    Args:
        registry: the leases of all managers' members.
        own: students, terms and counters of the manager that answers; fresher than its leases.
        only: one service; empty for all.

    Raises:
        RegistryUnavailable: the registry does not answer.
    """
    known = {service.name: service for service in own}
    names = set(registry.services()) | {name for name, s in known.items() if s.students}
    status = pb.MeshStatus(
        managers=[member.member for member in registry.members("managers", "")],
        redis_time_ms=registry.time_ms(),
    )
    for name in sorted(names):
        if only in ("", name):
            status.services.append(_service(registry, name, known.get(name)))
    return status


def _service(registry: Registry, name: str, own: pb.ServiceStatus | None) -> pb.ServiceStatus:
    students = {
        member.member: student_from(member) for member in registry.members("students", name)
    }
    if own is not None:
        students |= {student.report.student_id: student for student in own.students}
    return pb.ServiceStatus(
        name=name,
        teachers=[teacher_from(member) for member in registry.members("teachers", name)],
        students=[student for _, student in sorted(students.items())],
        term=own.term if own else 0,
        counter=own.counter if own else 0,
    )
