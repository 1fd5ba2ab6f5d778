"""How many rows this rank reads for a step: what all ranks agreed on, as far as they have."""

from __future__ import annotations

import threading

from ...errors import PeerLost
from ...scheduler.students.agreement import RowShares, within

#: So many steps ahead of what it has read may a rank go until the next vote. More of it lets a
#: buffer fill faster, and lets shares change later.
MARGIN = 8


class Shares:
    """Stands between the training loop, which hears the votes, and the thread that reads ahead.

    A vote promises not to read beyond `promise()` until the votes of all are heard; shares change
    from a later step on only. So every rank reads for each step what all others expect of it.

    Args:
        proportion: of all ranks, the same in each.
        rank: this one.
    """

    def __init__(self, proportion: RowShares, rank: int) -> None:
        self.proportion = proportion
        self._rank = rank
        self._changed = threading.Condition()
        self._first = 0  # step of the whole training with which the epoch was begun
        self._read = -1
        self._promised: int | None = None
        self._closed = False

    def begin(self, step: int) -> None:
        """An epoch begins with `step` of the whole training; nothing is promised yet."""
        with self._changed:
            self._first, self._read, self._promised = step, step - 1, None
            self._changed.notify_all()

    def rows(self, ordinal: int, left: int) -> int:
        """Rows of this rank at the `ordinal`-th step of the epoch, from 0, once it is agreed.

        All ranks together have `left` rows for this step and all later ones of the epoch.

        Before the first vote of an epoch nothing is waited for: loaders ask within its beginning.

        Raises:
            PeerLost: the loop has ended, and nothing will be agreed any more.
        """
        step = self._first + ordinal
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._free(step))
            if self._closed:
                raise PeerLost("the training loop has ended while its source read ahead")
            self._read = max(self._read, step)
            return within(self.proportion.rows(step), left)[self._rank]

    def expected(self, step: int) -> int:
        """Rows of this rank at a step that is agreed on."""
        return self.proportion.rows(step)[self._rank]

    def promise(self, step: int) -> int:
        """The last step that is read for until `told` is called; `step` is the next to be taken."""
        with self._changed:
            self._promised = max(self._read, step) + MARGIN
            self._changed.notify_all()
            return self._promised

    def told(self, proportion: RowShares) -> None:
        """What follows from the votes."""
        with self._changed:
            self.proportion = proportion

    def close(self) -> None:
        """Nothing is agreed any more: who waits is let go."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _free(self, step: int) -> bool:
        return self._promised is None or step <= self._promised
