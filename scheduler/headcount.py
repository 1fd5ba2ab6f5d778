"""Which processes a fleet starts and lets go, so that it has as many as are desired.

Those that die by themselves are replaced at once the first time, and after pauses that grow while
they keep dying young: a model that cannot be loaded must not load a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from .backoff import RandomLike, delay_s

#: A process that ran so long counts as a success.
HEALTHY_S = 30.0
#: Bounds of the pauses before another is started for one that died young.
BASE_S, CAP_S = 1.0, 60.0


@dataclass(frozen=True, slots=True)
class Hand:
    """One process of the fleet that runs.

    Attributes:
        name: its own.
        serves: whether it is ready; else it is starting.
        leaves: whether it was told to finish and end.
    """

    name: str
    serves: bool = False
    leaves: bool = False


@dataclass(frozen=True, slots=True)
class Deaths:
    """What is remembered of processes that ended unasked.

    Attributes:
        young: how many in a row did not stay for `HEALTHY_S`.
        retry_at: nobody is started before.
    """

    young: int = 0
    retry_at: float = float("-inf")


@dataclass(frozen=True, slots=True)
class Moves:
    """What is to be done now.

    Attributes:
        start: so many more.
        drain: names of those to be let go.
    """

    start: int = 0
    drain: tuple[str, ...] = ()


def wanted(desired: int, least: int, most: int) -> int:
    """How many a fleet has when so many are desired: none for none, else within its own bounds."""
    return min(max(desired, least), most) if desired > 0 else 0


def moves(hands: Sequence[Hand], count: int, deaths: Deaths, now: float) -> Moves:
    """What makes the fleet as large as it should be.

    Those that are not ready yet are let go first, the newest first of all: nobody misses them.

    Args:
        hands: those that run, the oldest first.
        count: how many there should be.
        deaths: of those before.
        now: seconds of a clock that does not go back.
    """
    staying = [hand for hand in reversed(hands) if not hand.leaves]
    missing = count - len(staying)
    if missing > 0:
        return Moves(start=missing if now >= deaths.retry_at else 0)
    least_missed = sorted(staying, key=lambda hand: hand.serves)
    return Moves(drain=tuple(hand.name for hand in least_missed[: len(staying) - count]))


def died(deaths: Deaths, ran_s: float, now: float, rng: RandomLike) -> Deaths:
    """One has ended unasked, after `ran_s` seconds."""
    if ran_s >= HEALTHY_S:
        return Deaths()
    pause_s = delay_s(deaths.young, rng, BASE_S, CAP_S) if deaths.young else 0.0
    retry_at = max(deaths.retry_at, now + pause_s)
    return replace(deaths, young=deaths.young + 1, retry_at=retry_at)
