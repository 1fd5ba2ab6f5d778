"""Who acts of several that may: a lease that its holder renews, and others take when it lies still.

Clocks of machines differ, so nobody believes a time that another has written. Who waits counts by
its own clock for how long the lease has not been changed; who holds it counts from the moment at
which it began to renew it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from typing import Literal

#: The share of a lease's time after which its holder acts no more unless it was renewed: what is
#: left is for what it has just begun.
ACTING = 2 / 3
#: The share after which it is renewed.
RENEWING = 1 / 4


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was read.

    Attributes:
        version: changes with every change of it.
        holder: who holds it; empty: it was given back.
        duration_s: for so long after a change it is its holder's.
    """

    version: str
    holder: str = ""
    duration_s: float = 15.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What one candidate knows of the lease.

    Attributes:
        lease: as it was seen last; None: never yet, or there is none.
        since_s: when it was first seen so.
        renewed_s: when the candidate last began to renew or take it, with success; None: it does
            not hold it.
        free_s: a lease that has been deleted may be somebody's who has not noticed; from here on
            it is nobody's.
    """

    lease: Lease | None = None
    since_s: float = 0.0
    renewed_s: float | None = None
    free_s: float = -inf


Move = Literal["make", "take", "renew", "wait"]


def seen(sight: Sight, lease: Lease | None, me: str, now: float) -> Sight:
    """The lease was read.

    Args:
        sight: what was known.
        lease: None: there is none.
        me: the candidate.
        now: seconds of a clock that does not go back, as everywhere here.
    """
    renewed_s = sight.renewed_s if lease is not None and lease.holder == me else None
    if lease is None:
        free_s = sight.free_s
        if sight.lease is not None and not leads(sight, now):
            free_s = now + sight.lease.duration_s
        return Sight(None, now, None, free_s)
    if sight.lease is None or lease.version != sight.lease.version:
        return Sight(lease, now, renewed_s)
    return replace(sight, renewed_s=renewed_s)


def written(sight: Sight, lease: Lease, me: str, began_s: float) -> Sight:
    """The candidate has changed the lease, and began to do so at `began_s`."""
    return Sight(lease, began_s, began_s if lease.holder == me else None)


def move(sight: Sight, me: str, now: float) -> Move:
    """What a candidate does that has just read the lease."""
    lease = sight.lease
    if lease is None:
        return "make" if now >= sight.free_s else "wait"
    if lease.holder == me:
        return "renew"
    if not lease.holder or now - sight.since_s >= lease.duration_s:
        return "take"
    return "wait"


def leads(sight: Sight, now: float) -> bool:
    """Whether the candidate may act."""
    if sight.renewed_s is None or sight.lease is None:
        return False
    return now - sight.renewed_s < ACTING * sight.lease.duration_s
