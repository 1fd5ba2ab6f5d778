"""Messages as facts and back: what the registry keeps as strings, `coordinator.proto` has typed.

----
Entries of the log as messages: the registry keeps a `LogEntry`, the wire has an `Event`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ...proto import coordinator_pb2 as pb
from ..registry.schema import LogEntry
from ..store.records import Member

_M = TypeVar("_M", bound=Message)

#: Fact of a student: address of the manager that holds its stream.
MANAGER: Final = "manager"
_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def teacher_from(member: Member) -> pb.Teacher:
    """The teacher that a lease of kind "teachers" stands for.

    Facts that are no field of the message, such as the key that proves its identity, stay behind.
    """
    teacher = _filled(pb.Teacher(), member.facts)
    teacher.teacher_id = member.member
    teacher.lease_remaining_s = member.remaining_s
    if member.draining:
        teacher.state = "draining"
    return teacher


def report_facts(report: pb.StudentReport) -> dict[str, str]:
    """The facts that a manager keeps of a student."""
    facts = {}
    for field in report.DESCRIPTOR.fields:
        value = getattr(report, field.name)
        facts[field.name] = " ".join(value) if field.is_repeated else str(value)
    return facts


def report_from(member: Member) -> pb.StudentReport:
    """What the student that a lease of kind "students" stands for said last, as far as written."""
    report = _filled(pb.StudentReport(), member.facts)
    report.student_id = member.member
    return report


def _filled(message: _M, facts: Mapping[str, str]) -> _M:
    """`message` with the facts that fit its fields; what does not fit is left out.

    Facts come from whoever may write to Redis: none of them may stop a manager.
    """
    for field in message.DESCRIPTOR.fields:
        text = facts.get(field.name)
        if text is None:
            continue
        try:
            if field.is_repeated:
                getattr(message, field.name).extend(text.split())
            elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
                setattr(message, field.name, text)
            elif field.cpp_type in _FLOATS:
                setattr(message, field.name, float(text))
            else:
                setattr(message, field.name, int(text))
        except ValueError:
            continue
    return message


def event_message(service: str, entry: LogEntry) -> pb.Event:
    """What a log says, as it is sent."""
    return pb.Event(
        service=service,
        id=entry.id,
        time_ms=entry.time_ms,
        kind=entry.kind,
        subject=entry.subject,
        text=entry.text,
        before=entry.before,
        after=entry.after,
    )


def number_of(text: str | None) -> float:
    """A fact that counts or measures; 0 where it is none: facts come from whoever may write."""
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e15 else 0.0
