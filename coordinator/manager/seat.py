"""One student's stream at a desk, and the messages that go down it. No I/O but the stream's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from ...errors import EdlError
from ...proto import coordinator_pb2 as pb
from ...proto.protocols import PROTOCOL_VERSION
from ..registry import Epoch, Member, Row
from .claims import Claimant
from .facts import MANAGER, report_facts, teacher_from
from .student_leases import Wish

#: What a student needs to know of a teacher; a change of anything else is not worth a message.
_TOLD = (
    "incarnation", "address", "protocol", "content_id", "numerics_id", "state", "drain", "slots",
    "inputs", "voucher",
)  # fmt: skip


class Stream(Protocol):
    """The way back to one subscribed student. Neither method may block or raise."""

    def push(self, assignment: pb.Assignment) -> None:
        """Send it; a later one replaces an earlier one that was not sent yet."""

    def close(self, error: EdlError) -> None:
        """End the stream by `error`."""


class Seat:
    """A student that this manager holds.

    Args:
        stream: where it is told its assignments.
        report: the latest that it said.
        caller: who it is.
        manager: address of this manager.
    """

    def __init__(
        self, stream: Stream, report: pb.StudentReport, caller: Claimant, manager: str
    ) -> None:
        self.stream = stream
        self.report = report
        self.pushed: Row | None = None
        self._own = {**caller.facts(), MANAGER: manager}
        self._told: object = None
        self._ahead: Epoch = (0, 0)

    @property
    def student_id(self) -> str:
        """Whose it is."""
        return self.report.student_id

    @property
    def incarnation(self) -> int:
        """Which life of it."""
        return self.report.incarnation

    def is_ahead(self, epoch: Epoch) -> bool:
        """Whether it says that it follows what the table has not reached, and that is news."""
        return self._follows > epoch and self._follows != self._ahead

    def heeded(self) -> None:
        """The leader will hear what it follows."""
        self._ahead = self._follows

    @property
    def _follows(self) -> Epoch:
        return self.report.term, self.report.counter

    def wish(self, *, urgent: bool = False) -> Wish:
        """How it is to stand in the registry."""
        return Wish(self.student_id, {**report_facts(self.report), **self._own}, urgent)

    def tell(self, row: Row, term: int, teachers: Mapping[str, Member], live: int) -> bool:
        """Push its row of the table, unless it was told just that; returns whether it was pushed.

        A teacher that the registry has forgotten goes by its id alone: who holds it knows the rest.
        """
        members = [teachers.get(name) or Member(name) for name in row.teachers]
        told = term, row, [told_of(member) for member in members]
        if told == self._told:
            return False
        self._told, self.pushed = told, row
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


def told_of(member: Member) -> tuple[str, ...]:
    """What a student is told of a teacher."""
    return tuple(member.facts.get(name, "") for name in _TOLD)
