"""What is told of a rank to all who look at the job board."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .crew import Rank


def report_of(rank: Rank) -> dict[str, Any]:
    """What `edl status` and the leader see of a rank."""
    told: dict[str, Any] = {
        "node": rank.order.node,
        "pid": rank.process.pid,
        "step": rank.step,
        "row_s": [round(value, 9) for value in rank.rates],
        "left_s": left_s(rank),
    }
    if rank.ready is not None:
        ready = rank.ready
        told |= {"began_at": ready.step, "steps": ready.steps, "total_batch": ready.total_batch}
    if rank.progress is not None:
        told |= asdict(rank.progress)
    return told | {"waiting_for": rank.waiting_for, "peers_s": rank.peers_s}


def left_s(rank: Rank) -> float | None:
    """Seconds to the end of the job, at the pace of this generation; None: not known."""
    if rank.ready is None or not rank.ready.steps or rank.progress is None:
        return None
    done = rank.progress.step - rank.ready.step
    if done <= 0:
        return None
    took_s = rank.at_s - rank.ready_s
    return round((rank.ready.steps - rank.progress.step) * took_s / done, 3)
