"""Conditions of a resource's status, in the standard form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...mesh.kubernetes.resources import Object, rfc3339_s


@dataclass(frozen=True, slots=True)
class Condition:
    """One statement about a resource.

    Attributes:
        type: what is stated: "Available".
        status: whether it is so; None: nobody knows.
        reason: why, in one word, CamelCase.
        message: why, in a sentence; empty: the reason says it all.
    """

    type: str
    status: bool | None
    reason: str
    message: str = ""


def merged(
    before: Iterable[Mapping[str, Any]], said: Iterable[Condition], generation: int, now: float
) -> list[Object]:
    """Conditions for a status: those that stay as they were keep the time of their change.

    Args:
        before: of the status that was read.
        said: all that are stated now; others go.
        generation: of the resource that they were found for.
        now: seconds since 1970.
    """
    known = {one["type"]: one for one in before}
    found = []
    for one in said:
        status = {True: "True", False: "False", None: "Unknown"}[one.status]
        former = known.get(one.type, {})
        same = former.get("status") == status
        found.append(
            {
                "type": one.type,
                "status": status,
                "observedGeneration": generation,
                "lastTransitionTime": former["lastTransitionTime"] if same else rfc3339_s(now),
                "reason": one.reason,
                "message": (one.message or one.reason)[:32768],
            }
        )
    return found
