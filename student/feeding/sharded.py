"""`ShardedSource`: the batches of one rank, for a reader, while other ranks come and go.

`LeasedPlan` leases the positions of each batch when the loader asks for it. The source records
which positions are trained, and limits how far the rank reads ahead.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from ...distill_reader.sources.map_style import Ids, LoaderIterator
from ...distill_reader.sources.source import Mark, freeze_garbage_in_forks
from ...proto.arena import Array
from ...runtime.errors import UsageError
from ...scheduler.students.agreement import rows_left_for_rank
from ...scheduler.students.shards import Range, Ranges
from ..job.batches import with_positions
from .positions import PositionLeases, SampleOrder, remaining_positions

log = logging.getLogger(__name__)

#: Limit of the batches that are read and not trained.
MOST_AHEAD: Final = 64
_EXPLAIN_EVERY_S: Final = 10.0


class ShardedSource:
    """The source of one rank in one generation; a `ResumableSource` of the reader.

    One thread reads, another one trains. `sizes` gives the number of leased positions of each
    batch; the last batch of an epoch may have fewer. A batch carries the positions of its rows
    (`with_positions`).

    Args:
        order: order of the feed's samples, and its loader.
        leases: gives this rank positions of the epoch.
        sizes: sizes of this rank's batches.
        trained: by epoch, the positions that were trained when the checkpoint was saved.
        total_batch: rows of one step, of all ranks together.
        equal_rows: rows of this rank in one step if all ranks had equal parts.

    Attributes:
        total_batch: rows of one step, of all ranks together.
        has_positions: True: batches carry positions.
    """

    kind = "sharded"
    divides_ids = False
    has_positions = True

    def __init__(
        self,
        order: SampleOrder,
        *,
        leases: PositionLeases,
        sizes: Sizes,
        trained: Mapping[int, Ranges],
        total_batch: int,
        equal_rows: int,
    ) -> None:
        self._order = order
        self._leases = leases
        self._sizes = sizes
        self._trained_before = trained
        self._ids: dict[int, Sequence[Any]] = {}  # by epoch
        self.total_batch = total_batch
        self._equal_rows = max(1, equal_rows)
        self._room = threading.Semaphore(MOST_AHEAD)  # for batches that are read and not trained
        self._stopped = False
        self._trained: dict[int, Ranges] = {}  # of the latest epoch

    # --- the training loop's side

    def positions(self, epoch: int) -> int:
        """Return the number of positions of an epoch, of all ranks, trained or not."""
        return self._order.total(epoch)

    def trained(self, epoch: int, positions: Array) -> None:
        """Record that a step trained a batch with these positions, int64 [rows].

        `positions` is empty if the rank had no batch.
        """
        if not len(positions):
            return
        if epoch not in self._trained:
            self._trained.clear()  # ranks step together: earlier epochs are complete
        added = Ranges.of_numbers(positions.tolist())
        self._trained[epoch] = self._trained.get(epoch, Ranges()).union(added)
        self._room.release()

    def sample_ids(self, epoch: int, positions: Sequence[int]) -> list[Any]:
        """Return the ids of the samples at these positions of the current or previous epoch."""
        ids = self._ids[epoch]
        return [ids[position] for position in positions]

    def state(self) -> dict[str, Any]:
        """Return the positions that this rank has trained in this generation's latest epoch.

        `merge_states` merges those of all ranks.
        """
        trained = {str(epoch): ranges.to_json() for epoch, ranges in self._trained.items()}
        return {"kind": self.kind, "trained": trained, "order": self._order.identity()}

    def stop(self) -> None:
        """Give no more batches; call it before a reader is closed in the middle of an epoch."""
        self._stopped = True
        self._room.release()

    # --- the reader's side

    def __len__(self) -> int:
        raise TypeError("the number of a rank's batches is known only at the end of an epoch")

    def identity(self) -> dict[str, Any]:
        return self._order.identity()

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _ShardedIterator:
        if taken or mark is not None:
            raise UsageError(
                "a reader's state cannot restore a source whose positions are leased to"
                " ranks: their checkpoint has the trained positions"
            )
        freeze_garbage_in_forks()
        self._room = threading.Semaphore(MOST_AHEAD)  # forget batches of the previous epoch
        total = self._order.total(epoch)
        remaining = remaining_positions(self._trained_before, epoch, total)
        self._leases.begin(epoch, total, remaining)

        def plan_of(ids: Sequence[Any]) -> LeasedPlan:
            # Batches of the previous epoch may still be in training.
            self._ids = {epoch: ids, epoch - 1: self._ids.get(epoch - 1, ())}
            return LeasedPlan(
                ids,
                remaining.count,
                lease=partial(self._leases.next, epoch),
                sizes=self._sizes,
                total_batch=self.total_batch,
                equal_rows=self._equal_rows,
            )

        plan, batches = self._order.begin(epoch, plan_of)
        return _ShardedIterator(plan, batches, self._wait_for_room)

    def close(self) -> None:
        self._order.close()

    def _wait_for_room(self) -> bool:
        """Wait until another batch may be read, and count it; return False if stopped."""
        waited_s = 0.0
        while not self._stopped and not self._room.acquire(timeout=_EXPLAIN_EVERY_S):
            waited_s += _EXPLAIN_EVERY_S
            log.info(
                "the source waits for the training loop, %.0f s now: %d batches are read and not"
                " trained",
                waited_s,
                MOST_AHEAD,
            )
        return not self._stopped


class _ShardedIterator:
    """See `SourceIterator`."""

    start = None

    def __init__(
        self, plan: LeasedPlan, batches: LoaderIterator, wait_for_room: Callable[[], bool]
    ) -> None:
        self._plan = plan
        self._batches = batches
        self._wait_for_room = wait_for_room

    def __next__(self) -> Any:
        if not self._wait_for_room():
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            if self._plan.error is not None:
                raise self._plan.error from None
            raise
        return with_positions(batch, self._plan.pending_positions.popleft())

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return {}

    def end(self) -> None:
        return None

    def close(self) -> None:
        self._batches.close()


class Sizes(Protocol):
    """Sizes of this rank's batches."""

    def rows(self, ordinal: int, left: int) -> int:
        """Return the rows of batch `ordinal`, from 0, of the current epoch; 0: no more batches.

        All ranks together have `left` rows for this batch and all later ones. No rank takes more
        than its part of them, however far ahead it reads. So each step but the epoch's last one has
        its full number of rows.

        This may block until the shares of the ranks are decided. Before the epoch's first step it
        does not block: a loader with workers requests several batches when the epoch begins.

        Raises:
            PeerLost: the training loop has ended.
        """


@dataclass(eq=False, slots=True)
class LeasedPlan:
    """A batch sampler that leases positions; the loader may iterate it in any thread.

    Attributes:
        ids: ids of all samples of the epoch, in order.
        remaining: number of untrained positions when the epoch begins, of all ranks together.
        lease: leases the next positions of this rank, at most the given number; returns None if
            none are left.
        sizes: sizes of this rank's batches.
        total_batch: rows of one step, of all ranks together.
        equal_rows: rows of this rank in one step if all ranks had equal parts.
        pending_positions: positions, int64 [rows], of the batches that the loader has asked
            for and not yet returned.
        error: exception that ended the plan early; loaders lose exceptions of their threads.
    """

    ids: Sequence[Any]
    remaining: int
    lease: Callable[[int], Range | None]
    sizes: Sizes
    total_batch: int
    equal_rows: int
    pending_positions: deque[Array] = field(default_factory=deque)
    error: Exception | None = None
    _leased: deque[range] = field(default_factory=deque, init=False)

    def __len__(self) -> int:
        """Return an upper bound of the number of batches, which is known only at the end."""
        return len(self.ids)

    def __iter__(self) -> Iterator[Ids]:
        try:
            yield from self._batches()
        except Exception as error:
            self.error = error

    def _batches(self) -> Iterator[Ids]:
        ordinal, left, total = 0, self.remaining, self.total_batch
        while rows := self._rows(ordinal, left):
            positions = self._next(rows, rows_left_for_rank(rows, left, total))
            if not positions:
                return
            self.pending_positions.append(np.array(positions, np.int64))
            yield [self.ids[position] for position in positions]
            ordinal, left = ordinal + 1, max(0, left - total)

    def _rows(self, ordinal: int, left: int) -> int:
        """Return the rows of this rank's next batch; 0: no more batches.

        If this rank has leased all `left` positions of this and later batches, the other ranks have
        no rows. A step would then have only this rank's share, perhaps a single row. So this rank
        then takes at least an equal part.
        """
        rows = self.sizes.rows(ordinal, left)
        leased = sum(map(len, self._leased))
        if rows and leased < left:
            return rows
        return max(rows, min(self.equal_rows, leased))

    def _next(self, rows: int, most: int) -> list[int]:
        """Return the next positions, fewer than `rows` if no more are left for this rank.

        To get them, it leases at most `most` further positions.
        """
        taken: list[int] = []
        while len(taken) < rows and (self._leased or self._lease_more(most - len(taken))):
            shard = self._leased.popleft()
            part = shard[: rows - len(taken)]
            taken.extend(part)
            if rest := shard[len(part) :]:
                self._leased.appendleft(rest)
        return taken

    def _lease_more(self, most: int) -> bool:
        shard = self.lease(most)
        if shard is not None:
            self._leased.append(range(*shard))
        return shard is not None
