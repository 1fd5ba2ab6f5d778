"""What a buffer between two uneven flows is worth: how full it has to be kept, and what is lost.

A buffer that teachers fill and a student empties, each with jitter, is a random walk between two
walls. Where it stands at the lower wall the student waits, at the upper one the teachers do. Seen
as a diffusion with drift `d` and variance `v` between walls `K` apart, the flow that is lost at the
lower wall is d / (exp(2 d K / v) - 1), which for d = 0 is v / 2K (Harrison, Brownian Motion and
Stochastic Flow Systems, 1985, section 5.6).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, expm1, inf, log1p, sqrt

#: What of the student's rate may be lost by jitter before more buffer is worth its memory.
LOST = 0.005
#: Spreads that going on early has to be safe against.
SPREADS = 3.0


def throughput(made: float, used: float, variance: float, room: float) -> float:
    """What goes through, in the unit of the two rates.

    Args:
        made: batches per second that would be labelled if there were always room.
        used: batches per second that would be trained if there were always one.
        variance: of the difference of both, in batches squared per second.
        room: batches that the buffer holds.
    """
    if made <= 0 or used <= 0:
        return 0.0
    ideal = min(made, used)
    if variance <= 0 or room == inf:
        return ideal
    one_by_one = 1 / (1 / made + 1 / used)
    if room <= 0:
        return one_by_one
    drift, reach = made - used, 2 * (made - used) * room / variance
    if abs(reach) < 1e-9:
        lost = variance / (2 * room)
    else:
        lost = 0.0 if reach > 700 else drift / expm1(reach)
    return min(max(used - lost, one_by_one), ideal)


def room_for(made: float, used: float, variance: float, lost: float = LOST) -> float:
    """Batches that the buffer has to hold so that jitter costs no more than a share of the rate.

    Args:
        made: as of `throughput`.
        used: as of `throughput`.
        variance: as of `throughput`.
        lost: the share.
    """
    if variance <= 0:
        return 0.0
    drift, target = abs(made - used), lost * min(made, used)
    if drift < 1e-9 * used:
        return variance / (2 * target)
    return variance / (2 * drift) * log1p(drift / target)


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The `ut` and `lt` of Algorithm 1, in batches of one student.

    Attributes:
        upper: above it no new batch is pulled.
        lower: below it pulling goes on.
        ideal: what `upper` would be if memory were no matter.
    """

    upper: int
    lower: int
    ideal: int


def thresholds(
    used: float, reaction_s: float, spread_s: float, windows: float, cushion: float, most: float
) -> Thresholds:
    """Both thresholds from what the links and devices do.

    `lt` has to last from the moment when pulling goes on until the first of the new batches is
    labelled: one transfer each way and one batch of the slowest teacher, and their spread. `ut`
    is so far above that all teachers have work when pulling goes on, and that jitter finds room.

    Args:
        used: batches per second that the student takes.
        reaction_s: seconds from sending a batch to an idle teacher to having its labels.
        spread_s: standard deviation of it.
        windows: requests that its teachers have in flight.
        cushion: batches against jitter, as `room_for` says.
        most: batches that memory allows.
    """
    lower = max(1, ceil(used * (reaction_s + SPREADS * spread_s)))
    ideal = lower + max(ceil(windows / 2), ceil(cushion), 1)
    upper = max(1, min(ideal, int(min(most, 1e12))))
    return Thresholds(upper, min(lower, upper - 1), ideal)


def spread_of(*parts: tuple[float, float]) -> float:
    """Standard deviation of a sum of independent times, each given with its relative one."""
    return sqrt(sum((seconds * jitter) ** 2 for seconds, jitter in parts))
