"""Labels kept in a store: which batches are looked up there, which rows of a full one make room.

A label counts only for the model that made it, so nothing is looked up before it is known which
model that is. The coordinator says so, or the first answer of a teacher. Where no teacher answers
at all, it is the model that the store has seen at work last: a run with all teachers off.

Rows lie in the order in which they were written. A full store is swept from its head on: what lies
there goes, so that whole pages become free; what was used later than the typical row moves behind
the last one instead (a second chance, as in CLOCK). So whoever goes was not used lately. An order
of all rows by their use would have to be written anew whenever one is read; when a row was used is
kept to `USE_STEP_S` for the same reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import Literal

#: Teachers are given so long to answer, before the store alone says which model it is.
OFFLINE_AFTER_S = 2.0
#: Behind the first batch that was sent to learn of which model the labels are, others wait so long.
FIRST_ANSWER_S = 5.0

CacheStep = Literal["look", "recall", "ask", "wait"]


@dataclass(frozen=True, slots=True)
class CacheView:
    """What is known when it is a batch's turn.

    Attributes:
        known: the model is, by teachers or coordinator.
        mute: teachers answer, and do not say which model it is.
        remembered: the store remembers a model, and nothing says that it is another one now.
        usable: teachers that can be sent to.
        asked: a batch was sent to learn of the model, and has not been answered.
        waited_s: how long the batch has waited for its turn.
    """

    known: bool
    mute: bool
    remembered: bool
    usable: int
    asked: bool
    waited_s: float


def cache_step(now: CacheView) -> CacheStep:
    """Look it up; the same, by the remembered model; send it to teachers; or wait."""
    if now.known:
        return "look"
    if now.mute:
        return "ask"
    if now.usable:
        return "wait" if now.asked and now.waited_s < FIRST_ANSWER_S else "ask"
    if now.waited_s < OFFLINE_AFTER_S:
        return "wait"
    return "recall" if now.remembered else "ask"


#: A row that is used again within so many seconds counts as used when it was before.
USE_STEP_S = 300
#: For each row that goes one may stay; of that, so many are saved up at most.
MOST_CHANCES = 10_000


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row that may go.

    Attributes:
        used_s: when it was last used, in seconds of any clock.
        nbytes: what it takes.
    """

    used_s: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What becomes of the first rows of a store.

    Attributes:
        gone: places of those that go.
        moved: places of those that move behind the last one.
        chances: how many more may stay from now on.
    """

    gone: tuple[int, ...]
    moved: tuple[int, ...]
    chances: int


def plan_eviction(
    head: Sequence[StoredRow], typical_s: int, lacking_bytes: int, chances: int
) -> EvictionPlan:
    """Go through rows in their order until enough have gone, or all have been looked at.

    Args:
        head: the first rows of the store, in order.
        typical_s: when the typical row was used: see `median_use_s`.
        lacking_bytes: what those that go should have taken.
        chances: so many may stay now, and one more for each that goes.
    """
    gone: list[int] = []
    moved: list[int] = []
    freed = 0
    for place, row in enumerate(head):
        if freed >= lacking_bytes:
            break
        if row.used_s > typical_s and chances > 0:
            moved.append(place)
            chances -= 1
        else:
            gone.append(place)
            freed += row.nbytes
            chances = min(chances + 1, MOST_CHANCES)
    return EvictionPlan(tuple(gone), tuple(moved), chances)


def median_use_s(used_s: Sequence[int]) -> int:
    """When the median of these rows was used; half of them, at most, were used later."""
    return median_high(used_s) if used_s else 0


def should_record_use(noted_s: int, now_s: int) -> bool:
    """Whether a use is written down, of a row of which the last one is known to be at `noted_s`."""
    return now_s - noted_s >= USE_STEP_S
