"""`MeshStatus` as tables and as JSON of a stable structure; also tables of services alone.

The JSON form:

```
{"redis_time_ms": int, "managers": ["host:port", ...],
 "services": [
   {every field of message ServiceStatus ("desired_teachers" is null while it is unknown), but:
    "teachers": [{every field of message Teacher, "serves": [student ids]}, ...],
    "students": [{every field of message StudentReport,
                  "assigned": [teacher ids], "lease_remaining_s": float, "reason": str}, ...]},
   ...],
 "machines": [...], "deployments": [...], as `machines_view.py` says,
 "jobs": [trainings, as `jobs_view.py` says],
 "elastic_jobs": as `queue_view.py` says; null if the user may not read them}
```

Fields have the names of `coordinator.proto`. New ones may be added; none is renamed or removed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ...proto import coordinator_pb2 as pb
from ...scheduler.circuit_breakers import IN_WORDS
from ..manager.overview import state_of
from .text_output import Columns, message_fields, table_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

_STYLES = {
    "serving": "green",
    "steady": "green",
    "draining": "yellow",
    "refused": "bold red",
    "waiting": "yellow",
    "blocked": "cyan",
    "source_wait": "yellow",
    "starved": "bold red",
}
#: Shown characters of a content id.
_ID_LENGTH: Final = 12
_BAR_CELLS = 10


def to_json(status: pb.MeshStatus) -> dict[str, Any]:
    """Return the JSON form that the module describes."""
    return {
        "redis_time_ms": status.redis_time_ms,
        "managers": list(status.managers),
        "services": [_service_json(service) for service in status.services],
    }


def summary_json(service: pb.ServiceStatus) -> dict[str, Any]:
    """Return a service without its members; names as in message `ServiceStatus`."""
    fields = {**message_fields(service), "desired_teachers": desired(service)}
    return {name: value for name, value in fields.items() if name not in ("teachers", "students")}


def _service_json(service: pb.ServiceStatus) -> dict[str, Any]:
    serves = _serves(service)
    return {
        **summary_json(service),
        "teachers": [
            {**message_fields(teacher), "serves": serves[teacher.teacher_id]}
            for teacher in service.teachers
        ],
        "students": [
            {
                **message_fields(student.report),
                "assigned": list(student.assigned),
                "lease_remaining_s": student.lease_remaining_s,
                "reason": student.reason,
            }
            for student in service.students
        ],
    }


def _serves(service: pb.ServiceStatus) -> defaultdict[str, list[str]]:
    """Return the ids of the students of each teacher."""
    serves: defaultdict[str, list[str]] = defaultdict(list)
    for student in service.students:
        for teacher in student.assigned:
            serves[teacher].append(student.report.student_id)
    return serves


def render(status: pb.MeshStatus, requested_service: str = "") -> RenderableType:
    """Return tables of the teachers and students of each service.

    `requested_service`: the only service of the status, for the message if it has no members.
    """
    from rich.console import Group
    from rich.text import Text

    managers = ", ".join(status.managers) or "none"
    parts: list[RenderableType] = [Text(f"service managers: {managers}", style="dim")]
    if not status.services:
        where = f" for service {requested_service!r}" if requested_service else ""
        parts.append(Text(f"no teacher and no student is registered{where}"))
    for service in status.services:
        parts += [Text(), _heading(service)]
        if service.teachers:
            parts += [Text(), teacher_table(service)]
            parts += _left_out(len(service.teachers), service.teacher_count, "teachers")
            parts += _troubles(service)
        if service.students:
            parts += [Text(), student_table(service.students)]
            parts += _left_out(len(service.students), service.student_count, "students")
    return Group(*parts)


def _left_out(shown: int, count: int, what: str) -> list[RenderableType]:
    """Return a line that says how many members a table leaves out, and how to see them."""
    from rich.text import Text

    if shown >= count:
        return []
    return [Text(f"... {shown:,} of {count:,} {what}, problems first; --all shows all", "dim")]


def _troubles(service: pb.ServiceStatus) -> list[RenderableType]:
    """Return lines about teachers that are slow, ejected or disputed, as students report."""
    from rich.text import Text

    slow: defaultdict[str, list[str]] = defaultdict(list)
    ejected: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    disputed: defaultdict[tuple[str, ...], list[str]] = defaultdict(list)
    for report in (student.report for student in service.students):
        for teacher in report.stragglers:
            slow[teacher].append(report.student_id)
        if report.disputed:
            disputed[tuple(report.disputed)].append(report.student_id)
        for teacher, cause in zip(report.ejected, report.ejected_for, strict=False):
            why = next((words for known, words in IN_WORDS.items() if known == cause), cause)
            if teacher in report.half_open:
                why += ", and is probed now"
            ejected[teacher, why].append(report.student_id)
    return [
        *(
            Text(f"teacher {teacher} is ejected by {', '.join(students)}: it {why}", "bold red")
            for (teacher, why), students in sorted(ejected.items())
        ),
        *(
            Text(
                f"teachers {', '.join(teachers)} contradict each other, as {', '.join(students)}"
                " noticed: a third teacher is needed to decide which are wrong",
                "bold red",
            )
            for teachers, students in sorted(disputed.items())
        ),
        *(
            Text(f"teacher {teacher} is a straggler to {', '.join(students)}", "bold yellow")
            for teacher, students in sorted(slow.items())
        ),
    ]


def _heading(service: pb.ServiceStatus) -> Text:
    from rich.text import Text

    heading = Text(service.name, style="bold")
    heading.append(
        f"  {number_of(service.teacher_count, 'teacher')}, "
        f"{number_of(service.student_count, 'student')}, "
        f"{service.samples_per_second:,.0f} samples/s",
        style="not bold",
    )
    if service.student_count and not service.leader:
        heading.append("  no manager leads", style="bold red")
    count = desired(service)
    if count is not None and count != service.teacher_count:
        heading.append(f"  {count} desired", style="not bold yellow")
    if service.next_content_id:
        heading.append(f"  upgrade to {service.next_content_id}", style="not bold magenta")
    kinds = sorted({kind for teacher in service.teachers for kind in teacher.output_kinds})
    if kinds:
        heading.append(f"\noutputs: {', '.join(kinds)}", style="not bold dim")
    states = _states(service)
    if states:
        heading.append(f"\n{states}", style="not bold dim")
    return heading


def _states(service: pb.ServiceStatus) -> str:
    """Return the number of members in each state, unless all are in the usual state."""
    kinds = (("teachers", service.teacher_states), ("students", service.student_states))
    usual = {"teachers": {"serving"}, "students": {"steady"}}
    return "; ".join(
        f"{what}: " + ", ".join(f"{count:,} {state}" for state, count in sorted(states.items()))
        for what, states in kinds
        if set(states) - usual[what]
    ).replace("_", " ")


def teacher_table(service: pb.ServiceStatus) -> Table:
    """Return a row for each teacher of a service."""
    serves = _serves(service)
    columns: Columns[pb.Teacher] = {  # heads of two short lines fit into 80 columns
        "teacher": lambda one: one.teacher_id,
        "address": lambda one: one.address,
        "state": lambda one: _state(state_of(one.admission, one.state)),
        "device": _device,
        "t_t\nms": lambda one: f"{one.t_t_seconds * 1000:.3g}" if one.t_t_seconds else "-",
        "samples\nper s": lambda one: "-" if one.voucher else f"{one.samples_per_second:,.0f}",
        "in\nflight": _in_flight,
        "lease\ns": lambda one: f"{one.lease_remaining_s:.1f}",
        "serves": lambda one: ", ".join(serves[one.teacher_id]) or "-",
    }
    texts = {"teacher", "address", "state", "device", "serves"}
    return table_of(service.teachers, columns, columns.keys() - texts, gap=1)


def _device(teacher: pb.Teacher) -> str:
    """Return the device, and the protocol of a foreign server."""
    return f"{teacher.device} ({teacher.protocol})" if teacher.voucher else teacher.device


def _in_flight(teacher: pb.Teacher) -> str:
    if teacher.voucher:  # its sidecar does not see its requests
        return f"-/{teacher.slots}"
    return f"{teacher.in_flight}/{teacher.slots}" if teacher.slots else str(teacher.in_flight)


_STUDENT: Final[Columns[pb.StudentStatus]] = {
    "student": lambda one: one.report.student_id,
    "state": lambda one: _state(one.report.state),
    "has/\nwant": lambda one: f"{len(one.assigned)}/{one.report.want}",
    "\nn": lambda one: str(one.report.needed or "-"),
    "samples\nper s": lambda one: f"{one.report.samples_per_second:,.0f}",
    "star-\nved s": lambda one: f"{one.report.starved_seconds:.1f}",
    "block-\ned s": lambda one: f"{one.report.blocked_seconds:.1f}",
    "source\nwait s": lambda one: f"{one.report.source_wait_seconds:.1f}",
    "re-\nsends": lambda one: str(one.report.resends),
    "bar with\n| at lt": lambda one: volume_bar(
        one.report.volume_bytes, one.report.lower_bytes, one.report.upper_bytes
    ),
    "volume\nof ut": lambda one: (
        f"{_size(one.report.volume_bytes)} of {_size(one.report.upper_bytes)}"
    ),
}


def student_table(students: Iterable[pb.StudentStatus]) -> Table:
    """Return a row for each student."""
    texts = {"student", "state", "volume\nof ut"}
    return table_of(students, _STUDENT, _STUDENT.keys() - texts, gap=1)


def _state(state: str) -> Text:
    from rich.text import Text

    return Text(state.replace("_", " ") or "-", style=_STYLES.get(state, ""))


def volume_bar(volume_bytes: int, lower_bytes: int, upper_bytes: int) -> Text:
    """Return a bar that is full at ut, with a mark at lt."""
    from rich.text import Text

    if upper_bytes == 0:
        return Text("-")
    filled = min(_BAR_CELLS, round(_BAR_CELLS * volume_bytes / upper_bytes))
    mark = min(_BAR_CELLS - 1, int(_BAR_CELLS * lower_bytes / upper_bytes))
    style = "cyan" if volume_bytes >= upper_bytes else "green" if volume_bytes else "red"
    bar = Text()
    for cell in range(_BAR_CELLS):
        full = cell < filled
        bar.append("|" if cell == mark else "█" if full else "░", style=style if full else "dim")
    return bar


def _size(count_bytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count_bytes < 1024:
            return f"{count_bytes:.3g} {unit}"
        count_bytes /= 1024
    return f"{count_bytes:.3g} TiB"


def desired(service: pb.ServiceStatus) -> int | None:
    """Return how many teachers it should have; None: unknown."""
    return service.desired_teachers if service.HasField("desired_teachers") else None


def number_of(count: int, what: str) -> str:
    """Return "1 teacher" or "2 teachers"."""
    return f"{count:,} {what}" + ("" if count == 1 else "s")


def service_table(services: Iterable[pb.ServiceStatus]) -> RenderableType:
    """Return a table with a row for each service."""
    columns: Columns[pb.ServiceStatus] = {
        "service": lambda one: one.name,
        "teachers": lambda one: _counted(one.teacher_count, one.teacher_states),
        "students": lambda one: _counted(one.student_count, one.student_states),
        "has/want": lambda one: f"{one.assigned}/{one.wanted}",
        "samples/s": lambda one: f"{one.samples_per_second:,.0f}",
        "content": _contents,
        "leader": lambda one: one.leader or "none",
    }
    return table_of(services, columns)


def service_details(service: pb.ServiceStatus) -> RenderableType:
    """Return a table with a row for each fact of a service."""
    from rich.table import Table
    from rich.text import Text

    facts = {
        "service": service.name,
        "leader": service.leader or "none: no manager computes assignments now",
        "assignments": f"term {service.term}, number {service.counter}",
        "teachers": _counted(service.teacher_count, service.teacher_states),
        "desired": _desired_text(service),
        "students": _counted(service.student_count, service.student_states),
        "assigned": f"{service.assigned} of {service.wanted} wanted",
        "delivered": f"{service.samples_per_second:,.0f} samples/s",
        "students waited": f"{service.starved_seconds:,.1f} s for labels, "
        f"{service.source_wait_seconds:,.1f} s for their source; "
        f"pulling was paused {service.blocked_seconds:,.1f} s",
        "content": service.content_id or "not declared",
        "upgrade": _upgrade(service),
    }
    for content in sorted({*service.content_teachers, *service.content_students}):
        facts[f"on {content[:_ID_LENGTH] or 'no content'}"] = (
            f"{number_of(service.content_teachers.get(content, 0), 'teacher')}, "
            f"{number_of(service.content_students.get(content, 0), 'student')}"
        )
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in facts.items():
        table.add_row(name, Text(text))
    return table


def _desired_text(service: pb.ServiceStatus) -> str:
    count = desired(service)
    if count is None:
        return "unknown: no manager has written a number"
    return f"{number_of(count, 'teacher')}: {service.desired_reason}"


def _upgrade(service: pb.ServiceStatus) -> str:
    if not service.next_content_id:
        return "none"
    when = "at once" if service.upgrade_at == "now" else "each at its next epoch"
    remaining = service.content_students.get(service.content_id, 0)
    return f"to {service.next_content_id}, {when}: {number_of(remaining, 'student')} still to move"


def _contents(service: pb.ServiceStatus) -> str:
    moving = f" -> {service.next_content_id}" if service.next_content_id else ""
    return (service.content_id or "-") + moving


def _counted(count: int, states: Any) -> str:
    """Return for example "5 (4 serving, 1 draining)"."""
    parts = ", ".join(f"{number} {state}" for state, number in sorted(states.items()))
    return f"{count} ({parts})" if parts else str(count)
