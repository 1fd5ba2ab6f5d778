"""Decides how many teachers a service gets, and computes how many the cluster has room for.

No I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Literal

from ....scheduler.elastic_values import Pool
from ....scheduler.fleet import fleet_size

#: Reasons of the condition ScalingActive. ByHand: the spec sets the number; FollowsCoordinator: the
#: coordinator wants it; NoNumber: the coordinator's number is unknown, so the number stays; NoRoom:
#: the cluster has room for fewer than the coordinator wants.
Cause = Literal["ByHand", "FollowsCoordinator", "NoNumber", "NoRoom"]
#: Rounding error of sums of decimal fractions.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class ReplicaBounds:
    """Bounds in the spec of a service.

    Attributes:
        by_hand: fixed number; None: the coordinator decides.
        least: fewest teachers, unless `to_zero` allows none.
        most: most teachers.
        to_zero: no teacher runs if the coordinator wants none; False: `least` teachers run.
    """

    by_hand: int | None = None
    least: int = 0
    most: int = 1
    to_zero: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or (self.by_hand or 0) < 0:
            raise ValueError(f"expects 0 <= least <= most, and by_hand of 0 or more: {self}")


@dataclass(frozen=True, slots=True)
class ReplicaCount:
    """A number of teachers, with its cause and a sentence about it."""

    count: int
    cause: Cause
    reason: str


def count_of(
    bounds: ReplicaBounds, desired: int | None, last: int | None, room: int | None = None
) -> ReplicaCount:
    """Decide the number of teachers of a service.

    Args:
        bounds: bounds of its spec.
        desired: number that the coordinator wants; None: unknown.
        last: number decided before; None: this is the first decision.
        room: number that fits into the cluster; None: no limit. It limits growth only.
    """
    if bounds.by_hand is not None:
        return ReplicaCount(bounds.by_hand, "ByHand", "by hand")
    if desired is None:
        fewest = bounds.least if last is None or last > 0 or not bounds.to_zero else 0
        kept = min(max(last or 0, fewest), bounds.most)
        return ReplicaCount(kept, "NoNumber", "the desired number is unknown: unchanged")
    count = max(
        fleet_size(desired, bounds.least, bounds.most), 0 if bounds.to_zero else bounds.least
    )
    reason = f"{desired} desired"
    if count > desired:
        reason += f"; min is {bounds.least}"
    elif count < desired:
        reason += f"; max is {bounds.most}"
    bound = max(room, last or 0) if room is not None else count
    if count > bound:
        return ReplicaCount(bound, "NoRoom", f"{reason}; the cluster has room for {room}")
    return ReplicaCount(count, "FollowsCoordinator", reason)


def room_for(
    pool: Pool,
    needs: Mapping[str, float],
    max_load: float,
    promises: Iterable[tuple[int, Mapping[str, float]]] = (),
) -> int | None:
    """Return how many teachers of a service fit into a cluster; None: they need no resources.

    Args:
        pool: capacity, and the resources that other pods use. The other pods include neither the
            teachers of this service nor nodes of elastic jobs, which yield to teachers.
        needs: resources of one teacher.
        max_load: share of each resource that may be used.
        promises: for each other service, the number of its teachers without a pod, and the
            resources of one teacher. `pool` does not include these teachers.
    """
    promised = list(promises)
    counts = []
    for kind, amount in needs.items():
        if amount > 0:
            used = pool.reserved.get(kind, 0.0) + sum(
                each.get(kind, 0.0) * max(0, missing) for missing, each in promised
            )
            room = pool.capacity.get(kind, 0.0) * max_load - used
            counts.append(max(0, floor(room / amount + _ROUNDING)))
    return min(counts, default=None)
