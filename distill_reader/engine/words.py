"""What the engine says in words: what the stream waits for, why a batch was given up."""

from __future__ import annotations

from ...scheduler.ledger import Ledger
from .governor import Governor


def waiting_for(
    governor: Governor, ledger: Ledger, assigned: int, awaited: str, trouble: str
) -> str:
    """What the stream waits for: "0 of 3 teachers live, teacher a was lost: its lease ran out".

    Args:
        governor: its waiting and state.
        ledger: its usable teachers and requests.
        assigned: teachers that the reader may send to.
        awaited: the model content whose teachers it may send to; empty where any will do.
        trouble: what last went wrong, or why there are no teachers; may be empty.

    Returns:
        One clause; empty while the training loop does not wait.
    """
    if governor.waiting_since is None:
        return ""
    if governor.decision.state == "source_wait":
        return "the source has not yielded the next batch"
    if ledger.usable == 0:
        clauses = [f"0 of {assigned} teachers live"]
        if awaited:
            clauses.append(f"waiting for a teacher of content {awaited}")
        return ", ".join([*clauses, *filter(None, [trouble])])
    return f"teachers at work: {ledger.usable}, batches in flight: {ledger.in_flight}"


def poison(number: int, reasons: tuple[str, ...]) -> str:
    """Why a batch will never be labelled."""
    return (
        f"batch {number} will never be labelled: {'; '.join(reasons)} (so many refusals are enough"
        " to blame the batch, or there is nobody else to ask)"
    )
