"""`ShardedSource`: the batches of one rank among others that come and go, for a reader."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ...distill_reader.sources.source import Mark, close_iterator, leave_garbage_to_the_parent
from ...errors import UsageError
from ...proto.arena import Array
from .leases import Leases
from .order import Ordered
from .plan import DealtPlan, Sizes
from .positions import with_positions
from .tally import Tally

log = logging.getLogger(__name__)

#: Batches that are read and not trained, at most.
DEFAULT_AHEAD: Final = 64
_EXPLAIN_EVERY_S: Final = 10.0


class ShardedSource:
    """The source of one rank in one generation; see `ResumableSource` of the reader.

    Within an epoch its n-th batch has as many positions of what the leases give as `sizes` says;
    the last one may have fewer. Each batch carries the positions of its rows (`with_positions`).
    It reads ahead of what is trained by at most `ahead` batches.

    Args:
        ordered: the feed.
        leases: where its positions come from.
        sizes: of its batches.
        total_batch: rows of one step of all ranks together.
        equal_rows: rows of one step of this rank if all ranks had equal parts.
        ahead: batches.

    Attributes:
        total_batch: rows of one step of all ranks together.
        has_positions: True: batches carry them.
    """

    kind = "sharded"
    deals = False
    has_positions = True

    def __init__(
        self,
        ordered: Ordered,
        *,
        leases: Leases,
        sizes: Sizes,
        total_batch: int,
        equal_rows: int,
        ahead: int = DEFAULT_AHEAD,
    ) -> None:
        self._ordered = ordered
        self._leases = leases
        self._sizes = sizes
        self._ahead = ahead
        self._tally = Tally(leases.done)
        self._ids: dict[int, Sequence[Any]] = {}  # by epoch
        self._stopped = False
        self.total_batch = total_batch
        self._equal_rows = equal_rows

    # --- the training loop's side

    def positions(self, epoch: int) -> int:
        """How many positions an epoch has: those of all ranks, trained or not."""
        return self._ordered.total(epoch)

    def trained(self, epoch: int, positions: Array) -> None:
        """A step has trained a batch with these positions, int64 [rows]; once for each batch."""
        self._tally.trained(epoch, positions)

    def sample_ids(self, epoch: int, positions: Sequence[int]) -> list[Any]:
        """The ids, in the feed's data set, of the samples at these positions of a read epoch."""
        ids = self._ids[epoch]
        return [ids[position] for position in positions]

    def state(self) -> dict[str, Any]:
        """What this rank has trained in this generation, as JSON values; see `saving.merged`."""
        trained = {str(epoch): ranges.to_json() for epoch, ranges in self._tally.ranges().items()}
        return {"kind": self.kind, "trained": trained, "order": self._ordered.identity()}

    def stop(self) -> None:
        """Give no more batches: called before a reader is closed in the middle of an epoch."""
        self._stopped = True
        self._tally.wake()

    # --- the reader's side

    def __len__(self) -> int:
        raise TypeError("how many batches fall to a rank shows while an epoch is trained")

    def identity(self) -> dict[str, Any]:
        return self._ordered.identity()

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> _ShardedReading:
        if taken or mark is not None:
            raise UsageError(
                "what ranks that come and go have trained stands in checkpoints, as ranges of"
                " positions; a reader's own state says nothing of it"
            )
        leave_garbage_to_the_parent()
        self._tally.begin()
        remaining = self._leases.begin(epoch, self._ordered.total(epoch))
        return _ShardedReading(self, epoch, remaining)

    def close(self) -> None:
        self._ordered.close()

    def _may_go_on(self) -> bool:
        """Wait until this rank has trained enough for another batch; False once stopped."""

        def may() -> bool:
            return self._stopped or self._tally.ahead < self._ahead

        waited_s = 0.0
        while not self._tally.wait(may, _EXPLAIN_EVERY_S):
            waited_s += _EXPLAIN_EVERY_S
            log.info(
                "the source waits for the training loop, %.0f s now: %d batches are read and not"
                " trained",
                waited_s,
                self._tally.ahead,
            )
        return not self._stopped


class _ShardedReading:
    """See `SourceIterator`."""

    start = None

    def __init__(self, source: ShardedSource, epoch: int, remaining: int) -> None:
        self._source = source
        self._ended = False
        self._batches: Iterator[Any] = source._ordered.begin(epoch, self._planned(epoch, remaining))

    def _planned(self, epoch: int, remaining: int) -> Any:
        source = self._source

        def plan_of(ids: Sequence[Any]) -> DealtPlan:
            # The epoch before may still be trained.
            source._ids = {epoch: ids, epoch - 1: source._ids.get(epoch - 1, ())}
            self._plan = DealtPlan(
                epoch,
                ids,
                source._leases,
                source._sizes,
                source._tally,
                remaining,
                source.total_batch,
                source._equal_rows,
            )
            return self._plan

        return plan_of

    def __next__(self) -> Any:
        if not self._source._may_go_on():
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self._ended = True
            if self._plan.error is not None:
                raise self._plan.error from None
            raise
        self._source._tally.handed()
        return with_positions(batch, self._plan.coming.popleft())

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return {}

    def end(self) -> None:
        return None

    def close(self) -> None:
        # Paddle's kept workers do not stand an epoch that was left: others are started then.
        if not (self._ended and self._source._ordered.keeps):
            close_iterator(self._batches)
            self._source._ordered.close()
