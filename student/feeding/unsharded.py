"""Feeds whose samples have no ids: each rank of a fixed world reads a part, and knows where."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from ...distill_reader.sources import source_of
from ...distill_reader.sources.source import Mark, ResumableSource, SourceIterator
from ...errors import UsageError
from ...proto.arena import Array
from ...scheduler.students.shards import RankShard


class UnshardedSource:
    """The source of one rank of a world that stays as it is; see `ResumableSource` of the reader.

    What ranks have of it is the feed's own affair (`shard(rank, world_size)`), or its batches in
    turns where it is a list of them. It remembers where it stood behind each batch until that is
    trained: so a checkpoint says where this rank goes on, whatever was read ahead.

    Args:
        feed: an iterable of batches; a list of them; a loader whose sampler divides by itself.
        seed: of the order, where it has one.
        rank: whose part it is.
        world: ranks.
        saved: `state()` of this rank in the checkpoint; None: from the beginning.

    Attributes:
        has_positions: False: batches carry none.
        total_batch: None: batches are as the feed makes them.

    Raises:
        UsageError: it cannot be iterated again, or not be divided among so many ranks.
    """

    kind = "unsharded"
    deals = False
    has_positions = False
    total_batch: int | None = None

    def __init__(
        self, feed: Any, *, seed: int, rank: int, world: int, saved: Mapping[str, Any] | None
    ) -> None:
        self._source: ResumableSource = source_of(feed, RankShard(rank, world), seed)
        self._saved = saved
        self._at: dict[str, Any] = dict(saved or {"epoch": 0, "batches": 0, "mark": None})
        self._marks: deque[Mark] = deque()
        self._end: tuple[Mark | None] | None = None  # once the epoch was read to its end

    # --- the training loop's side

    def positions(self, epoch: int) -> int | None:
        """None: how many samples an epoch has is not known."""
        return None

    def trained(self, epoch: int, positions: Array) -> None:
        """A step has trained a batch; once for each batch, in their order."""
        if self._marks:
            self._at = {
                "epoch": epoch,
                "batches": self._at["batches"] + 1,
                "mark": self._marks.popleft(),
            }

    def sample_ids(self, epoch: int, positions: Sequence[int]) -> list[Any]:
        """Samples have no ids."""
        return []

    def state(self) -> dict[str, Any]:
        """Where this rank goes on, behind what was trained, as JSON values."""
        at = self._at
        if self._end is not None and not self._marks:
            at = {"epoch": at["epoch"] + 1, "batches": 0, "mark": self._end[0]}
        return {"kind": self.kind, **at}

    def stop(self) -> None:
        """Nothing of it waits."""

    # --- the reader's side

    def __len__(self) -> int:
        return len(self._source)

    def identity(self) -> dict[str, Any]:
        return {"of": self._source.kind, **self._source.identity()}

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> SourceIterator:
        if taken:
            raise UsageError("where a rank goes on stands in the checkpoint, not in its reader")
        self._marks.clear()
        self._end = None
        saved, self._saved = self._saved, None
        if saved is not None and saved["epoch"] > epoch:  # it had ended this epoch, others had not
            self._saved, self._end = saved, (saved["mark"],)
            self._at = {"epoch": epoch, "batches": saved["batches"], "mark": None}
            return _Nothing()
        if saved is not None and saved["epoch"] == epoch:
            taken, mark = saved["batches"], saved["mark"]
        self._at = {"epoch": epoch, "batches": taken, "mark": mark}
        return _Remembering(self, self._source.begin(epoch, taken, mark))

    def close(self) -> None:
        self._source.close()


class _Remembering:
    """A reading whose marks the source keeps until their batches are trained."""

    def __init__(self, source: UnshardedSource, reading: SourceIterator) -> None:
        self._source = source
        self._reading = reading
        self.start = reading.start
        if source._at["mark"] is None:
            source._at = {**source._at, "mark": reading.start}

    def __next__(self) -> Any:
        return next(self._reading)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        mark = self._reading.mark(arrays)
        self._source._marks.append(mark)
        return mark

    def end(self) -> Mark | None:
        end = self._reading.end()
        self._source._end = (end,)
        return end

    def close(self) -> None:
        self._reading.close()


class _Nothing:
    """What there is of an epoch that was trained before."""

    start = None

    def __next__(self) -> Any:
        raise StopIteration

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return {}

    def end(self) -> None:
        return None

    def close(self) -> None:
        pass
