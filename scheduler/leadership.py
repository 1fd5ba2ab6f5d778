"""Who leads: a manager's term, and when leases can be believed; a lease that its holder renews.

A manager that leads goes by its term, and believes leases only while the registry answers. Where
only a lease can be kept, as in Kubernetes, its holder renews it, and others take it when it lies
still. Clocks of machines differ, so nobody believes a time that another has written. Who waits
counts by its own clock for how long the lease has not been changed; who holds it counts from the
moment at which it began to renew it.

Which of several equal servers a client turns to needs no leader: rendezvous (highest random weight)
hashing. Every client ranks the servers by a hash of both names and takes the first. Clients spread
evenly without being told, and a server that goes moves only the clients that it had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

#: A reader that claims a term so far ahead of the registry's clock is lying or broken.
_BELIEVED_AHEAD_MS = 24 * 3600 * 1000


def is_believable(reported: int, time_ms: int) -> bool:
    """Whether a term that a reader says it follows can be one; `time_ms`: the registry's clock."""
    return reported <= time_ms + _BELIEVED_AHEAD_MS


def next_term(time_ms: int, stored: int, *reported: int) -> int:
    """The term of a new leader: above all that were ever in force, as far as anyone remembers.

    Args:
        time_ms: the registry's clock, so that an emptied registry cannot fall behind.
        stored: the term of the table; 0: there is none.
        reported: terms that readers follow. One that lies more than a day ahead of the clock is
            not heeded, and hides none of the others.
    """
    followed = (term + 1 for term in reported if is_believable(term, time_ms))
    return max(time_ms, stored + 1, *followed)


def is_ahead(reported: tuple[int, int], epoch: tuple[int, int], time_ms: int) -> bool:
    """Whether a reader follows an assignment that the table has not reached: it was rolled back."""
    return reported > epoch and is_believable(reported[0], time_ms)


def grace_s(ttl_s: float, beats_per_ttl: float) -> float:
    """How long everyone has to come back after the registry was away: one TTL and one beat."""
    return ttl_s * (1 + 1 / beats_per_ttl)


@dataclass(frozen=True, slots=True)
class RegistryWatch:
    """Since when one registry has answered without a gap.

    Attributes:
        registry_id: which server process answers; empty: none has yet.
        since_s: when it began to answer.
        heard_s: when it answered last.
        heard_ms: what its own clock was then.
    """

    registry_id: str = ""
    since_s: float = 0.0
    heard_s: float = 0.0
    heard_ms: int = 0


def registry_answered(
    watch: RegistryWatch, registry_id: str, time_ms: int, now: float, gap_s: float
) -> RegistryWatch:
    """The registry answers; after another one, or more than `gap_s` of silence, it begins anew."""
    if registry_id != watch.registry_id or now - watch.heard_s > gap_s:
        return RegistryWatch(registry_id, now, now, time_ms)
    return replace(watch, heard_s=now, heard_ms=time_ms)


def sweep_until_ms(watch: RegistryWatch, now: float, grace: float, gap_s: float) -> int | None:
    """Until when, by the registry's clock, a lease that has run out means a death; None: not now.

    While a registry is away nobody can prolong a lease; so they are believed only after it has
    answered for one time of `grace`, and while it has not been silent for more than `gap_s`. The
    registry has to see to the latter itself: a request to sweep may lie before one that hangs, and
    is carried out first when it goes on, before anybody can beat.
    """
    believed = watch.registry_id and now - watch.since_s >= grace and now - watch.heard_s <= gap_s
    return watch.heard_ms + int(gap_s * 1000) if believed else None


def still_led(listed_s: Mapping[str, float], now: float, lasting_s: float) -> dict[str, float]:
    """Of services, by when each had a member last, those that are led on for `lasting_s`.

    Who was the last to go has yet to be said in the log by whoever leads.
    """
    return {name: at for name, at in listed_s.items() if now - at < lasting_s}


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
class LeaseView:
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


LeaseAction = Literal["make", "take", "renew", "wait"]


def lease_read(view: LeaseView, lease: Lease | None, me: str, now: float) -> LeaseView:
    """The lease was read.

    Args:
        view: what was known.
        lease: None: there is none.
        me: the candidate.
        now: seconds of a clock that does not go back, as everywhere here.
    """
    renewed_s = view.renewed_s if lease is not None and lease.holder == me else None
    if lease is None:
        free_s = view.free_s
        if view.lease is not None and not may_act(view, now):
            free_s = now + view.lease.duration_s
        return LeaseView(None, now, None, free_s)
    if view.lease is None or lease.version != view.lease.version:
        return LeaseView(lease, now, renewed_s)
    return replace(view, renewed_s=renewed_s)


def lease_written(view: LeaseView, lease: Lease, me: str, began_s: float) -> LeaseView:
    """The candidate has changed the lease, and began to do so at `began_s`."""
    return LeaseView(lease, began_s, began_s if lease.holder == me else None)


def lease_action(view: LeaseView, me: str, now: float) -> LeaseAction:
    """What a candidate does that has just read the lease."""
    lease = view.lease
    if lease is None:
        return "make" if now >= view.free_s else "wait"
    if lease.holder == me:
        return "renew"
    if not lease.holder or now - view.since_s >= lease.duration_s:
        return "take"
    return "wait"


def may_act(view: LeaseView, now: float) -> bool:
    """Whether the candidate may act."""
    if view.renewed_s is None or view.lease is None:
        return False
    return now - view.renewed_s < ACTING * view.lease.duration_s


def rank_servers(client: str, servers: Iterable[str]) -> list[str]:
    """`servers` in the order in which `client` turns to them, the same for everyone who asks."""

    def weight(server: str) -> tuple[bytes, str]:
        name = f"{len(client)}:{client}{server}".encode()
        return hashlib.blake2b(name, digest_size=8).digest(), server

    return sorted(servers, key=weight)
