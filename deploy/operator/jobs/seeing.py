"""What the pod of a node is seen to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....mesh.kubernetes.resources import JOB_LABEL, NODE_CONTAINER, NODE_LABEL, Object, seconds_of
from ..capacity import ENDED_PHASES, Machines
from .ledger import PodSeen

#: Reasons of a container that is about to start.
_USUAL: Final = frozenset({"ContainerCreating", "PodInitializing"})
#: Reasons of a pod that its machine has ended.
_TAKEN: Final = frozenset({"Evicted", "Preempting", "Terminated", "NodeShutdown", "NodeLost"})
_LAST_LINES: Final = 3


def number_of(pod: Object) -> int | None:
    """Which node of its job a pod is; None: it is none."""
    text = (pod["metadata"].get("labels") or {}).get(NODE_LABEL, "")
    return int(text) if text.isdecimal() else None


def job_of(pod: Object) -> str | None:
    """The name of the job that a pod says to be of."""
    name = (pod["metadata"].get("labels") or {}).get(JOB_LABEL)
    return None if name is None else str(name)


def seen(pod: Object, machines: Machines) -> PodSeen:
    """A pod of a job, as the rules look at it."""
    status = pod.get("status", {})
    state = _container_state(status)
    lingers = "terminated" in state and _others_run(status)
    ended = lingers or status.get("phase") in ENDED_PHASES
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    placing = conditions.get("PodScheduled", {})
    fails = placing.get("status") == "False" and placing.get("reason") == "Unschedulable"
    unplaced = placing if fails else {}
    runs = not ended and "running" in state
    waits = {} if runs or ended else _hindrance(status)
    return PodSeen(
        number_of(pod) or 0,
        going="deletionTimestamp" in pod["metadata"],
        ended=ended,
        code=_code(status, state, conditions) if ended else None,
        runs=runs,
        ready=runs and conditions.get("Ready", {}).get("status") == "True",
        machine=machines.of_pod(pod),
        unplaced_since_s=_since_s(pod, placing) if not ended and (fails or waits) else None,
        said=_said(status, state, ended, unplaced, waits),
        lingers=lingers,
    )


def _container_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    found = _containers(status, "")
    own: Mapping[str, Any] = next((one for one in found if one.get("name") == NODE_CONTAINER), {})
    state: Mapping[str, Any] = own.get("state") or {}
    return state


def _others_run(status: Mapping[str, Any]) -> bool:
    """Whether containers of a template run, beside ours: a pod ends with the last of them."""
    return any(
        "running" in (one.get("state") or {})
        for one in _containers(status, "")
        if one.get("name") != NODE_CONTAINER
    )


def _code(
    status: Mapping[str, Any], state: Mapping[str, Any], conditions: Mapping[str, Any]
) -> int | None:
    """The exit code of its program; None: the cluster ended it, or it never ran."""
    if status.get("phase") == "Succeeded":
        return 0
    disrupted = conditions.get("DisruptionTarget", {}).get("status") == "True"
    if disrupted or status.get("reason") in _TAKEN:
        return None
    if "terminated" not in state:
        return 1 if _failed_before(status) else None
    return int(state["terminated"].get("exitCode", 1))


def _failed_before(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """How a container of a template, that runs before ours, has failed; empty: none has."""
    ends = [(one.get("state") or {}).get("terminated") for one in _containers(status, "init")]
    return next((end for end in ends if end and end.get("exitCode")), {})


def _containers(status: Mapping[str, Any], *which: str) -> list[Mapping[str, Any]]:
    """Statuses of containers, of these: those that run before, "init", and the others, ""."""
    keys = {"init": "initContainerStatuses", "": "containerStatuses"}
    return [one for kind in which for one in status.get(keys[kind]) or ()]


def _since_s(pod: Object, placing: Mapping[str, Any]) -> float:
    """Since when a pod has had no place, or has had the one where it cannot begin.

    Nobody says since when a container is hindered: it counts from when the pod was placed.
    """
    text = placing.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return seconds_of(text) if text else 0.0


def _hindrance(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Why a container cannot begin, no image, no such Secret; empty: none is hindered."""
    waits = [(one.get("state") or {}).get("waiting") for one in _containers(status, "init", "")]
    return next((one for one in waits if one and one.get("reason") not in (None, *_USUAL)), {})


def _said(
    status: Mapping[str, Any],
    state: Mapping[str, Any],
    ended: bool,
    unplaced: Mapping[str, Any],
    waits: Mapping[str, Any],
) -> str:
    if ended:
        end = state.get("terminated") or _failed_before(status)
        said = end.get("message") or status.get("message") or ""
        lines = [line.strip() for line in said.splitlines() if line.strip()][-_LAST_LINES:]
        reason = end.get("reason", "")
        why = status.get("reason") or (reason if reason not in ("Error", "Completed") else "")
        return ": ".join(part for part in (why, " | ".join(lines)) if part)
    if unplaced:
        return str(unplaced.get("message") or "no machine has room for it")
    return f"{waits.get('reason', '')}: {waits.get('message', '')}".strip(": ")
