"""Which processes a fleet starts and lets go, so that it has as many as are desired.

Those that die by themselves are replaced at once the first time, and after pauses that grow while
they keep dying young: a model that cannot be loaded must not load a machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .backoff import RandomLike, Rest, retry_s

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


def moves(hands: Sequence[Hand], count: int, rest: Rest, now: float) -> Moves:
    """What makes the fleet as large as it should be.

    Those that are not ready yet are let go first, the newest first of all: nobody misses them.

    Args:
        hands: those that run, the oldest first.
        count: how many there should be.
        rest: after processes that ended unasked, as `died` says.
        now: seconds of a clock that does not go back.
    """
    staying = [hand for hand in reversed(hands) if not hand.leaves]
    missing = count - len(staying)
    if missing > 0:
        return Moves(start=missing if now >= rest.until_s else 0)
    least_missed = sorted(staying, key=lambda hand: hand.serves)
    return Moves(drain=tuple(hand.name for hand in least_missed[: len(staying) - count]))


def died(rest: Rest, ran_s: float, now: float, rng: RandomLike) -> Rest:
    """One has ended unasked, after `ran_s` seconds; nobody is started before the rest is over."""
    if ran_s >= HEALTHY_S:
        return Rest()
    pause_s = retry_s(rest.failures, rng, BASE_S, CAP_S)
    return Rest(rest.failures + 1, max(rest.until_s, now + pause_s))
