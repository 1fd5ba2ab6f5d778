"""What a manager that leads goes by: its term, and when leases can be believed."""

from __future__ import annotations

from dataclasses import dataclass, replace

#: A reader that claims a term so far ahead of the registry's clock is lying or broken.
_BELIEVED_AHEAD_MS = 24 * 3600 * 1000


def next_term(time_ms: int, stored: int, reported: int) -> int:
    """The term of a new leader: above all that were ever in force, as far as anyone remembers.

    Args:
        time_ms: the registry's clock, so that an emptied registry cannot fall behind.
        stored: the term of the table; 0: there is none.
        reported: the highest term that a reader follows; 0: none does. One that lies more than a
            day ahead of the clock is not heeded.
    """
    if reported > time_ms + _BELIEVED_AHEAD_MS:
        reported = 0
    return max(time_ms, stored + 1, reported + 1)


def is_ahead(reported: tuple[int, int], epoch: tuple[int, int], time_ms: int) -> bool:
    """Whether a reader follows an assignment that the table has not reached: it was rolled back."""
    return reported > epoch and reported[0] <= time_ms + _BELIEVED_AHEAD_MS


def grace_s(ttl_s: float, beats_per_ttl: int) -> float:
    """How long everyone has to come back after the registry was away: one TTL and one beat."""
    return ttl_s * (1 + 1 / beats_per_ttl)


@dataclass(frozen=True, slots=True)
class Watch:
    """Since when one registry has answered without a gap.

    Attributes:
        registry_id: which server process answers; empty: none has yet.
        since_s: when it began to answer.
        heard_s: when it answered last.
    """

    registry_id: str = ""
    since_s: float = 0.0
    heard_s: float = 0.0


def heard(watch: Watch, registry_id: str, now: float, gap_s: float) -> Watch:
    """The registry answers; after another one, or more than `gap_s` of silence, it begins anew."""
    if registry_id != watch.registry_id or now - watch.heard_s > gap_s:
        return Watch(registry_id, now, now)
    return replace(watch, heard_s=now)


def may_sweep(watch: Watch, now: float, grace: float, gap_s: float) -> bool:
    """Whether a lease that has run out means a death.

    While a registry is away nobody can prolong a lease; so they are believed only after it has
    answered for one time of `grace`, and while it has not been silent for more than `gap_s`.
    """
    return bool(watch.registry_id) and now - watch.since_s >= grace and now - watch.heard_s <= gap_s
