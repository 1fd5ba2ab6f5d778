"""Writes the status of a DistillJob, and reads a job's ledger from it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from ....mesh.kubernetes.resources import JOB_LABEL, Object, rfc3339, seconds_of
from ....runtime.errors import UsageError
from ..conditions import Condition, ResourceEvent, common_fields
from .ledger import SPEC_REFUSED, JobActions, PodLedger

#: Field of a ledger -> field of a status, for plain values and for times.
_VALUES: Final = {
    "target": "target",
    "next_number": "nextNode",
    "failures": "failures",
    "done": "done",
    "hopeless": "hopeless",
    "placeable": "placeable",
    "why": "lastFailure",
}
_TIMES: Final = {
    "changed_s": "changedAt",
    "waiting_since_s": "waitingSince",
    "started_s": "startedAt",
    "ended_s": "endedAt",
    "retry_at_s": "retryAt",
    "placeable_until_s": "placeableUntil",
    "unplaced_since_s": "unplacedSince",
}
#: Final states. A stopped job is not among them: it may continue.
_END_STATES: Final = ("succeeded", "failed")
#: Seconds in a reason. A reason that differs only in them is not written again.
_SECONDS: Final = re.compile(r"\d+(?= s\b)")


def ledger_of(job: Object) -> PodLedger:
    """Read the ledger from the status of a DistillJob.

    Raises:
        UsageError: the status is damaged.
    """
    status = job.get("status") or {}
    values: dict[str, Any] = {
        name: status[field] for name, field in _VALUES.items() if status.get(field) is not None
    }
    values |= {
        name: seconds_of(status[field]) for name, field in _TIMES.items() if status.get(field)
    }
    state = status.get("state")
    try:
        return replace(
            PodLedger(),
            **values,
            counted=frozenset(status.get("counted") or ()),
            end=state if state in _END_STATES else "",
        )
    except TypeError as error:
        raise UsageError(f"the status of {job['metadata']['name']} is damaged: {error}") from None


def has_ended(job: Object) -> bool:
    """Return whether a job has succeeded or failed; it is kept only for its logs."""
    return (job.get("status") or {}).get("state") in _END_STATES


def ledger_fields(ledger: PodLedger) -> Object:
    """Return the fields of a status that `ledger_of` reads, except `state`.

    A field with the value None is absent from the status.
    """
    fields: Object = {field: getattr(ledger, name) for name, field in _VALUES.items()}
    for name, field in _TIMES.items():
        at_s = getattr(ledger, name)
        fields[field] = rfc3339(at_s) if at_s else None
    return {**fields, "counted": sorted(ledger.counted)}


def status_of(job: Object, actions: JobActions, now: float) -> Object:
    """Return the complete status; a field with the value None is absent from it.

    Args:
        job: the DistillJob as it was read.
        actions: the operator's decisions about it.
        now: seconds since 1970.
    """
    before, reason = job.get("status") or {}, actions.reason
    if _SECONDS.sub("", reason) == _SECONDS.sub("", before.get("reason", "")):
        reason = before.get("reason", "")
    labels = {JOB_LABEL: job["metadata"]["name"]}
    return {
        **ledger_fields(actions.ledger),
        "state": actions.state,
        "reason": reason,
        "nodes": actions.nodes,
        "ready": actions.ready,
        "leaving": actions.leaving,
        **common_fields(job, labels, _conditions(actions, reason), now),
    }


def spec_events(before: Mapping[str, Any], actions: JobActions) -> list[ResourceEvent]:
    """Return an event if the spec has become invalid, or is invalid for another reason.

    Args:
        before: the status as it was read.
        actions: the operator's decisions about the job.
    """
    if actions.degraded != SPEC_REFUSED:
        return []
    known = {"type": "Degraded", "reason": SPEC_REFUSED, "message": actions.reason}
    if any(known.items() <= former.items() for former in before.get("conditions") or ()):
        return []
    return [ResourceEvent("InvalidSpec", actions.reason, warns=True)]


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Object:
    """Return the fields of a status that have changed.

    An empty text becomes None, because some API servers store it as null.

    Args:
        before: the status as it was read.
        after: the new status.
    """
    fields = {key: None if value == "" else value for key, value in after.items()}
    return {key: value for key, value in fields.items() if before.get(key) != value}


def _conditions(actions: JobActions, reason: str) -> list[Condition]:
    state = actions.state.capitalize()
    all_ready = actions.state == "running" and actions.ready == actions.nodes
    return [
        Condition("Ready", all_ready, state, reason),
        Condition("Progressing", actions.state in ("creating", "scaling"), state, reason),
        Condition("Degraded", bool(actions.degraded), actions.degraded or state, reason),
    ]
