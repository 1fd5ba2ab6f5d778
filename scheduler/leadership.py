"""Leadership: terms of managers, when to trust expired leases, leader leases, rendezvous hashing.

A leading manager has a term, and trusts that an expired lease means a death only while the registry
(Redis) answers.

The Kubernetes operator has no registry: a `Lease` alone decides which of its processes leads. The
holder leads and renews the lease; another candidate takes it when it is not renewed. Clocks of
machines differ, so no candidate uses a time that another candidate wrote. A waiting candidate
measures by its own clock how long the lease has not changed. The holder counts from the moment at
which it began its latest renewal.

To choose one of several equal servers a client needs no leader: with rendezvous (highest random
weight) hashing every client ranks the servers by a hash of both names and takes the first. Clients
spread evenly, and a server that leaves moves only its own clients.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import inf
from typing import Final, Literal

#: Terms are milliseconds of the registry's clock. A reader that reports a term further ahead of
#: that clock than this is lying or broken.
_BELIEVED_AHEAD_MS = 24 * 3600 * 1000


def is_believable(reported: int, time_ms: int) -> bool:
    """Whether a reported term is plausible; `time_ms`: the registry's clock."""
    return reported <= time_ms + _BELIEVED_AHEAD_MS


def next_term(time_ms: int, stored: int, *reported: int) -> int:
    """Return the term of a new leader: above all terms that are known.

    Args:
        time_ms: the registry's clock: terms grow even if the registry was emptied.
        stored: term of the assignment table; 0: there is none.
        reported: terms that readers report; implausible terms are ignored.
    """
    followed = (term + 1 for term in reported if is_believable(term, time_ms))
    return max(time_ms, stored + 1, *followed)


def is_ahead(reported: tuple[int, int], table: tuple[int, int], time_ms: int) -> bool:
    """Whether a reader's assignment is newer than the table; if so, the table was rolled back.

    Args:
        reported: (term, counter) of the reader's assignment.
        table: (term, counter) of the table.
        time_ms: the registry's clock.
    """
    return reported > table and is_believable(reported[0], time_ms)


#: Heartbeats per TTL: if one is lost, the next one still comes in time.
BEATS_PER_TTL: Final = 2.5


def grace_s(ttl_s: float) -> float:
    """Return how long members may take to return after an outage: one TTL and one heartbeat."""
    return ttl_s * (1 + 1 / BEATS_PER_TTL)


@dataclass(frozen=True, slots=True)
class RegistryWatch:
    """Since when one registry has answered without a gap; `_s` times are by the manager's clock.

    Attributes:
        registry_id: id of the registry's process; empty: none has answered yet.
        since_s: time of its first answer, or later (see `registry_answered`).
        asked_s: time of the latest request that was answered.
        answered_s: time of the answer to this request.
        answered_ms: time in this answer, by the registry's clock.
    """

    registry_id: str = ""
    since_s: float = 0.0
    asked_s: float = 0.0
    answered_s: float = 0.0
    answered_ms: int = 0


def registry_answered(
    watch: RegistryWatch, registry_id: str, time_ms: int, asked_s: float, now: float, gap_s: float
) -> RegistryWatch:
    """Record an answer; another registry, or a silence above `gap_s`, begins a new watch.

    If the registry's clock was set forward by more than `gap_s`, deadlines passed although no
    heartbeat was missing. Then `since_s` is two gaps after `now`, because members compute deadlines
    from the former time until they read the clock again.

    Args:
        watch: the state before.
        registry_id: id of the registry's process that answered.
        time_ms: time in its answer.
        asked_s: time of the request.
        now: time of the answer, as for `asked_s`.
        gap_s: longest silence that does not end a watch.
    """
    if registry_id != watch.registry_id or now - watch.answered_s > gap_s:
        return RegistryWatch(registry_id, now, asked_s, now, time_ms)
    since_s = watch.since_s
    if (time_ms - watch.answered_ms) / 1000 > now - watch.asked_s + gap_s:
        since_s = now + 2 * gap_s
    return RegistryWatch(registry_id, since_s, asked_s, now, time_ms)


def sweep_until_ms(watch: RegistryWatch, now: float, grace: float, gap_s: float) -> int | None:
    """Return the registry time until which a sweep for dead members may run; None: it may not.

    Leases cannot be renewed while the registry is unavailable. So an expired lease counts as a
    death only after the registry has answered for `grace` seconds, and while it has not been silent
    for more than `gap_s`. With the returned time the registry itself can check the gap: otherwise a
    sweep that is delayed by a hanging request could run before heartbeats that are delayed too.
    """
    answers = watch.registry_id and now - watch.answered_s <= gap_s
    is_trusted = answers and now - watch.since_s >= grace
    return watch.answered_ms + int(gap_s * 1000) if is_trusted else None


#: Share of the lease duration for which its holder acts without a renewal; in the remaining time it
#: can finish work that it has begun.
ACTING_SHARE = 2 / 3
#: Share of the lease duration after which its holder renews it.
RENEWAL_SHARE = 1 / 4


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was read.

    Attributes:
        version: changes with every change of the lease.
        holder: name of its holder; empty: it was released.
        duration_s: how long it belongs to its holder after a change, in seconds.
    """

    version: str
    holder: str = ""
    duration_s: float = 15.0


@dataclass(frozen=True, slots=True)
class LeaseView:
    """What one candidate knows about the lease.

    Attributes:
        lease: the lease as last seen; None: it was not read yet, or does not exist.
        since_s: time at which this version was first seen.
        renewed_s: start of the candidate's latest successful renewal; None: it has not renewed the
            lease, or has lost it.
        free_s: from this time on, a deleted lease may be created again: its former holder has then
            stopped acting, even if it has not noticed the deletion.
    """

    lease: Lease | None = None
    since_s: float = 0.0
    renewed_s: float | None = None
    free_s: float = -inf


#: "make": create the lease; "take": become the holder of a released or expired lease.
LeaseAction = Literal["make", "take", "renew", "wait"]


def view_after_read(view: LeaseView, lease: Lease | None, me: str, now: float) -> LeaseView:
    """Return the view after the lease was read.

    Args:
        view: the state before.
        lease: the lease; None: it does not exist.
        me: name of the candidate.
        now: seconds of a clock that does not go back, as in all these functions.
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


def view_after_write(view: LeaseView, lease: Lease, me: str, began_s: float) -> LeaseView:
    """Return the view after the candidate changed the lease; the change began at `began_s`."""
    return LeaseView(lease, began_s, began_s if lease.holder == me else None)


def lease_action(view: LeaseView, me: str, now: float) -> LeaseAction:
    """Return what a candidate does after a read of the lease."""
    lease = view.lease
    if lease is None:
        return "make" if now >= view.free_s else "wait"
    if lease.holder == me:
        return "renew"
    if not lease.holder or now - view.since_s >= lease.duration_s:
        return "take"
    return "wait"


def may_act(view: LeaseView, now: float) -> bool:
    """Whether the candidate may act as the leader."""
    if view.renewed_s is None or view.lease is None:
        return False
    return now - view.renewed_s < ACTING_SHARE * view.lease.duration_s


def rank_servers(client: str, servers: Iterable[str]) -> list[str]:
    """Return `servers` in the order in which `client` tries them, the same for every caller."""

    def weight(server: str) -> tuple[bytes, str]:
        name = f"{len(client)}:{client}{server}".encode()
        return hashlib.blake2b(name, digest_size=8).digest(), server

    return sorted(servers, key=weight)
