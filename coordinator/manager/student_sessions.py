"""Students of one manager: their streams, owners, written facts and pushed assignments.

The first caller that subscribes as a student owns the student's id: the student's facts have hashes
of the caller's principal and of the secret of its stream. If the registry has lost the facts, the
next caller becomes the owner.
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
from ..registry import Row, TableVersion
from ..registry.schema import concerns_managers
from ..store.records import Member, MemberBeat
from .messages import MANAGER, report_facts, teacher_from

#: Facts of a teacher whose change is pushed at once. Other facts reach students with the next push.
_PUSHED_AT_ONCE = (
    "incarnation", "address", "protocol", "content_id", "numerics_id", "state", "drain", "slots",
    "inputs", "voucher",
)  # fmt: skip

OWNER: Final = "owner"
SECRET: Final = "secret"


@dataclass(frozen=True, slots=True)
class StudentCaller:
    """A caller that subscribes as a student; see `refusal_of`.

    Attributes:
        principal: identity of its credential; empty without authentication.
        secret: secret of its subscription: the presented one, or a new one.
    """

    principal: str = ""
    secret: str = ""

    def facts(self) -> dict[str, str]:
        """Return the facts that the registry keeps beside the report of a student of this owner."""
        return {OWNER: _hash(self.principal), SECRET: _hash(self.secret)}


def refusal_of(
    student_id: str, incarnation: int, caller: StudentCaller, facts: Mapping[str, str] | None
) -> EdlError | None:
    """Return why a caller may not report as a student; None: it may.

    Args:
        student_id: id of the student.
        incarnation: incarnation that the caller claims.
        caller: the caller.
        facts: facts of the student in the registry; None: there are none.

    Returns:
        Forbidden for another owner, or for the wrong secret of the same incarnation;
        LeaseSuperseded for an older incarnation. A caller with the right secret of the same
        incarnation is the owner whatever its principal, as tokens may have been rotated.
    """
    if not facts:
        return None
    claimed = caller.facts()
    same_incarnation = facts.get("incarnation", "") == str(incarnation)
    if same_incarnation and _matches(facts, claimed, SECRET):
        return None
    if not _matches(facts, claimed, OWNER):
        return Forbidden(f"student {student_id} belongs to another principal")
    if same_incarnation:
        return Forbidden(
            f"student {student_id} has a stream with another secret; a new start of it needs a "
            "greater incarnation"
        )
    if incarnation < Member(student_id, facts).incarnation:
        return superseded_error(student_id)
    return None


def owns(principal: str, facts: Mapping[str, str]) -> bool:
    """Whether a student with these facts was subscribed by `principal`."""
    return _equal(facts.get(OWNER, ""), _hash(principal))


def _matches(facts: Mapping[str, str], claimed: Mapping[str, str], name: str) -> bool:
    """Whether the stored hash `name` matches the claimed one; True if none is stored."""
    stored = facts.get(name, "")
    return not stored or _equal(stored, claimed[name])


def _equal(stored: str, claimed: str) -> bool:
    """Whether hashes are equal; compares bytes, as a stored text may have any characters."""
    return hmac.compare_digest(stored.encode(), claimed.encode())


def superseded_error(student_id: str) -> LeaseSuperseded:
    """Return the error for an older incarnation of a student."""
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
    """A student that subscribes at this manager; it may not be accepted yet.

    Args:
        stream: receives its assignments.
        report: its latest report.
        caller: the caller that opened the stream.
        manager: address of this manager.

    Attributes:
        pushed_row: the row that was last sent to it; None: none was.
        written: its facts in the registry; None: the registry may have no lease of it.
        written_s: monotonic seconds when they were written, or somewhat earlier, to spread
            renewals.
    """

    def __init__(
        self,
        stream: AssignmentStream,
        report: pb.StudentReport,
        caller: StudentCaller,
        manager: str,
    ) -> None:
        self.stream = stream
        self.report = report
        self.caller = caller
        self.pushed_row: Row | None = None
        self.written: dict[str, str] | None = None
        self.written_s = 0.0
        self._fixed_facts = {**caller.facts(), MANAGER: manager}
        self._notified_facts: dict[str, str] = {}
        self._last_sent: object = None
        self._notified_version: TableVersion = (0, 0)

    @property
    def student_id(self) -> str:
        return self.report.student_id

    @property
    def incarnation(self) -> int:
        return self.report.incarnation

    def is_ahead(self, version: TableVersion) -> bool:
        """Whether its assignment is newer than the table, and managers were not notified of it."""
        return self._followed_version > version and self._followed_version != self._notified_version

    def notified_of_version(self) -> None:
        """Record that managers were notified of the version of the student's assignment."""
        self._notified_version = self._followed_version

    @property
    def _followed_version(self) -> TableVersion:
        return self.report.term, self.report.counter

    def facts(self) -> dict[str, str]:
        """Return the facts that the registry should have."""
        return {**report_facts(self.report), **self._fixed_facts}

    def beat_for(self, facts: Mapping[str, str], *, urgent: bool) -> MemberBeat:
        """Return the heartbeat that writes these facts; `urgent`: it notifies managers anyway."""
        written = self.written or {}
        changed = {name: value for name, value in facts.items() if written.get(name) != value}
        notify = urgent or concerns_managers("students", changed, self._notified_facts)
        return MemberBeat(self.student_id, self.incarnation, changed, notify)

    def wrote(self, facts: dict[str, str], at_s: float, *, notified: bool) -> None:
        """Record that these facts were written; `notified`: managers were notified of them."""
        self.written, self.written_s = facts, at_s
        if notified:
            self._notified_facts = facts

    def push_row(self, row: Row, term: int, teachers: Mapping[str, Member], live: int) -> bool:
        """Push the student's row of the table if it is new; return whether it was pushed.

        A row is also pushed if `facts_pushed_at_once` of its teachers have changed, or if `live`,
        the number of live teachers, has become 0 or is no longer 0. For a teacher that the registry
        has lost, only the id is sent: a student that uses the teacher knows the rest.
        """
        members = [teachers.get(name) or Member(name) for name in row.teachers]
        to_send = term, row, live > 0, [facts_pushed_at_once(member) for member in members]
        if to_send == self._last_sent:
            return False
        self._last_sent, self.pushed_row = to_send, row
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


def facts_pushed_at_once(member: Member) -> tuple[str, ...]:
    """Return the facts of a teacher whose change is pushed to its students at once."""
    return tuple(member.facts.get(name, "") for name in _PUSHED_AT_ONCE)
