"""Conditions of a resource's status, in the standard form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...mesh.kubernetes.resources import Object, rfc3339_s


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


def merged(
    before: Iterable[Mapping[str, Any]], current: Iterable[Condition], generation: int, now: float
) -> list[Object]:
    """Return the conditions of a status; unchanged ones keep the time of their transition.

    Args:
        before: conditions of the former status.
        current: all conditions that apply now.
        generation: generation of the resource.
        now: seconds since 1970.
    """
    known = {one["type"]: one for one in before}
    found = []
    for one in current:
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
