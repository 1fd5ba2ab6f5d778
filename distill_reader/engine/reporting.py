"""What a member tells the coordinator of its student, and how often."""

from __future__ import annotations

import socket
from typing import Any

from ...proto import coordinator_pb2 as pb
from ...proto.version import PROTOCOL_VERSION
from ...scheduler import hunger
from ...scheduler.flow_values import State
from .member import Member

REPORT_EVERY_S = 1.0


class Reporter:
    """Reports of one member. Used by the engine's thread alone.

    A report goes out at once when something has changed that the coordinator acts on, and at its
    pace otherwise. That the student starves is told as `scheduler.hunger` finds it: at once.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._reported_at = 0.0
        self._told: tuple[Any, ...] = ()
        self._hunger = hunger.Hunger()
        self._starves_told = False

    def tell(self, now: float) -> bool:
        """Report if it is time to; whether something has changed that is acted on."""
        member = self._member
        governor, switch = member.governor, member.contents.switch
        self._hunger = hunger.follow(self._hunger, governor.memory.starved_s, now)
        starves = self._hunger.starves
        news = (
            governor.decision.want,
            member.pool.unreachable,
            member.is_cut_off,
            switch.data_epoch,
            switch.told,
        )
        changed = news != self._told or (starves and not self._starves_told)
        if changed or now - self._reported_at >= REPORT_EVERY_S:
            self._reported_at, self._told, self._starves_told = now, news, starves
            member.roster.report(report(member, starves, now))
        return changed


def report(member: Member, starves: bool, now: float) -> pb.StudentReport:
    """How the student is, as far as this service goes."""
    config, ledger, governor = member.config, member.ledger, member.governor
    memory, decision, figures = governor.memory, governor.decision, governor.figures
    switch = member.contents.switch
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
        term=member.epoch[0],
        counter=member.epoch[1],
        state="starved" if starves else _otherwise(decision.state),
        host=socket.gethostname(),
        unreachable=member.pool.unreachable,
        data_epoch=switch.data_epoch,
        content_id=switch.told,
        stragglers=member.crew.lateness.stragglers,
        hedges=ledger.hedges,
        ejections=member.crew.standings.ejections.total(),
        ejected=member.crew.standings.ejected.keys(),
        disputed=member.comparing.disputed,
        ejected_for=member.crew.standings.ejected.values(),
        cut_off=int(member.is_cut_off),
    )


def _otherwise(state: State) -> State:
    """The state of a student that does not starve, though it may wait at this moment."""
    return "steady" if state == "starved" else state
