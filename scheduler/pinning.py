"""Whose labels a stream may have that is to be the same to the last bit, whoever labels it.

Bits are equal between teachers of one numerics_id, so the stream is pinned to one: of the teachers
that come first, the one that most of them have, which leaves most to fall back on. It stays so
until the service moves to another model. Teachers of other numerics, and those that do not say
theirs, are barred. So are those whose numerics_id says that they promise nothing: where requests
are merged with others', or go to devices that differ, bits depend on more than the request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

#: The first word of numerics of which even equal ones promise no equal bits.
NO_PROMISE = ("merged-", "mixed-")


def promises(numerics_id: str) -> bool:
    """Whether teachers of equal numerics answer alike, bit for bit."""
    return bool(numerics_id) and not numerics_id.startswith(NO_PROMISE)


def pinned(now: str, offered: Iterable[str]) -> str:
    """What a stream is pinned to.

    Args:
        now: what it is pinned to already; empty: nothing yet.
        offered: numerics of each teacher that there is; empty where one is not known.

    Returns:
        the numerics_id; empty while no teacher promises anything.
    """
    if now:
        return now
    counts = Counter(filter(promises, offered))
    return min(counts, key=lambda one: (-counts[one], one), default="")


def admits(pinned_to: str, numerics_id: str) -> bool:
    """Whether a teacher of these numerics may label a stream that is pinned so, or not yet."""
    return promises(numerics_id) and pinned_to in ("", numerics_id)
