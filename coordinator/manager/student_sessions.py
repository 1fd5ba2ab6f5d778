"""Students of one manager: their streams, their owners, and what was written and sent for each.

The first caller that subscribes as a student owns its name: the student's facts hold hashes of its
principal and of the secret of its stream. If the registry has lost them, the next caller becomes
the owner.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...runtime.errors import EdlError, Forbidden, LeaseSuperseded
from ..registry import Epoch, Row
from ..registry.schema import concerns_managers
from ..store.records import Member, MemberBeat
from .messages import MANAGER, report_facts, teacher_from

#: Facts of a teacher that students need; other changes are not sent.
_FOR_STUDENTS = (
    "incarnation", "address", "protocol", "content_id", "numerics_id", "state", "drain", "slots",
    "inputs", "voucher",
)  # fmt: skip

OWNER: Final = "owner"
SECRET: Final = "secret"


@dataclass(frozen=True, slots=True)
class StudentOwner:
    """The caller that opened a stream as a student.

    Attributes:
        principal: identity of its credential; empty without authentication.
        secret: secret of its subscription: the one presented, or a new one.
    """

    principal: str = ""
    secret: str = ""

    def facts(self) -> dict[str, str]:
        """Return what the registry keeps beside the student's report."""
        return {OWNER: _hash(self.principal), SECRET: _hash(self.secret)}


def refusal_of(
    student_id: str, incarnation: int, caller: StudentOwner, facts: Mapping[str, str] | None
) -> EdlError | None:
    """Return why a caller may not report as a student; None: it may.

    Args:
        student_id: id of the student.
        incarnation: incarnation that the caller claims.
        caller: the caller.
        facts: what the registry knows of the student; None: nothing.

    Returns:
        Forbidden for another owner, or for the wrong secret of the same incarnation;
        LeaseSuperseded for an older incarnation. A caller with the right secret of the same
        incarnation is the owner whatever its principal, as tokens may have been rotated.
    """
    if not facts:
        return None
    mine = caller.facts()
    same_incarnation = facts.get("incarnation", "") == str(incarnation)
    if same_incarnation and _agree(facts, mine, SECRET):
        return None
    if not _agree(facts, mine, OWNER):
        return Forbidden(f"student {student_id} belongs to another principal")
    if same_incarnation:
        return Forbidden(
            f"student {student_id} has a stream with another secret; a new start of it needs a "
            "greater incarnation"
        )
    if incarnation < Member(student_id, facts).incarnation:
        return superseded_by_restart(student_id)
    return None


def owns(principal: str, facts: Mapping[str, str]) -> bool:
    """Whether a student with these facts was subscribed by `principal`."""
    return _equal(facts.get(OWNER, ""), _hash(principal))


def _agree(facts: Mapping[str, str], mine: Mapping[str, str], name: str) -> bool:
    """Whether the stored hash matches; True if none is stored."""
    kept = facts.get(name, "")
    return not kept or _equal(kept, mine[name])


def _equal(kept: str, mine: str) -> bool:
    """Whether hashes are equal; as bytes, since a stored text may be anything."""
    return hmac.compare_digest(kept.encode(), mine.encode())


def superseded_by_restart(student_id: str) -> LeaseSuperseded:
    """Return the error for an older incarnation."""
    return LeaseSuperseded(
        f"student {student_id} was started again and has replaced this one; if both are to run,"
        " give each reader another rank= or job="
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class AssignmentStream(Protocol):
    """The stream to a subscribed student. Neither method may block or raise."""

    def push(self, assignment: pb.Assignment) -> None:
        """Send an assignment; it replaces one that was not sent yet."""

    def close(self, error: EdlError) -> None:
        """End the stream with an error."""


class StudentSession:
    """A student that is subscribed at this manager.

    Args:
        stream: receives its assignments.
        report: its latest report.
        owner: its owner.
        manager: address of this manager.

    Attributes:
        pushed: the row that it was sent last.
        written: its facts in the registry; None: the registry may have lost its lease.
        written_s: when they were written.
    """

    def __init__(
        self, stream: AssignmentStream, report: pb.StudentReport, owner: StudentOwner, manager: str
    ) -> None:
        self.stream = stream
        self.report = report
        self.owner = owner
        self.pushed: Row | None = None
        self.written: dict[str, str] | None = None
        self.written_s = 0.0
        self._own = {**owner.facts(), MANAGER: manager}
        self._noted: dict[str, str] = {}
        self._sent: object = None
        self._noted_epoch: Epoch = (0, 0)

    @property
    def student_id(self) -> str:
        return self.report.student_id

    @property
    def incarnation(self) -> int:
        return self.report.incarnation

    def is_ahead(self, epoch: Epoch) -> bool:
        """Whether it follows an epoch above that of the table, and the leader does not know it."""
        return self._follows > epoch and self._follows != self._noted_epoch

    def note_epoch(self) -> None:
        """Record that the leader knows which epoch it follows."""
        self._noted_epoch = self._follows

    @property
    def _follows(self) -> Epoch:
        return self.report.term, self.report.counter

    def facts(self) -> dict[str, str]:
        """Return the facts that the registry should have."""
        return {**report_facts(self.report), **self._own}

    def beat(self, facts: Mapping[str, str], *, urgent: bool) -> MemberBeat:
        """Return the heartbeat that writes these facts; `urgent`: managers see it in any case."""
        written = self.written or {}
        changed = {name: value for name, value in facts.items() if written.get(name) != value}
        noted = urgent or concerns_managers("students", changed, self._noted)
        return MemberBeat(self.student_id, self.incarnation, changed, noted)

    def wrote(self, facts: dict[str, str], at_s: float, *, noted: bool) -> None:
        """Record that these facts were written; `noted`: managers were notified."""
        self.written, self.written_s = facts, at_s
        if noted:
            self._noted = facts

    def push_row(self, row: Row, term: int, teachers: Mapping[str, Member], live: int) -> bool:
        """Push its row of the table unless it has it; return whether it was pushed.

        Of a teacher that the registry has lost only the id is sent: its holder knows the rest.
        """
        members = [teachers.get(name) or Member(name) for name in row.teachers]
        content = term, row, [facts_for_students(member) for member in members]
        if content == self._sent:
            return False
        self._sent, self.pushed = content, row
        self.stream.push(
            pb.Assignment(
                protocol_version=PROTOCOL_VERSION,
                term=term,
                counter=row.counter,
                teachers=[teacher_from(member) for member in members],
                lost=row.lost,
                live_teachers=live,
                reason=row.reason,
                content_id=row.content_id,
                next_content_id=row.next_content_id,
                data_epoch=row.data_epoch,
            )
        )
        return True


def facts_for_students(member: Member) -> tuple[str, ...]:
    """Return the facts of a teacher that students receive."""
    return tuple(member.facts.get(name, "") for name in _FOR_STUDENTS)
