"""Converts facts and log entries of the registry to messages of `coordinator.proto`, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from ...proto import coordinator_pb2 as pb
from ...scheduler.admission import TeacherIdentity
from ..registry.schema import LogEntry
from ..store.records import Member

_M = TypeVar("_M", bound=Message)

#: Fact of a student: address of the manager that holds its stream.
MANAGER: Final = "manager"
_FLOATS = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT)


def teacher_from(member: Member) -> pb.Teacher:
    """Return a teacher as a message; facts without a field, such as its key, are omitted."""
    teacher = _filled(pb.Teacher(), member.facts)
    teacher.teacher_id = member.member
    teacher.lease_remaining_s = member.remaining_s
    if member.draining:
        teacher.state = "draining"
    return teacher


def identity_from(member: Member) -> TeacherIdentity:
    """Return the identity under which this incarnation of a teacher is probed and admitted."""
    return TeacherIdentity(member.member, member.incarnation, member.facts.get("address", ""))


def report_facts(report: pb.StudentReport) -> dict[str, str]:
    """Return a student's report as facts."""
    facts = {}
    for field in report.DESCRIPTOR.fields:
        value = getattr(report, field.name)
        facts[field.name] = " ".join(value) if field.is_repeated else str(value)
    return facts


def report_from(member: Member) -> pb.StudentReport:
    """Return the latest report of a student, as it was written to its facts."""
    report = _filled(pb.StudentReport(), member.facts)
    report.student_id = member.member
    return report


def _filled(message: _M, facts: Mapping[str, str]) -> _M:
    """Set the fields of a message from facts; skip invalid facts.

    Other processes write facts, and no fact may stop a manager.
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
                number = float(text)
                if math.isfinite(number):  # else the web page's JSON would be invalid
                    setattr(message, field.name, number)
            else:
                setattr(message, field.name, int(text))
        except ValueError:
            continue
    return message


def event_message(service: str, entry: LogEntry) -> pb.Event:
    """Return a log entry as a message."""
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


def parse_number(text: str | None) -> float:
    """Parse a fact that is a number, 0 or greater; 0 if it is missing or invalid."""
    try:
        value = float(text or 0)
    except ValueError:
        return 0.0
    return value if 0 <= value < 1e15 else 0.0
