"""Virtual time, and what a reader that runs in it sees of its flow."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from edl.scheduler.flow import FlowView
from edl.scheduler.ledger import Ledger


class VirtualTime:
    """Actions in the order of their times; of equal times, in the order in which they were planned.

    Attributes:
        now: virtual seconds since the beginning.
        planned: how many actions there were to be so far.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.planned = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        self.planned += 1
        heappush(self._agenda, (self.now + seconds, self.planned, action))

    def step(self) -> None:
        self.now, _, action = heappop(self._agenda)
        action()

    def run(self, seconds: float) -> None:
        """Let all happen that does within so much time; there is always more to come."""
        end = self.now + seconds
        while self._agenda[0][0] <= end:
            self.step()
        self.now = end


def view_of(
    ledger: Ledger,
    *,
    waiting: bool,
    source_ended: bool,
    t_t_s: float | None,
    t_s_s: float | None,
) -> FlowView:
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
        unreachable=0,
        batch_bytes=ledger.batch_bytes,
    )
