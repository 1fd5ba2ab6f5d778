"""The mesh as the page draws it: plain values of a `MeshStatus`, and the changes between two.

A document has four tables; a row is a flat object, its key is "service id":

```
{"mesh":     {"": {"managers", "now_ms", ...}},
 "services": {name: {...}},
 "teachers": {"service teacher_id": {...}},
 "students": {"service student_id": {...}}}
```
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from ...proto import coordinator_pb2 as pb
from ..manager.overview import state_of

Row = dict[str, Any]
Document = dict[str, dict[str, Row]]

TABLES: Final = ("mesh", "services", "teachers", "students")
#: Seconds for which a teacher that has left or was lost stays in the picture.
GHOST_S: Final = 10.0
_GONE: Final = {"lost": "lost", "left": "left"}


class Picture:
    """The latest document, with the teachers that have just left or were lost."""

    def __init__(self) -> None:
        self.document: Document = {table: {} for table in TABLES}
        self._ghosts: dict[str, tuple[float, Row]] = {}
        self._causes: dict[str, tuple[float, int, str]] = {}

    def update(self, status: pb.MeshStatus, events: Iterable[pb.Event], now: float) -> Document:
        """Replace the document; return the changes (see `difference`).

        Args:
            status: status of the mesh.
            events: events of its log since the last update.
            now: seconds of a monotonic clock.
        """
        for event in events:
            if event.kind in _GONE:
                cause = now, event.time_ms, _GONE[event.kind]
                self._causes[f"{event.service} {event.subject}"] = cause
        document = draw(status)
        for key, (_, time_ms, _) in self._causes.items():
            if time_ms > status.redis_time_ms:  # the status is cached, and older than the log
                document["teachers"].pop(key, None)
        self._keep_ghosts(document["teachers"], now)
        changes = difference(self.document, document)
        self.document = document
        return changes

    def _keep_ghosts(self, teachers: dict[str, Row], now: float) -> None:
        for key, row in self.document["teachers"].items():
            if key not in teachers and key not in self._ghosts:
                left = row["state"] == "draining"
                ghost = row | {"state": "left" if left else "lost", "in_flight": 0, "rate": 0.0}
                self._ghosts[key] = now, ghost
        self._ghosts = {
            key: (since, ghost)
            for key, (since, ghost) in self._ghosts.items()
            if key not in teachers and now - since < GHOST_S
        }
        self._causes = {
            key: cause for key, cause in self._causes.items() if now - cause[0] < GHOST_S
        }
        for key, (_, ghost) in self._ghosts.items():
            cause = self._causes.get(key)
            teachers[key] = ghost | ({"state": cause[2]} if cause else {})


def draw(status: pb.MeshStatus) -> Document:
    """Return the document of a status."""
    document: Document = {table: {} for table in TABLES}
    document["mesh"][""] = {"managers": sorted(status.managers)}
    for service in status.services:
        document["services"][service.name] = _service(service)
        served = {teacher for student in service.students for teacher in student.assigned}
        for teacher in service.teachers:
            key = f"{service.name} {teacher.teacher_id}"
            row = _teacher(service.name, teacher, status.redis_time_ms)
            row["state"] = _state(teacher, teacher.teacher_id in served)
            document["teachers"][key] = row
        for student in service.students:
            key = f"{service.name} {student.report.student_id}"
            document["students"][key] = _student(service.name, student, status.redis_time_ms)
    return document


def difference(before: Document, after: Document) -> Document:
    """Return the changed fields of each changed row; None: the row is gone."""
    changes: Document = {}
    for table in TABLES:
        old, new = before[table], after[table]
        rows: dict[str, Any] = {}
        for key, row in new.items():
            former = old.get(key)
            if former is None:
                rows[key] = row
            elif former != row:
                rows[key] = {name: value for name, value in row.items() if former[name] != value}
        rows.update((key, None) for key in old if key not in new)
        if rows:
            changes[table] = rows
    return changes


def _state(teacher: pb.Teacher, has_student: bool) -> str:
    state = state_of(teacher.admission, teacher.state)
    return "idle" if state == "serving" and not has_student else state


def _teacher(service: str, teacher: pb.Teacher, now_ms: int) -> Row:
    return {
        "service": service,
        "id": teacher.teacher_id,
        "host": teacher.host or teacher.address.rpartition("://")[2].rpartition(":")[0],
        "address": teacher.address,
        "device": teacher.device,
        "protocol": teacher.protocol,
        "voucher": teacher.voucher,
        "model": teacher.model,
        "content": teacher.content_id,
        "numerics": teacher.numerics_id,
        "verified": teacher.verified,
        "admission": teacher.admission,
        "slots": teacher.slots,
        "lanes": teacher.lanes,
        "in_flight": teacher.in_flight,
        "t_t": _short(teacher.t_t_seconds),
        "rate": _short(teacher.samples_per_second),
        "since_ms": teacher.incarnation,
        "until_ms": _deadline(now_ms, teacher.lease_remaining_s),
    }


def _student(service: str, student: pb.StudentStatus, now_ms: int) -> Row:
    report = student.report
    return {
        "service": service,
        "id": report.student_id,
        "host": report.host,
        "state": report.state,
        "teachers": sorted(student.assigned),
        "reason": student.reason,
        "want": report.want,
        "min": report.min,
        "needed": report.needed,
        "priority": report.priority,
        "unreachable": report.unreachable,
        "volume": report.volume_bytes,
        "lower": report.lower_bytes,
        "upper": report.upper_bytes,
        "starved": round(report.starved_seconds, 1),
        "blocked": round(report.blocked_seconds, 1),
        "source_wait": round(report.source_wait_seconds, 1),
        "rate": _short(report.samples_per_second),
        "samples": report.samples_delivered,
        "batches": report.batches_delivered,
        "resends": report.resends,
        "hedges": report.hedges,
        "slow": sorted(report.stragglers),
        "disputed": sorted(report.disputed),
        "ejected": sorted(map(list, zip(report.ejected, report.ejected_for, strict=False))),
        "t_s": _short(report.t_s_seconds),
        "t_t": _short(report.t_t_seconds),
        "epoch": report.data_epoch,
        "content": report.content_id,
        "until_ms": _deadline(now_ms, student.lease_remaining_s),
    }


def _service(service: pb.ServiceStatus) -> Row:
    return {
        "leader": service.leader,
        "term": service.term,
        "counter": service.counter,
        "teachers": service.teacher_count or len(service.teachers),
        "students": service.student_count or len(service.students),
        "shown": len(service.teachers),
        "shown_students": len(service.students),
        "wanted": service.wanted,
        "assigned": service.assigned,
        "rate": _short(service.samples_per_second),
        "starved": round(service.starved_seconds, 1),
        "blocked": round(service.blocked_seconds, 1),
        "source_wait": round(service.source_wait_seconds, 1),
        "content": service.content_id,
        "next_content": service.next_content_id,
        "upgrade_at": service.upgrade_at,
        "content_teachers": dict(sorted(service.content_teachers.items())),
        "content_students": dict(sorted(service.content_students.items())),
    }


def _deadline(now_ms: int, remaining_s: float) -> int:
    """Return when a lease ends, in ms of Redis's clock, rounded so that it rarely changes."""
    return round(now_ms / 100 + remaining_s * 10) * 100


def _short(number: float) -> float:
    """Round to three digits, as the page shows no more."""
    return float(f"{number:.3g}")
