"""Students' leases in the registry, written by the manager that holds their streams."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import LeaseSuperseded
from .facts import report_facts
from .registry import Registry
from .roster import Student

#: Writes per TTL and student, however often it reports.
_WRITES_PER_TTL = 6


@dataclass(slots=True)
class _Written:
    incarnation: int
    facts: dict[str, str]
    at_s: float


class StudentLeases:
    """Makes and prolongs leases of kind "students" in one service.

    What stands in Redis is a copy for `edl status` and for other managers; nothing here depends on
    it, so a write may come late.
    """

    def __init__(self, registry: Registry, service: str, ttl_s: float) -> None:
        self._registry = registry
        self._service = service
        self._ttl_s = ttl_s
        self._written: dict[str, _Written] = {}

    def write(self, student: Student, now: float) -> None:
        """Write a student that has said or got something new; at most six times per TTL.

        Raises:
            LeaseSuperseded: a newer incarnation of it is registered, by another manager.
            RegistryUnavailable: the registry does not answer.
        """
        report = student.report
        written = self._written.get(report.student_id)
        new = written is None or written.incarnation != report.incarnation
        if not new and written and now - written.at_s < self._ttl_s / _WRITES_PER_TTL:
            return
        facts = report_facts(report, student.assigned)
        if new or written is None or not self._prolong(report.student_id, written, facts):
            self._register(report.student_id, facts)
        self._written[report.student_id] = _Written(report.incarnation, facts, now)

    def end(self, student_id: str) -> None:
        """End the lease of a student that is gone, unless a newer incarnation holds it."""
        written = self._written.pop(student_id, None)
        if written is not None:
            self._registry.leave("students", self._service, student_id, written.incarnation)

    def _prolong(self, student_id: str, written: _Written, facts: dict[str, str]) -> bool:
        changed = {k: v for k, v in facts.items() if written.facts.get(k) != v}
        return self._registry.beat(
            "students",
            self._service,
            student_id,
            self._ttl_s,
            incarnation=written.incarnation,
            facts=changed,
        )

    def _register(self, student_id: str, facts: dict[str, str]) -> None:
        try:
            self._registry.register("students", self._service, student_id, facts, self._ttl_s)
        except LeaseSuperseded:
            self._written.pop(student_id, None)
            raise
