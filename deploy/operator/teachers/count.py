"""How many teachers a service gets in a cluster: by hand, or as are desired, within bounds.

And how much room a cluster has for them. Nothing here asks the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import floor
from typing import Literal

from ....scheduler.elastic_values import Pool
from ....scheduler.fleet import fleet_size

#: by-hand: somebody has said it; desired: the coordinator has; unknown: nobody has lately, so it
#: stays; no-room: the coordinator wants more than the cluster carries.
Cause = Literal["by-hand", "desired", "unknown", "no-room"]
#: Of sums of quantities that are decimal fractions.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Wish:
    """What a service says of its number.

    Attributes:
        by_hand: so many, whatever is desired; None: as is desired.
        least: fewest while any is desired.
        most: most of those that are desired.
        to_zero: none while none is desired; False: `least` then, too.
    """

    by_hand: int | None = None
    least: int = 0
    most: int = 1
    to_zero: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.least <= self.most or (self.by_hand or 0) < 0:
            raise ValueError(f"expects 0 <= least <= most, and by_hand of 0 or more: {self}")


@dataclass(frozen=True, slots=True)
class Count:
    """How many there are to be, and why."""

    count: int
    cause: Cause
    reason: str


def count_of(wish: Wish, desired: int | None, last: int | None, room: int | None = None) -> Count:
    """How many teachers a service is to have.

    Args:
        wish: what it says itself.
        desired: by the coordinator; None: nobody has said it lately.
        last: as was decided before; None: never yet.
        room: so many the cluster carries; None: that is no bound. It keeps a number from growing,
            and takes nothing away from what there is.
    """
    if wish.by_hand is not None:
        return Count(wish.by_hand, "by-hand", "by hand")
    if desired is None:
        fewest = wish.least if last is None or last > 0 or not wish.to_zero else 0
        kept = min(max(last or 0, fewest), wish.most)
        return Count(kept, "unknown", "nobody says how many are desired: as before")
    count = max(fleet_size(desired, wish.least, wish.most), 0 if wish.to_zero else wish.least)
    reason = f"{desired} desired"
    if count > desired:
        reason += f"; min is {wish.least}"
    elif count < desired:
        reason += f"; max is {wish.most}"
    bound = max(room, last or 0) if room is not None else count
    if count > bound:
        return Count(bound, "no-room", f"{reason}; the cluster has room for {room}")
    return Count(count, "desired", reason)


@dataclass(frozen=True, slots=True)
class Promise:
    """What another service has been promised.

    Attributes:
        decided: teachers that it is to have.
        there: of those, how many have pods.
        needs: of one teacher, of each kind.
    """

    decided: int
    there: int
    needs: Mapping[str, float]


def room_for(
    pool: Pool, needs: Mapping[str, float], max_load: float, promises: Iterable[Promise] = ()
) -> int | None:
    """How many of a service's teachers a cluster carries; None: they need nothing that is counted.

    Args:
        pool: what there is, and what others hold who do not get out of the way: neither these
            teachers themselves nor elastic jobs.
        needs: of one teacher, of each kind.
        max_load: the share of each kind that may be taken.
        promises: to the other services; what of them has no pod yet holds nothing in `pool`.
    """
    promised = list(promises)
    found = []
    for kind, amount in needs.items():
        if amount > 0:
            held = pool.reserved.get(kind, 0.0) + sum(
                one.needs.get(kind, 0.0) * max(0, one.decided - one.there) for one in promised
            )
            room = pool.capacity.get(kind, 0.0) * max_load - held
            found.append(max(0, floor(room / amount + _ROUNDING)))
    return min(found, default=None)
