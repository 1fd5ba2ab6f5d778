"""What a manager that leads goes by: its term, and when leases can be believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
class Watch:
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


def heard(watch: Watch, registry_id: str, time_ms: int, now: float, gap_s: float) -> Watch:
    """The registry answers; after another one, or more than `gap_s` of silence, it begins anew."""
    if registry_id != watch.registry_id or now - watch.heard_s > gap_s:
        return Watch(registry_id, now, now, time_ms)
    return replace(watch, heard_s=now, heard_ms=time_ms)


def sweep_until_ms(watch: Watch, now: float, grace: float, gap_s: float) -> int | None:
    """Until when, by the registry's clock, a lease that has run out means a death; None: not now.

    While a registry is away nobody can prolong a lease; so they are believed only after it has
    answered for one time of `grace`, and while it has not been silent for more than `gap_s`. The
    registry has to see to the latter itself: a request to sweep may lie before one that hangs, and
    is carried out first when it goes on, before anybody can beat.
    """
    believed = watch.registry_id and now - watch.since_s >= grace and now - watch.heard_s <= gap_s
    return watch.heard_ms + int(gap_s * 1000) if believed else None


def led_still(listed_s: Mapping[str, float], now: float, lasting_s: float) -> dict[str, float]:
    """Of services, by when each had a member last, those that are led on for `lasting_s`.

    Who was the last to go has yet to be said in the log by whoever leads.
    """
    return {name: at for name, at in listed_s.items() if now - at < lasting_s}
