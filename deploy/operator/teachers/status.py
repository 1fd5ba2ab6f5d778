"""The status of a TeacherService, and the events of its changes."""

from __future__ import annotations

from typing import Any

from ....mesh.kubernetes.resources import Object
from ..conditions import Condition, ResourceEvent, common_fields, generation_of
from .manifests import selector_of
from .replica_count import ReplicaCount


def status_of(
    resource: Object, deployment: Object | None, count: ReplicaCount, now: float, *, in_sync: bool
) -> Object:
    """Return the status of a service with a valid spec.

    Args:
        resource: the TeacherService as it was read.
        deployment: its Deployment as it was read; None: there is none yet.
        count: number of teachers from now on.
        now: seconds since 1970.
        in_sync: the Deployment was last written from the present manifest.
    """
    replicas = _count(deployment, "replicas")
    ready = _count(deployment, "readyReplicas")
    active = count.cause in ("FollowsCoordinator", "NoRoom")
    conditions = [
        _available(count.count, ready),
        _progressing(deployment, in_sync, count.count, replicas, ready),
        Condition("ScalingActive", active, count.cause, count.reason),
    ]
    return {
        "replicas": replicas,
        "readyReplicas": ready,
        "desired": count.count,
        "reason": count.reason,
        **common_fields(resource, selector_of(resource), conditions, now),
    }


def refused_status_of(resource: Object, deployment: Object | None, why: str, now: float) -> Object:
    """Return the status of a service with a refused spec; its teachers keep running.

    Args:
        resource: the TeacherService as it was read.
        deployment: its Deployment as it was read; None: there is none yet.
        why: why the operator refuses the spec, or the cluster refuses the objects made from it.
        now: seconds since 1970.
    """
    before = resource.get("status") or {}
    ready = _count(deployment, "readyReplicas")
    never = Condition("Available", False, "InvalidSpec", "the spec has never been valid")
    conditions = [
        _available(before["desired"], ready) if "desired" in before else never,
        Condition("Progressing", False, "InvalidSpec", "no changes until the spec is valid"),
        Condition("ScalingActive", False, "InvalidSpec", "no changes until the spec is valid"),
        Condition("InvalidSpec", True, "InvalidSpec", why),
    ]
    return {
        **{key: before[key] for key in ("desired",) if key in before},
        "replicas": _count(deployment, "replicas"),
        "readyReplicas": ready,
        "reason": why,
        **common_fields(resource, selector_of(resource), conditions, now),
    }


def events_of(resource: Object, status: Object) -> list[ResourceEvent]:
    """Return the events of a change to `status`; `resource` has the former status."""
    before = resource.get("status") or {}
    former, current = _by_type(before), _by_type(status)
    events = []
    if "desired" in status and before.get("desired") != status["desired"]:
        former_count = f" instead of {before['desired']}" if "desired" in before else ""
        text = f"{_teachers(status['desired'])}{former_count}: {status['reason']}"
        events.append(ResourceEvent("Scaled", text))
    invalid = current.get("InvalidSpec")
    if invalid is not None and former.get("InvalidSpec", {}).get("message") != invalid["message"]:
        events.append(ResourceEvent("InvalidSpec", invalid["message"], warns=True))
    progress = current["Progressing"]
    former_message = former.get("Progressing", {}).get("message")
    if progress["reason"] == "Stuck" and former_message != progress["message"]:
        events.append(ResourceEvent("Stuck", progress["message"], warns=True))
    is_unknown = current["ScalingActive"]["reason"] == "NoNumber"
    if is_unknown and former.get("ScalingActive", {}).get("reason") == "FollowsCoordinator":
        text = "the coordinator reports no number: the last number stays"
        events.append(ResourceEvent("NoNumber", text, warns=True))
    all_ready = status.get("desired", 0) > 0 and current["Available"]["reason"] == "AllReady"
    if all_ready and former.get("Available", {}).get("reason") != "AllReady":
        events.append(ResourceEvent("Ready", f"{_teachers(status['desired'])} serving"))
    return events


def _available(desired: int, ready: int) -> Condition:
    if desired == 0:
        return Condition("Available", True, "ScaledToZero", "no teacher is desired")
    text = f"{ready} of {_teachers(desired)} serving"
    if ready == 0:
        return Condition("Available", False, "NoneReady", text)
    return Condition("Available", True, "AllReady" if ready >= desired else "SomeReady", text)


def _progressing(
    deployment: Object | None, in_sync: bool, desired: int, replicas: int, ready: int
) -> Condition:
    if deployment is None:
        return Condition("Progressing", True, "Creating", "the Deployment is being created")
    if not in_sync or _count(deployment, "observedGeneration") < generation_of(deployment):
        # its status is about the former spec
        return Condition("Progressing", True, "Updating", "the Deployment is being updated")
    for condition in deployment.get("status", {}).get("conditions", ()):
        failed = condition["type"] == "ReplicaFailure" and condition["status"] == "True"
        if failed or condition.get("reason") == "ProgressDeadlineExceeded":
            return Condition("Progressing", False, "Stuck", condition.get("message", ""))
    updated = _count(deployment, "updatedReplicas")
    if ready < desired or updated < desired:
        text = f"{ready} of {desired} serving, {updated} with the current spec"
        return Condition("Progressing", True, "Starting", text)
    if replicas > desired:
        return Condition("Progressing", True, "Leaving", f"{replicas - desired} are leaving")
    return Condition("Progressing", False, "Settled", "the desired number runs")


def _count(deployment: Object | None, field: str) -> int:
    return int((deployment or {}).get("status", {}).get(field) or 0)


def _by_type(status: Object) -> dict[str, dict[str, Any]]:
    return {condition["type"]: condition for condition in status.get("conditions") or ()}


def _teachers(count: int) -> str:
    return "1 teacher" if count == 1 else f"{count} teachers"
