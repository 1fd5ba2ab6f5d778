"""What the engine tells of itself: to the trainer, to the coordinator, and in words."""

from __future__ import annotations

import socket
from typing import Any

from ...proto import coordinator_pb2 as pb
from ...proto.version import PROTOCOL_VERSION
from ...scheduler.ledger import Ledger
from ..config import ReaderConfig
from .governor import Governor


def stats(ledger: Ledger, governor: Governor) -> dict[str, Any]:
    """For the trainer: the fields of `ReaderStats` that only the engine knows."""
    memory, decision, figures = governor.memory, governor.decision, governor.figures
    return {
        "resends": ledger.resends,
        "volume_bytes": ledger.volume_bytes,
        "want": decision.want,
        "needed": decision.needed,
        "t_t_s": figures.t_t_s or 0.0,
        "t_s_s": figures.t_s_s or 0.0,
        "teachers": list(ledger.teachers),
        "in_flight": [[name, len(ledger.in_flight_at(name))] for name in ledger.teachers],
        "starved_s": memory.starved_s,
        "blocked_s": memory.blocked_s,
        "source_wait_s": memory.source_wait_s,
        "state": decision.state,
    }


def report(
    config: ReaderConfig, ledger: Ledger, governor: Governor, now: float, epoch: tuple[int, int]
) -> pb.StudentReport:
    """For the coordinator; `epoch` is the highest (term, counter) of an assignment seen."""
    memory, decision, figures = governor.memory, governor.decision, governor.figures
    return pb.StudentReport(
        protocol_version=PROTOCOL_VERSION,
        service=config.service,
        student_id=config.student_id,
        incarnation=config.incarnation,
        want=decision.want,
        min=config.teachers_min,
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
        term=epoch[0],
        counter=epoch[1],
        state=decision.state,
        host=socket.gethostname(),
    )


def waiting_for(governor: Governor, ledger: Ledger, assigned: int, trouble: str) -> str:
    """What the stream waits for: "0 of 3 teachers live, teacher a was lost: its lease ran out".

    Args:
        governor: its waiting and state.
        ledger: its usable teachers and requests.
        assigned: teachers that the reader may send to.
        trouble: what last went wrong, or why there are no teachers; may be empty.

    Returns:
        One clause; empty while the training loop does not wait.
    """
    if governor.waiting_since is None:
        return ""
    if governor.decision.state == "source_wait":
        return "the source has not yielded the next batch"
    if ledger.usable == 0:
        return f"0 of {assigned} teachers live" + (f", {trouble}" if trouble else "")
    return f"teachers at work: {ledger.usable}, batches in flight: {ledger.in_flight}"


def poison(number: int, reasons: tuple[str, ...]) -> str:
    """Why a batch will never be labelled."""
    return (
        f"batch {number} will never be labelled: {'; '.join(reasons)} (so many refusals are enough"
        " to blame the batch, or there is nobody else to ask)"
    )
