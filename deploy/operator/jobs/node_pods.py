"""Converts a pod into the state of a node of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ....mesh.kubernetes.resources import JOB_LABEL, NODE_CONTAINER, NODE_LABEL, Object, seconds_of
from ..capacity import ENDED_PHASES, Machines
from .ledger import NodePod

#: Reasons for which every container waits before it starts.
_NORMAL_WAITS: Final = frozenset({"ContainerCreating", "PodInitializing"})
#: Reasons of pods that the cluster has ended.
_ENDED_BY_CLUSTER: Final = frozenset(
    {"Evicted", "Preempting", "Terminated", "NodeShutdown", "NodeLost"}
)
_LAST_LINES: Final = 3
#: Fields of a pod's status with the statuses of its containers and of its init containers.
_CONTAINERS: Final = "containerStatuses"
_INIT_CONTAINERS: Final = "initContainerStatuses"


def number_of(pod: Object) -> int | None:
    """Return the number of the node in its job; None: the pod is not a node of a job."""
    text = (pod["metadata"].get("labels") or {}).get(NODE_LABEL, "")
    return int(text) if text.isdecimal() else None


def job_of(pod: Object) -> str | None:
    """Return the name of the job in a pod's labels; None: they name no job."""
    name = (pod["metadata"].get("labels") or {}).get(JOB_LABEL)
    return None if name is None else str(name)


def node_pod_of(pod: Object, machines: Machines) -> NodePod:
    """Convert a pod of a job into the input of `decide_pods`."""
    status = pod.get("status", {})
    state = _node_state(status)
    sidecars_run = "terminated" in state and _others_run(status)
    ended = sidecars_run or status.get("phase") in ENDED_PHASES
    conditions = {one["type"]: one for one in status.get("conditions", ())}
    scheduled = conditions.get("PodScheduled", {})
    unschedulable = (
        scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable"
    )
    unplaced = scheduled if unschedulable else {}
    runs = not ended and "running" in state
    problem = {} if runs or ended else _start_problem(status)
    waits = not ended and bool(unschedulable or problem)
    return NodePod(
        number_of(pod) or 0,
        deleting="deletionTimestamp" in pod["metadata"],
        ended=ended,
        code=_exit_code(status, state, conditions) if ended else None,
        runs=runs,
        ready=runs and conditions.get("Ready", {}).get("status") == "True",
        machine=machines.of_pod(pod),
        unplaced_since_s=_unplaced_since_s(pod, scheduled) if waits else None,
        message=_message(status, state, ended, unplaced, problem),
        sidecars_run=sidecars_run,
    )


def _node_state(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state of the container that runs the node's program; empty: unknown."""
    statuses = _container_statuses(status, _CONTAINERS)
    own: Mapping[str, Any] = next(
        (one for one in statuses if one.get("name") == NODE_CONTAINER), {}
    )
    state: Mapping[str, Any] = own.get("state") or {}
    return state


def _others_run(status: Mapping[str, Any]) -> bool:
    """Return whether other containers of the pod still run."""
    return any(
        "running" in (one.get("state") or {})
        for one in _container_statuses(status, _CONTAINERS)
        if one.get("name") != NODE_CONTAINER
    )


def _exit_code(
    status: Mapping[str, Any], state: Mapping[str, Any], conditions: Mapping[str, Any]
) -> int | None:
    """Return the exit code of an ended node: 1 if an init container failed.

    None: the cluster ended the node, or its program never ran for another reason.
    """
    if status.get("phase") == "Succeeded":
        return 0
    disrupted = conditions.get("DisruptionTarget", {}).get("status") == "True"
    if disrupted or status.get("reason") in _ENDED_BY_CLUSTER:
        return None
    if "terminated" not in state:
        return 1 if _failed_init_end(status) else None
    return int(state["terminated"].get("exitCode", 1))


def _failed_init_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the end of an init container that failed; empty: none failed."""
    statuses = _container_statuses(status, _INIT_CONTAINERS)
    ends = [(one.get("state") or {}).get("terminated") for one in statuses]
    return next((end for end in ends if end and end.get("exitCode")), {})


def _container_statuses(status: Mapping[str, Any], *fields: str) -> list[Mapping[str, Any]]:
    return [one for field in fields for one in status.get(field) or ()]


def _unplaced_since_s(pod: Object, scheduled: Mapping[str, Any]) -> float:
    """Return since when a pod cannot be placed or cannot start, in seconds since 1970.

    For a container that cannot start, this is the time at which the pod was scheduled: the API has
    no better one.
    """
    text = scheduled.get("lastTransitionTime") or pod["metadata"].get("creationTimestamp")
    return seconds_of(text) if text else 0.0


def _start_problem(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return why a container cannot start, such as a missing image; empty: no such report."""
    statuses = _container_statuses(status, _INIT_CONTAINERS, _CONTAINERS)
    waits = [(one.get("state") or {}).get("waiting") for one in statuses]
    normal = (None, *_NORMAL_WAITS)
    return next((wait for wait in waits if wait and wait.get("reason") not in normal), {})


def _message(
    status: Mapping[str, Any],
    state: Mapping[str, Any],
    ended: bool,
    unplaced: Mapping[str, Any],
    problem: Mapping[str, Any],
) -> str:
    if ended:
        end = state.get("terminated") or _failed_init_end(status)
        message = end.get("message") or status.get("message") or ""
        lines = [line.strip() for line in message.splitlines() if line.strip()][-_LAST_LINES:]
        reason = end.get("reason", "")
        why = status.get("reason") or (reason if reason not in ("Error", "Completed") else "")
        return ": ".join(part for part in (why, " | ".join(lines)) if part)
    if unplaced:
        return str(unplaced.get("message") or "no machine has room for it")
    return f"{problem.get('reason', '')}: {problem.get('message', '')}".strip(": ")
