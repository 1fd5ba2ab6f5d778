"""Conditions and events of our resources, and the fields that every status has. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...mesh.kubernetes.resources import Object, rfc3339_s, selector


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a resource.

    Attributes:
        type: its type, such as "Available".
        status: whether it holds; None: unknown.
        reason: one word in CamelCase.
        message: a sentence; empty: the reason suffices.
    """

    type: str
    status: bool | None
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ResourceEvent:
    """One event of a resource, to report once.

    Attributes:
        reason: one word in CamelCase, such as "Scaled".
        message: a sentence.
        warns: a user should look at it.
    """

    reason: str
    message: str
    warns: bool = False


def common_fields(
    resource: Object, labels: Mapping[str, str], current: Iterable[Condition], now: float
) -> Object:
    """Return selector, generation and conditions for the status of a resource.

    Unchanged conditions keep the time of their transition.

    Args:
        resource: the resource as it was read.
        labels: labels of its pods.
        current: all conditions that apply now.
        now: seconds since 1970.
    """
    generation = generation_of(resource)
    before = (resource.get("status") or {}).get("conditions") or ()
    former_by_type = {former["type"]: former for former in before}
    conditions = []
    for condition in current:
        status = {True: "True", False: "False", None: "Unknown"}[condition.status]
        former = former_by_type.get(condition.type, {})
        same = former.get("status") == status
        conditions.append(
            {
                "type": condition.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": former["lastTransitionTime"] if same else rfc3339_s(now),
                "reason": condition.reason,
                "message": (condition.message or condition.reason)[:32768],
            }
        )
    return {
        "selector": selector(labels),
        "observedGeneration": generation,
        "conditions": conditions,
    }


def generation_of(resource: Object) -> int:
    """Return the generation of an object, which grows with each change of its spec."""
    return int(resource["metadata"].get("generation") or 1)
