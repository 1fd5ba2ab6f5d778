"""Which ranks hang, and which straggle: judged by when each told of its last step.

A rank hangs when it has told of no step for `hang_s`; while it starts (imports, first batch, the
group) it has `START_FACTOR` times as long. One that waits for something outside, and says so, does
not hang. Ranks step together, so one that hangs holds up all others: of those that are silent the
ones to blame are those that the system has suspended, or else that are behind; or else all of them.
Where all ranks of a world wait for each other, no other step will come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: So much longer than a step may a start take, and so long at least, in seconds.
START_FACTOR: Final = 3.0
START_S: Final = 120.0
#: A rank is named as a straggler when it needs so many times the median of the others per row.
SLOWER: Final = 1.5
_FEWEST_STEPS: Final = 3


@dataclass(frozen=True, slots=True)
class Sign:
    """What is known of one rank.

    Attributes:
        rank: its number in the world.
        step: the last one that it told of; 0: none in this generation.
        started: all that comes before its first step is done.
        at_s: when it told of it, or was started.
        heard_s: when it said anything.
        waiting_for: what it said it waits for; empty: nothing.
        suspended: the system says that it is stopped by a signal.
    """

    rank: int
    step: int
    at_s: float
    heard_s: float
    started: bool = True
    waiting_for: str = ""
    suspended: bool = False


def allowed_s(sign: Sign, hang_s: float) -> float:
    """How long this rank may go without a step, in seconds."""
    return hang_s if sign.started else max(START_FACTOR * hang_s, START_S)


def hung(signs: Sequence[Sign], hang_s: float, now_s: float) -> tuple[int, ...]:
    """The ranks of one node that hang and are to blame; empty: none does.

    Args:
        signs: of the ranks that still run.
        hang_s: seconds without a step, while nothing is waited for.
        now_s: of the clock that the signs are told by.
    """
    silent = [sign for sign in signs if _is_silent(sign, hang_s, now_s)]
    if not silent:
        return ()
    suspended = [sign.rank for sign in silent if sign.suspended]
    if suspended:
        return tuple(suspended)
    behind = min(sign.step for sign in silent)
    return tuple(sign.rank for sign in silent if sign.step == behind)


def _is_silent(sign: Sign, hang_s: float, now_s: float) -> bool:
    if sign.suspended:  # it cannot say what it waits for, nor will it stop waiting by itself
        return now_s - max(sign.at_s, sign.heard_s) >= hang_s
    # What it waits for has limits of its own; yet it has to say so anew, lest it died saying it.
    since_s = sign.heard_s if sign.waiting_for else sign.at_s
    return now_s - since_s >= allowed_s(sign, hang_s)


def deadlocked(peers_s: Sequence[float], ranks: int, hang_s: float) -> bool:
    """Whether the ranks of a world wait for each other for good.

    Args:
        peers_s: of each rank that has told of it, for how long it has waited for the others.
        ranks: in the world.
        hang_s: seconds without a step.
    """
    return len(peers_s) == ranks and min(peers_s) >= hang_s


def straggler(seconds_per_row: Mapping[int, Iterable[float]]) -> int | None:
    """The rank that is slower than the others by more than `SLOWER`; None: there is none.

    Args:
        seconds_per_row: of each rank's last steps, without what it waited for; ranks without rows
            in a step leave it out.
    """
    usual = {
        rank: _median(found)
        for rank, times in seconds_per_row.items()
        if len(found := sorted(times)) >= _FEWEST_STEPS
    }
    if len(usual) < 2:
        return None
    rank = max(usual, key=lambda one: (usual[one], -one))
    others = sorted(time for one, time in usual.items() if one != rank)
    return rank if usual[rank] > SLOWER * _median(others) > 0 else None


def _median(ordered: Sequence[float]) -> float:
    """The lower median of numbers in order."""
    return ordered[(len(ordered) - 1) // 2]
