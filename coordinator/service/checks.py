"""What a student's report has to be before anything believes it."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from ...errors import WireError
from ...proto import coordinator_pb2 as pb
from ...proto.protocols import check_version
from ...scheduler.circuit_breakers import IN_WORDS
from ..limits import Limits
from ..registry import keys

#: Terms are milliseconds since 1970, incarnations microseconds: far below, and so is whatever is
#: made from these.
_MOST: Final = 1 << 62
_STATES: Final = frozenset({"", "steady", "starved", "blocked", "source_wait"})
_CAUSES: Final = frozenset(IN_WORDS)
_FIELDS: Final[tuple[Any, ...]] = tuple(pb.StudentReport.DESCRIPTOR.fields)
_Type = FieldDescriptor


def check_report(report: pb.StudentReport, former: pb.StudentReport | None, limits: Limits) -> None:
    """Refuse a report that no student of ours could send.

    Args:
        report: what came.
        former: the one before on the same stream; None for the first.
        limits: how much it may hold.

    Raises:
        VersionMismatch: it is of another version of the protocol.
        UsageError: a name that cannot be.
        WireError: anything else that cannot be.
    """
    check_version(report.protocol_version)
    keys.check_service(report.service)
    keys.check_member("students", report.student_id)
    lists = (
        report.teachers,
        report.stragglers,
        report.ejected,
        report.disputed,
        report.half_open,
        report.unavailable,
    )
    named = max(map(len, lists))
    if named > limits.held:
        raise WireError(f"a student names {named} teachers; at most {limits.held}")
    for teacher in chain.from_iterable(lists):
        keys.check_member("teachers", teacher)
    if len(report.ejected) != len(report.ejected_for) or not _CAUSES.issuperset(report.ejected_for):
        raise WireError(
            f"of each teacher that a student has ejected it says one of {sorted(_CAUSES)}"
        )
    for field in _FIELDS:
        if not field.is_repeated:
            _check_value(field, getattr(report, field.name), limits)
    if report.state not in _STATES:
        raise WireError(f"state {report.state!r:.80} is none of a student's")
    if former is not None and _identity(report) != _identity(former):
        raise WireError(
            f"a stream belongs to one student: it began as {_identity(former)} and goes on as "
            f"{_identity(report)}"
        )


def _check_value(field: FieldDescriptor, value: Any, limits: Limits) -> None:
    if field.cpp_type == _Type.CPPTYPE_STRING:
        if len(value) > limits.text:
            raise WireError(f"{field.name} has {len(value)} characters; at most {limits.text}")
        if not value.isprintable() or (" " in value):
            raise WireError(f"{field.name} holds blanks or control characters: {value!r:.80}")
    elif field.cpp_type == _Type.CPPTYPE_DOUBLE:
        if not 0.0 <= value < math.inf:
            raise WireError(f"{field.name} is a positive number, not {value}")
    elif value > _MOST:
        raise WireError(f"{field.name} {value} is beyond all that can be")


def _identity(report: pb.StudentReport) -> tuple[str, str, int]:
    return report.service, report.student_id, report.incarnation
