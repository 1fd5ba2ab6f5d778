"""Whether a reader says that its student starves: not for moments without labels.

An epoch begins with an empty buffer, so a student that has all that it needs waits for a moment
each time, and the next report would carry that moment for a second.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

#: Seconds that are looked at together.
WINDOW_S: Final = 1.0
#: So much waiting in one of them is starving.
STARVING_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Hunger:
    """What was found so far.

    Attributes:
        starves: as it is to be told.
        since_s: when the window began.
        starved_s: seconds that the student had waited by then, since it began.
    """

    starves: bool = False
    since_s: float = 0.0
    starved_s: float = 0.0


def follow(hunger: Hunger, starved_s: float, now: float) -> Hunger:
    """Look again.

    That it starves is said as soon as it has waited for long enough; that it no longer does, after
    a whole window in which it did not.

    Args:
        hunger: as it was found last.
        starved_s: seconds that the student has waited for labels, since it began.
        now: seconds of any monotonic clock.
    """
    starves = starved_s - hunger.starved_s >= STARVING_S
    if now - hunger.since_s >= WINDOW_S:
        return Hunger(starves, now, starved_s)
    return hunger if hunger.starves or not starves else replace(hunger, starves=True)
