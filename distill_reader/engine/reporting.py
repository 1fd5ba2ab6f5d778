"""What a member tells the coordinator of its student, and how often."""

from __future__ import annotations

import socket

from ...proto import coordinator_pb2 as pb
from ...proto.version import PROTOCOL_VERSION
from ...scheduler.flow_values import State
from .member import Member

REPORT_EVERY_S = 1.0


class Reporter:
    """Reports of one member. Used by the engine's thread alone.

    A report goes out at once when the core says so, and at its pace otherwise.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._reported_at = 0.0
        self._reports = 0  # that the core asked for, as far as they were made

    def tell(self, now: float) -> bool:
        """Report if it is time to; whether the core has asked for it."""
        member = self._member
        is_asked, self._reports = member.reports != self._reports, member.reports
        if is_asked or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at = now
            member.roster.report(report(member, now))
        return is_asked


def report(member: Member, now: float) -> pb.StudentReport:
    """How the student is, as far as this service goes."""
    config, ledger, core = member.config, member.ledger, member.core
    memory, decision, figures = core.memory, core.decision, core.figures
    switch, teachers = core.contents.switch, core.teachers
    return pb.StudentReport(
        protocol_version=PROTOCOL_VERSION,
        service=config.service,
        student_id=config.student_id,
        want=decision.want,
        min=config.teachers_min,
        priority=config.priority,
        needed=decision.needed,
        t_s_seconds=figures.t_s_s or 0.0,
        t_t_seconds=figures.t_t_s or 0.0,
        volume_bytes=ledger.volume_bytes,
        upper_bytes=config.upper_bytes,
        lower_bytes=config.lower_bytes,
        starved_seconds=memory.starved_s,
        blocked_seconds=memory.blocked_s,
        source_wait_seconds=memory.source_wait_s,
        batches_delivered=figures.batches_taken,
        samples_delivered=figures.samples_taken,
        samples_per_second=figures.samples_per_s(now),
        resends=ledger.resends,
        teachers=ledger.teachers,
        term=core.epoch[0],
        counter=core.epoch[1],
        state="starved" if core.starves else _otherwise(decision.state),
        host=socket.gethostname(),
        unreachable=core.unreachable,
        data_epoch=switch.data_epoch,
        content_id=switch.told,
        stragglers=teachers.lateness.stragglers,
        hedges=ledger.hedges,
        ejections=teachers.breakers.ejections.total(),
        ejected=teachers.breakers.ejected.keys(),
        disputed=teachers.comparisons.disputed,
        ejected_for=teachers.breakers.ejected.values(),
        cut_off=int(teachers.is_cut_off),
    )


def _otherwise(state: State) -> State:
    """The state of a student that does not starve, though it may wait at this moment."""
    return "steady" if state == "starved" else state
