"""Which teachers are named as stragglers: much slower than the others, or silent.

A straggler keeps its place and its share of the work; operators want to know of it, as a card that
is throttled or shared looks just so. A teacher is named when it has been `SLOWER` times as slow as
the median of the others for `LASTING_S`, and at once when it is silent; it is cleared when it is no
longer `CLEARED` times as slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field

SLOWER, CLEARED = 3.0, 2.0
LASTING_S = 5.0


@dataclass(frozen=True, slots=True)
class Straggling:
    """What one look leaves to the next.

    Attributes:
        named: teachers that are told to be stragglers.
        since: since when each that is too slow has been so.
    """

    named: frozenset[str] = frozenset()
    since: Mapping[str, float] = field(default_factory=dict)


def look(
    seconds_per_row: Mapping[str, float], silent: Set[str], before: Straggling, now: float
) -> Straggling:
    """Look at the speeds of a pool again; a few times a second is enough.

    Args:
        seconds_per_row: of each teacher that has answered.
        silent: teachers that say nothing while others do.
        before: what the last look left.
        now: seconds of a clock that does not go back.
    """
    times = seconds_per_row.values()
    if not times or max(times) < CLEARED * min(times):  # as nearly always
        return Straggling(frozenset(silent))
    slow = {
        name
        for name, seconds in seconds_per_row.items()
        if seconds >= (CLEARED if name in before.named else SLOWER) * _usual(seconds_per_row, name)
    }
    since = {name: before.since.get(name, now) for name in slow}
    lasting = {name for name in slow if name in before.named or now - since[name] >= LASTING_S}
    return Straggling(frozenset(lasting | silent), since)


def _usual(seconds_per_row: Mapping[str, float], but: str) -> float:
    """The lower median of the other teachers' times; infinite where there is no other."""
    others = sorted(seconds for name, seconds in seconds_per_row.items() if name != but)
    return others[(len(others) - 1) // 2] if others else float("inf")
