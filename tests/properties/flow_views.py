"""What a reader that runs in virtual time sees of its flow."""

from __future__ import annotations

from edl.scheduler.flow import FlowView
from edl.scheduler.ledger import Ledger


def view_of(
    ledger: Ledger,
    *,
    waiting: bool,
    source_ended: bool,
    t_t_s: float | None,
    t_s_s: float | None,
    unreachable: int = 0,
) -> FlowView:
    """Its ledger's figures, with what no ledger knows."""
    return FlowView(
        volume_bytes=ledger.volume_bytes,
        queued=ledger.queued,
        unlabelled=ledger.unlabelled,
        deliverable=ledger.deliverable,
        windows=ledger.window_batches,
        free_windows=ledger.free_windows,
        idle=ledger.idle,
        teachers=len(ledger.teachers),
        waiting=waiting,
        source_ended=source_ended,
        t_t_s=t_t_s,
        t_s_s=t_s_s,
        unreachable=unreachable,
        batch_bytes=ledger.batch_bytes,
    )
