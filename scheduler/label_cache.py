"""Rules of the label store: which batches are looked up, and which rows a full store evicts.

Labels are valid only for the model that made them, so nothing is looked up before the model is
known: from the coordinator, or from the first answer of a teacher. If no teacher is usable, the
model that the store has seen last is assumed: this allows a run with all teachers off.

Rows lie in the order of writing. A full store is swept from its head, so that whole pages become
free: rows there are evicted, except those used later than the typical row, which move behind the
last one (a second chance, as in CLOCK). So evicted rows were not used lately. Sorting all rows by
use would rewrite the order at each read; for the same reason times of use have a resolution of
`USE_STEP_S`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Seconds without a usable teacher after which the store alone decides which model it is.
OFFLINE_AFTER_S = 2.0
#: Seconds that other batches wait for the answer to the first one, which tells the model.
FIRST_ANSWER_S = 5.0

#: What to do with a batch: look it up; look it up for the remembered model; send it to teachers; or
#: wait.
CacheStep = Literal["look", "recall", "ask", "wait"]


@dataclass(frozen=True, slots=True)
class CacheView:
    """What is known at the turn of a batch.

    Attributes:
        known: teachers or the coordinator told the model.
        mute: teachers answer without telling the model.
        remembered: the store remembers a model, and nothing contradicts it.
        usable: number of teachers that can get requests.
        asked: a batch was sent to learn the model, and is not answered yet.
        waited_s: how long the batch has waited for its turn.
    """

    known: bool
    mute: bool
    remembered: bool
    usable: int
    asked: bool
    waited_s: float


def cache_step(now: CacheView) -> CacheStep:
    """Return what to do with a batch at its turn."""
    if now.known:
        return "look"
    if now.mute:
        return "ask"
    if now.usable:
        return "wait" if now.asked and now.waited_s < FIRST_ANSWER_S else "ask"
    if now.waited_s < OFFLINE_AFTER_S:
        return "wait"
    return "recall" if now.remembered else "ask"


#: Uses within so many seconds of the recorded one are not recorded.
USE_STEP_S = 300
#: Each evicted row earns one second chance; most chances that are saved up.
MOST_CHANCES = 10_000


@dataclass(frozen=True, slots=True)
class StoredRow:
    """A row that may be evicted.

    Attributes:
        used_s: time of its latest use, in seconds of any clock.
        nbytes: its size.
    """

    used_s: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What happens to the first rows of a store.

    Attributes:
        gone: indices of evicted rows.
        moved: indices of rows that move behind the last one.
        chances: number of second chances that are left.
    """

    gone: tuple[int, ...]
    moved: tuple[int, ...]
    chances: int


def plan_eviction(
    head: Sequence[StoredRow], typical_s: int, lacking_bytes: int, chances: int
) -> EvictionPlan:
    """Go through rows in order until enough are evicted, or all were seen.

    Args:
        head: the first rows of the store, in order.
        typical_s: median of the rows' times of use.
        lacking_bytes: bytes to evict.
        chances: rows that may get a second chance now; each evicted row adds one.
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
