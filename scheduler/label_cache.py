"""Rules of the label store: which batches are looked up, and which rows a full store evicts.

Labels are valid only for the model that made them, so nothing is looked up before the model is
known: from the coordinator, or from the first answer of a teacher. If no teacher is usable, the
model that the store has seen last is assumed: this allows a run with all teachers off.

Rows are stored in the order of writing. A full store is swept from its head, so that whole pages
become free. Rows there are evicted, except rows used later than the typical (median) row. These
move to the end (a second chance, as in the CLOCK algorithm) while the store has chances left: a
moved row uses one up, an evicted row adds one. Sorting all rows by use would need a write at each
read. Recording the times of use needs writes too, so these times have a resolution of `USE_STEP_S`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

#: Seconds that a batch waits for a usable teacher before the store's last model is assumed.
OFFLINE_AFTER_S = 2.0
#: Seconds that other batches wait for the answer to the first batch, which names the model.
FIRST_ANSWER_S = 5.0

#: What to do with a batch. "look": look it up for the known model; "recall": look it up for the
#: remembered model; "ask": send it to teachers; "wait": decide later.
CacheStep = Literal["look", "recall", "ask", "wait"]


@dataclass(frozen=True, slots=True)
class CacheView:
    """What is known when it is a batch's turn to be looked up.

    Attributes:
        model_known: teachers or the coordinator have named the model.
        model_unnamed: teachers answer without naming the model.
        remembered: the store remembers a model, and nothing contradicts it.
        usable: number of teachers that can get requests.
        asked: a batch was sent to learn the model, and is not answered yet.
        waited_s: seconds that the batch has waited.
    """

    model_known: bool
    model_unnamed: bool
    remembered: bool
    usable: int
    asked: bool
    waited_s: float


def cache_step(view: CacheView) -> CacheStep:
    """Return what to do with a batch when it is its turn."""
    if view.model_known:
        return "look"
    if view.model_unnamed:
        return "ask"
    if view.usable:
        return "wait" if view.asked and view.waited_s < FIRST_ANSWER_S else "ask"
    if view.waited_s < OFFLINE_AFTER_S:
        return "wait"
    return "recall" if view.remembered else "ask"


#: A use is recorded only if it is at least this many seconds later than the recorded one.
USE_STEP_S = 300
#: Limit of the second chances that are saved up. Each evicted row adds one.
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
        moved: indices of rows that move to the end of the store.
        chances: number of second chances that are left.
    """

    gone: tuple[int, ...]
    moved: tuple[int, ...]
    chances: int


def plan_eviction(
    head: Sequence[StoredRow], typical_s: int, lacking_bytes: int, chances: int
) -> EvictionPlan:
    """Go through `head` in order until enough rows are evicted, or all were seen.

    Args:
        head: the first rows of the store, in order.
        typical_s: median of the rows' times of use.
        lacking_bytes: bytes to evict.
        chances: rows that may get a second chance now; each evicted row adds one.
    """
    gone: list[int] = []
    moved: list[int] = []
    freed = 0
    for index, row in enumerate(head):
        if freed >= lacking_bytes:
            break
        if row.used_s > typical_s and chances > 0:
            moved.append(index)
            chances -= 1
        else:
            gone.append(index)
            freed += row.nbytes
            chances = min(chances + 1, MOST_CHANCES)
    return EvictionPlan(tuple(gone), tuple(moved), chances)
