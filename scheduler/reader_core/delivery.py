"""In which order batches go to the training loop, and how far ahead of it.

A batch is complete once every service has labelled it, or goes without. Then it is offered to the
trainer, in its turn, so that its labels outlive the engine. The training loop may take it once it
is released. Released are only so many as the loop may consume before the engine hears of it: all
others can still be withdrawn, as a teacher may turn out to lie, and the model may be exchanged.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil, inf
from typing import Final

from ..rates import RecentMean

#: The training loop has so much work at hand, in released batches; and so many at least, at most.
AHEAD_S: Final = 0.1
FEWEST_AHEAD, MOST_AHEAD = 2, 64
#: Steps over which the time of a batch is taken. A loop whose device is asynchronous runs ahead for
#: some steps and then waits for all of them, so it is a mean; a pause makes it longer for a while.
STEPS: Final = 64


def look_ahead(batch_s: float | None) -> int:
    """Batches to release ahead of a loop that needs so long for one; None: not known."""
    if not batch_s:
        return FEWEST_AHEAD
    return min(max(ceil(AHEAD_S / batch_s), FEWEST_AHEAD), MOST_AHEAD)


class Delivery:
    """The batches of one stream that the training loop has not taken. One thread owns it.

    Args:
        services: that label each batch.
        ordered: batches are taken in the order of the source; else as they are completed.
    """

    def __init__(self, services: Iterable[str], *, ordered: bool = True) -> None:
        self._services = frozenset(services)
        self._ordered = ordered
        self._undone: dict[int, set[str]] = {}  # services by batch that is not offered, in order
        self._offered: dict[int, None] = {}  # and not released, in the order of their release
        self._released: set[int] = set()  # and not taken
        self._batch_s = RecentMean(STEPS)
        #: Poison, or offered by an engine before this one: no service has labels of its own there.
        self._inseparable: set[int] = set()

    @property
    def incomplete(self) -> dict[int, frozenset[str]]:
        """The services that have not labelled a batch, by its number, in the order of the stream.

        A batch that none of them lacks waits for an earlier one, and is left out.
        """
        return {number: frozenset(lack) for number, lack in self._undone.items() if lack}

    def queue(self, batch: int) -> None:
        """A batch is to be labelled; numbers grow."""
        self._undone[batch] = set(self._services)

    def hold(self, batch: int, *, released: bool) -> None:
        """An engine before this one has offered a batch to the trainer; numbers grow."""
        self._inseparable.add(batch)
        if released:
            self._released.add(batch)
        else:
            self._offered[batch] = None

    def done(self, service: str, batch: int) -> list[int]:
        """A service has labelled a batch, or goes without: which are to be offered now."""
        if (lacking := self._undone.get(batch)) is None:
            return []
        lacking.discard(service)
        return [] if lacking else self._offer(batch)

    def poisoned(self, batch: int) -> list[int]:
        """A batch will never be labelled, whatever other services make of it: as of `done`."""
        if (lacking := self._undone.get(batch)) is None:
            return []
        lacking.clear()
        self._inseparable.add(batch)
        return self._offer(batch)

    def undone(self, service: str, batch: int) -> frozenset[str]:
        """Labels of a service are void, of a batch that is not released.

        Returns:
            If it was offered, or is poison: the services that label it anew. The trainer is to
            forget what it was offered. Else nothing.
        """
        is_inseparable = batch in self._inseparable
        anew = self._services if is_inseparable else frozenset([service])
        if (lacking := self._undone.get(batch)) is not None:
            lacking.update(anew)
            anew = anew if is_inseparable else frozenset()
        elif batch in self._offered:
            del self._offered[batch]
            self._undone[batch] = set(anew)
            self._undone = dict(sorted(self._undone.items()))
        else:
            return frozenset()
        self._inseparable.discard(batch)
        return anew

    def release(self) -> list[int]:
        """Batches that the loop may take from now on; none while it has half of them at hand."""
        batches, ahead = list[int](), look_ahead(self._batch_s.value)
        if 2 * len(self._released) > ahead or not self._offered:
            return batches
        room = ahead - len(self._released)
        barrier = next(iter(self._undone), inf) if self._ordered else inf
        for number in self._offered:
            if len(batches) == room or number > barrier:
                break
            batches.append(number)
        for number in batches:
            del self._offered[number]
        self._released.update(batches)
        return batches

    def taken(self, batch: int, step_s: float | None) -> None:
        """The training loop has a batch, after `step_s` of work on the one before; None: unknown."""
        if step_s:
            self._batch_s.add(step_s)
        self._released.discard(batch)
        self._inseparable.discard(batch)

    def reset(self) -> None:
        """The epoch was left: every batch is forgotten."""
        for kept in (self._undone, self._offered, self._released, self._inseparable):
            kept.clear()

    def _offer(self, batch: int) -> list[int]:
        """A batch is complete: offer it; in order, once those before it are."""
        complete = list[int]()
        if self._ordered:
            for number, lacking in self._undone.items():
                if lacking:
                    break
                complete.append(number)
        else:
            complete.append(batch)
        last = next(reversed(self._offered), -1)
        for number in complete:
            del self._undone[number]
            self._offered[number] = None
        if self._ordered and complete and complete[0] < last:  # it was withdrawn
            self._offered = dict(sorted(self._offered.items()))
        return complete
