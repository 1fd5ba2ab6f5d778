"""The batches of one rank in one epoch: which positions each has, found out as the loader asks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from ...distill_reader.sources.map_style import Ids
from ...proto.arena import Array
from ...scheduler.students.agreement import useful
from ...scheduler.students.shards import Shard
from .leases import Leases
from .tally import Tally


class Sizes(Protocol):
    """How large this rank's batches are."""

    def rows(self, ordinal: int, left: int) -> int:
        """Rows of its `ordinal`-th batch, from 0, of the epoch that was begun; 0: no more come.

        All ranks have `left` rows together for this batch and all later ones. None takes more of
        them than is its part, however far ahead it reads: so each step has its full number until
        the epoch's last.

        It may wait until that is decided, though not before the epoch's first step: a loader with
        workers asks for as many as these read ahead before the epoch is begun.

        Raises:
            EdlError: the rank ends.
        """


class DealtPlan:
    """A batch sampler that leases positions; the loader iterates it, in whichever thread.

    Args:
        epoch: its number.
        ids: of all its samples, in order.
        leases: positions for this rank.
        sizes: of its batches.
        tally: is told of each shard.
        remaining: positions of the epoch that were not trained before, of all ranks together.
        total_batch: rows of one step of all ranks together.
        equal_rows: rows of one step of each rank if all had equal parts.

    Attributes:
        coming: positions, int64 [rows], of the batches that the loader has asked for and not given.
        error: what ended it too early; loaders lose what is raised in a thread of theirs.
    """

    def __init__(
        self,
        epoch: int,
        ids: Sequence[Any],
        leases: Leases,
        sizes: Sizes,
        tally: Tally,
        remaining: int,
        total_batch: int,
        equal_rows: int,
    ) -> None:
        self._epoch = epoch
        self._ids = ids
        self._leases = leases
        self._sizes = sizes
        self._tally = tally
        self._have: deque[range] = deque()
        self._remaining = remaining
        self._total_batch = total_batch
        self._equal_rows = max(1, equal_rows)
        self.coming: deque[Array] = deque()
        self.error: Exception | None = None

    def __len__(self) -> int:
        """At most so many batches; how many shows while they are read."""
        return len(self._ids)

    def __iter__(self) -> Iterator[Ids]:
        try:
            yield from self._batches()
        except Exception as error:
            self.error = error

    def _batches(self) -> Iterator[Ids]:
        ordinal, left = 0, self._remaining
        while rows := self._rows(ordinal, left):
            positions = self._next(rows, useful(rows, left, self._total_batch))
            if not positions:
                return
            self.coming.append(np.array(positions, np.int64))
            yield [self._ids[position] for position in positions]
            ordinal, left = ordinal + 1, max(0, left - self._total_batch)

    def _rows(self, ordinal: int, left: int) -> int:
        """Rows of this rank's next batch; 0: no more come.

        Once it has leased all that is left, other ranks have none: a step would be of this rank's
        share alone, perhaps of a single row. So it takes as much as if all had equal parts.
        """
        rows = self._sizes.rows(ordinal, left)
        held = sum(map(len, self._have))
        if rows and held < left:
            return rows
        return max(rows, min(self._equal_rows, held))

    def _next(self, rows: int, most: int) -> list[int]:
        """The next positions, fewer than `rows` where no more are left for this rank."""
        taken: list[int] = []
        while len(taken) < rows and (self._have or self._lease(most - len(taken))):
            held = self._have.popleft()
            part = held[: rows - len(taken)]
            taken.extend(part)
            if rest := held[len(part) :]:
                self._have.appendleft(rest)
        return taken

    def _lease(self, most: int) -> bool:
        given = self._leases.next(self._epoch, most)
        if given is None:
            return False
        shard = Shard(*given)
        self._tally.leased(self._epoch, shard)
        self._have.append(range(*shard))
        return True
