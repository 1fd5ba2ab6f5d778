"""What a rank has read and trained of its shards: when one is done, and how far it reads ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ...proto.arena import Array
from ...scheduler.students.shards import Ranges, Shard


@dataclass(slots=True)
class _Open:
    epoch: int
    shard: Shard
    left: int


class Tally:
    """Counts, between the thread that reads and the one that trains.

    Args:
        done: called with epoch and shard once all of it is trained, in the thread that trains.
    """

    def __init__(self, done: Callable[[int, Shard], None]) -> None:
        self._done = done
        self._changed = threading.Condition()
        self._open: list[_Open] = []
        self._trained: dict[int, Ranges] = {}
        self._handed = 0
        self._stepped = 0

    def leased(self, epoch: int, shard: Shard) -> None:
        """The rank has this shard now."""
        with self._changed:
            self._open.append(_Open(epoch, shard, shard.rows))

    def begin(self) -> None:
        """An epoch begins: what was read of another one and not trained is no longer waited for."""
        with self._changed:
            self._open.clear()
            self._handed = self._stepped = 0

    def handed(self) -> None:
        """One batch more was read."""
        with self._changed:
            self._handed += 1

    def trained(self, epoch: int, positions: Array) -> None:
        """A step has trained a batch of these positions, int64 [rows]; none: it had no batch."""
        if not len(positions):
            return
        complete: list[Shard] = []
        with self._changed:
            self._stepped += 1
            now = Ranges.of_numbers(positions.tolist())
            self._trained[epoch] = self._trained.get(epoch, Ranges()).union(now)
            for one in self._open:
                if one.epoch == epoch:
                    start, stop = one.shard
                    one.left -= int(np.count_nonzero((positions >= start) & (positions < stop)))
                    if one.left <= 0:
                        complete.append(one.shard)
            self._open = [one for one in self._open if one.left > 0]
            self._changed.notify_all()
        for shard in complete:
            self._done(epoch, shard)

    def ranges(self) -> dict[int, Ranges]:
        """By epoch, what was trained."""
        with self._changed:
            return dict(self._trained)

    @property
    def ahead(self) -> int:
        """Batches that were read and are not trained."""
        return self._handed - self._stepped

    def wait(self, ends: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ends()`, which is looked at whenever something was trained, or woken."""
        with self._changed:
            return self._changed.wait_for(ends, timeout_s)

    def wake(self) -> None:
        """Have who waits look again."""
        with self._changed:
            self._changed.notify_all()
