"""Services as tables and as JSON: all in a table, or one with its upgrade."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ...proto import coordinator_pb2 as pb

if TYPE_CHECKING:
    from rich.console import RenderableType

_HASH: Final = 12
#: Fields of `to_json`: all but the members.
_SUMMARY = (
    *("name", "leader", "term", "counter", "teacher_count", "student_count", "wanted", "assigned"),
    *("samples_per_second", "starved_seconds", "blocked_seconds", "source_wait_seconds"),
    *("content_id", "next_content_id", "upgrade_at", "desired_reason", "desired_since_ms"),
)
_COUNTS = ("teacher_states", "student_states", "content_teachers", "content_students")


def to_json(service: pb.ServiceStatus) -> dict[str, Any]:
    """Return a service without its members; names as in message `ServiceStatus`."""
    summary = {name: getattr(service, name) for name in _SUMMARY}
    return (
        summary
        | {"desired_teachers": desired(service)}
        | {name: dict(getattr(service, name)) for name in _COUNTS}
    )


def desired(service: pb.ServiceStatus) -> int | None:
    """Return how many teachers it should have; None: unknown."""
    return service.desired_teachers if service.HasField("desired_teachers") else None


def number_of(count: int, what: str) -> str:
    """Return "1 teacher" or "2 teachers"."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def table(services: Iterable[pb.ServiceStatus]) -> RenderableType:
    """Return a table with a row for each service."""
    from rich.table import Table

    shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold dim")
    for head in ("service", "teachers", "students", "has/want", "samples/s", "content", "leader"):
        shown.add_column(head, overflow="fold")
    for service in services:
        shown.add_row(
            service.name,
            _counted(service.teacher_count, service.teacher_states),
            _counted(service.student_count, service.student_states),
            f"{service.assigned}/{service.wanted}",
            f"{service.samples_per_second:,.0f}",
            _contents(service),
            service.leader or "none",
        )
    return shown


def details(service: pb.ServiceStatus) -> RenderableType:
    """Return a table with a row for each fact of a service."""
    from rich.table import Table

    facts = {
        "service": service.name,
        "leader": service.leader or "none: no manager computes assignments now",
        "assignments": f"term {service.term}, number {service.counter}",
        "teachers": _counted(service.teacher_count, service.teacher_states),
        "desired": _desired(service),
        "students": _counted(service.student_count, service.student_states),
        "assigned": f"{service.assigned} of {service.wanted} wanted",
        "labelled": f"{service.samples_per_second:,.0f} samples/s",
        "students waited": f"{service.starved_seconds:,.1f} s for labels, "
        f"{service.source_wait_seconds:,.1f} s for their source; "
        f"pulling was paused {service.blocked_seconds:,.1f} s",
        "content": service.content_id or "not declared",
        "upgrade": _upgrade(service),
    }
    for content in sorted({*service.content_teachers, *service.content_students}):
        facts[f"on {content[:_HASH] or 'no content'}"] = (
            f"{number_of(service.content_teachers.get(content, 0), 'teacher')}, "
            f"{number_of(service.content_students.get(content, 0), 'student')}"
        )
    shown = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    shown.add_column(style="dim", no_wrap=True)
    shown.add_column(overflow="fold")
    for name, text in facts.items():
        shown.add_row(name, text)
    return shown


def _desired(service: pb.ServiceStatus) -> str:
    count = desired(service)
    if count is None:
        return "no manager has said so"
    return f"{number_of(count, 'teacher')}: {service.desired_reason}"


def _upgrade(service: pb.ServiceStatus) -> str:
    if not service.next_content_id:
        return "none"
    when = "at once" if service.upgrade_at == "now" else "each at its next epoch"
    left = service.content_students.get(service.content_id, 0)
    return f"to {service.next_content_id}, {when}: {number_of(left, 'student')} still to move"


def _contents(service: pb.ServiceStatus) -> str:
    moving = f" -> {service.next_content_id}" if service.next_content_id else ""
    return (service.content_id or "-") + moving


def _counted(count: int, states: Any) -> str:
    """Return for example "5 (4 serving, 1 draining)"."""
    parts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{count} ({parts})" if parts else str(count)
