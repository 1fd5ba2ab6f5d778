"""Students of one manager: their streams, their owners, and the leases that it writes for them.

The first caller that subscribes as a student owns its name: the student's facts hold hashes of its
principal and of the secret of its stream. If the registry has lost them, the next caller becomes
the owner.
"""

from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ...runtime.errors import EdlError, Forbidden, LeaseSuperseded
from ..registry import Epoch, Registry, Row
from ..registry.schema import concerns_managers
from ..store.records import Beat, Member, MemberBeat
from .messages import MANAGER, report_facts, teacher_from

#: Facts of a teacher that students need; other changes are not sent.
_TOLD = (
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


#: Most writes per TTL and student of facts that do not concern the leader.
_WRITES_PER_TTL = 2


@dataclass(slots=True)
class _Written:
    """What the registry has of a student.

    Attributes:
        noted: facts when managers were last notified.
    """

    incarnation: int
    facts: dict[str, str]
    at_s: float
    noted: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DesiredLease:
    """The lease that a student should have in the registry.

    Attributes:
        student_id: id of the student.
        facts: all its facts.
        urgent: notify managers, whatever has changed.
    """

    student_id: str
    facts: Mapping[str, str]
    urgent: bool = False

    @property
    def incarnation(self) -> int:
        """Incarnation of the student."""
        return int(self.facts["incarnation"])


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
    """

    def __init__(
        self, stream: AssignmentStream, report: pb.StudentReport, owner: StudentOwner, manager: str
    ) -> None:
        self.stream = stream
        self.report = report
        self.owner = owner
        self.pushed: Row | None = None
        self._own = {**owner.facts(), MANAGER: manager}
        self._sent: object = None
        self._told: Epoch = (0, 0)

    @property
    def student_id(self) -> str:
        return self.report.student_id

    @property
    def incarnation(self) -> int:
        return self.report.incarnation

    def is_ahead(self, epoch: Epoch) -> bool:
        """Whether it follows an epoch above that of the table, and the leader was not told so."""
        return self._follows > epoch and self._follows != self._told

    def told_leader(self) -> None:
        """Note that the leader was told which epoch it follows."""
        self._told = self._follows

    @property
    def _follows(self) -> Epoch:
        return self.report.term, self.report.counter

    def desired(self, *, urgent: bool = False) -> DesiredLease:
        """Return the lease that it should have."""
        return DesiredLease(self.student_id, {**report_facts(self.report), **self._own}, urgent)

    def push_row(self, row: Row, term: int, teachers: Mapping[str, Member], live: int) -> bool:
        """Push its row of the table unless it has it; return whether it was pushed.

        Of a teacher that the registry has lost only the id is sent: its holder knows the rest.
        """
        members = [teachers.get(name) or Member(name) for name in row.teachers]
        told = term, row, [facts_for_students(member) for member in members]
        if told == self._sent:
            return False
        self._sent, self.pushed = told, row
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
    return tuple(member.facts.get(name, "") for name in _TOLD)


class StudentLeases:
    """Creates and renews the leases of students of one service."""

    def __init__(self, registry: Registry, service: str, ttl_s: float) -> None:
        self._registry = registry
        self._service = service
        self._ttl_s = ttl_s
        self._written: dict[str, _Written] = {}

    def is_time(self, student_id: str, now: float) -> bool:
        """Whether its lease should be renewed now if it has reported since the last time."""
        written = self._written.get(student_id)
        return written is None or now - written.at_s >= self._ttl_s / _WRITES_PER_TTL

    def is_due(self, desired: DesiredLease, now: float) -> bool:
        """Whether to write it now: it concerns the leader, or the lease has to be renewed."""
        if desired.urgent or self.is_time(desired.student_id, now):
            return True
        written = self._written[desired.student_id]
        if written.incarnation != desired.incarnation:
            return True
        return concerns_managers("students", _changed(written.facts, desired.facts), written.noted)

    def register(self, desired: DesiredLease, now: float) -> LeaseSuperseded | None:
        """Create or replace a lease; return the error if a newer incarnation holds it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        facts = dict(desired.facts)
        try:
            self._registry.register(
                "students", self._service, desired.student_id, facts, self._ttl_s
            )
        except LeaseSuperseded as error:
            self._written.pop(desired.student_id, None)
            return error
        # Spread renewals: students that came together would be written together for ever.
        ago_s = random.random() * self._ttl_s / _WRITES_PER_TTL
        self._written[desired.student_id] = _Written(desired.incarnation, facts, now - ago_s, facts)
        return None

    def write(
        self, all_desired: Iterable[DesiredLease], now: float
    ) -> tuple[dict[str, LeaseSuperseded], bool]:
        """Write leases in as few round trips as possible.

        Returns:
            Students whose lease a newer incarnation holds, with the error for the older one; and
            whether the leader should look.

        Raises:
            UnavailableError: the registry does not answer; some may have been written.
        """
        anew: list[DesiredLease] = []
        beats: list[tuple[DesiredLease, MemberBeat]] = []
        for desired in all_desired:
            written = self._written.get(desired.student_id)
            if written is None or written.incarnation != desired.incarnation:
                anew.append(desired)
                continue
            changed = _changed(written.facts, desired.facts)
            concerns = desired.urgent or concerns_managers("students", changed, written.noted)
            beat = MemberBeat(desired.student_id, desired.incarnation, changed, noted=concerns)
            beats.append((desired, beat))
        anew += self._beat(beats, now)
        errors = {desired.student_id: self.register(desired, now) for desired in anew}
        superseded = {name: error for name, error in errors.items() if error is not None}
        return superseded, bool(anew) or any(beat.noted for _, beat in beats)

    def _beat(
        self, beats: Sequence[tuple[DesiredLease, MemberBeat]], now: float
    ) -> list[DesiredLease]:
        """Renew leases; return those that are gone, or have another incarnation."""
        sent = [(self._service, beat) for _, beat in beats]
        answers = self._registry.beat_many("students", sent, self._ttl_s) if sent else []
        unknown = []
        for (desired, beat), answer in zip(beats, answers, strict=True):
            if answer is Beat.UNKNOWN:
                unknown.append(desired)
                continue
            written = self._written[desired.student_id]
            written.facts, written.at_s = dict(desired.facts), now
            if beat.noted:
                written.noted = written.facts
        return unknown

    def forget(self, student_id: str) -> None:
        """Stop renewing a lease."""
        self._written.pop(student_id, None)

    def forget_all(self) -> None:
        """Write everything again: the registry may have lost it."""
        self._written.clear()

    def leave(self, student_id: str, incarnation: int) -> None:
        """End a lease at once, unless another incarnation holds it.

        Raises:
            UnavailableError: the registry does not answer.
        """
        self.forget(student_id)
        self._registry.leave("students", self._service, student_id, incarnation)


def _changed(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in now.items() if before.get(name) != value}
