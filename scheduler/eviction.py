"""Which rows of a full store make room: those that were not used for the longest time.

It is least-recently-used among a sample, not among all: an order of all rows by their use would
have to be written anew whenever one is read. Of `OVERSAMPLING` times as many rows as have to go,
drawn without regard to their use, the oldest go; so that whoever goes is among the oldest fifth of
a fair sample. When a row was used is kept to `USE_STEP_S`, for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

OVERSAMPLING = 5
#: A row that is used again within so many seconds counts as used when it was before.
USE_STEP_S = 300


@dataclass(frozen=True, slots=True)
class Candidate:
    """A row that may go.

    Attributes:
        used_s: when it was last used, in seconds of any clock.
        nbytes: what it takes.
    """

    used_s: int
    nbytes: int


def victims(candidates: Sequence[Candidate], lacking_bytes: int) -> list[int]:
    """Places of those that go, the oldest first: no more than needed, or all."""
    order = sorted(range(len(candidates)), key=lambda place: candidates[place].used_s)
    chosen: list[int] = []
    freed = 0
    for place in order:
        if freed >= lacking_bytes:
            break
        chosen.append(place)
        freed += candidates[place].nbytes
    return chosen


def worth_noting(noted_s: int, now_s: int) -> bool:
    """Whether a use is written down, of a row of which the last one is known to be at `noted_s`."""
    return now_s - noted_s >= USE_STEP_S
