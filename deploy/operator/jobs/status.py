"""A job's ledger in the status of its DistillJob, and what else is told there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ....mesh.kubernetes.resources import (
    JOB_LABEL,
    Object,
    rfc3339,
    seconds_of,
    selector,
)
from ....runtime.errors import UsageError
from ..conditions import Condition, merged
from .ledger import JobActions, PodLedger

#: Of a ledger -> of a status, for plain values and for times.
_VALUES: Final = {
    "target": "target",
    "next_number": "nextNode",
    "failures": "failures",
    "done": "done",
    "hopeless": "hopeless",
    "fits": "placeable",
    "why": "lastFailure",
}
_TIMES: Final = {
    "changed_s": "changedAt",
    "waiting_since_s": "waitingSince",
    "started_s": "startedAt",
    "ended_s": "endedAt",
    "retry_s": "retryAt",
    "fits_until_s": "placeableUntil",
    "unplaced_since_s": "unplacedSince",
}
#: States of jobs that never get a node again.
_ENDS: Final = ("succeeded", "failed")
#: Seconds that pass do not make another reason: it would be written down every second.
_SECONDS: Final = re.compile(r"\d+(?= s\b)")


def ledger_of(job: Object) -> PodLedger:
    """What the status of a DistillJob keeps for us.

    Raises:
        UsageError: somebody has written something else there.
    """
    status = job.get("status") or {}
    found: dict[str, Any] = {
        ours: status[theirs] for ours, theirs in _VALUES.items() if status.get(theirs) is not None
    }
    found |= {
        ours: seconds_of(status[theirs]) for ours, theirs in _TIMES.items() if status.get(theirs)
    }
    end = status.get("state")
    try:
        return replace(
            PodLedger(),
            **found,
            counted=frozenset(status.get("counted") or ()),
            end=end if end in _ENDS else "",
        )
    except TypeError as error:
        raise UsageError(f"the status of {job['metadata']['name']} is damaged: {error}") from None


def has_ended(job: Object) -> bool:
    """Whether a DistillJob is kept for its logs alone."""
    return (job.get("status") or {}).get("state") in _ENDS


def ledger_fields(ledger: PodLedger) -> Object:
    """What of a status `ledger_of` reads; None for what the ledger does not have.

    But for how the job has ended: that is its state.
    """
    fields: Object = {theirs: getattr(ledger, ours) for ours, theirs in _VALUES.items()}
    for ours, theirs in _TIMES.items():
        at_s = getattr(ledger, ours)
        fields[theirs] = rfc3339(at_s) if at_s else None
    return {**fields, "counted": sorted(ledger.counted)}


def status_of(job: Object, orders: JobActions, now: float) -> Object:
    """The status that says all of it; None for what it does not have.

    Args:
        job: as it was read.
        orders: for it.
        now: seconds since 1970.
    """
    before, meta = job.get("status") or {}, job["metadata"]
    reason = orders.reason
    if _SECONDS.sub("", reason) == _SECONDS.sub("", before.get("reason", "")):
        reason = before.get("reason", "")
    status = ledger_fields(orders.ledger)
    generation = meta.get("generation", 1)
    status.update(
        state=orders.state,
        reason=reason,
        nodes=orders.nodes,
        ready=orders.ready,
        leaving=orders.leaving,
        selector=selector({JOB_LABEL: meta["name"]}),
        observedGeneration=generation,
        conditions=merged(
            before.get("conditions", ()), _conditions(orders, reason), generation, now
        ),
    )
    return status


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """What of a status has to be written; empty: nothing.

    A text that says nothing is left out: an API server has been seen to make null of it.
    """
    told = {key: None if value == "" else value for key, value in after.items()}
    return {key: value for key, value in told.items() if before.get(key) != value}


def _conditions(orders: JobActions, reason: str) -> list[Condition]:
    word = orders.state.capitalize()
    whole = orders.state == "running" and orders.ready == orders.nodes
    return [
        Condition("Ready", whole, word, reason),
        Condition("Progressing", orders.state in ("creating", "scaling"), word, reason),
        Condition("Degraded", bool(orders.degraded), orders.degraded or word, reason),
    ]
