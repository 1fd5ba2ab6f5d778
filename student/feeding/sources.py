"""Which source and reader a rank has: by what its job's feed can do, and whether it distils.

`UnshardedSource` is of feeds whose samples have no ids: each rank of a fixed world reads a part,
and knows where. `DirectReader` is for jobs that ask no teacher. `sharded.py` has the other source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...distill_reader.sources.batched import Batched
from ...runtime.errors import UsageError
from ...scheduler.students.shards import rows_of_rank
from ..job.distill import Distill
from ..job.spec import is_dataset
from ..settings import TrainSettings
from .positions import (
    BoardLeases,
    Ordered,
    PositionLeases,
    ShardBoard,
    StaticLeases,
    check_fits,
    restored,
    why_not,
)
from .sharded import ShardedSource, Sizes

if TYPE_CHECKING:
    from ...distill_reader.reader import DistilReader
from collections import deque
from collections.abc import Iterator, Sequence

from ...distill_reader.sources import source_of
from ...distill_reader.sources.source import Mark, ResumableSource, SourceIterator
from ...distill_reader.structure import take_apart
from ...proto.arena import Array
from ...scheduler.students.shards import RankShard


def source_for(
    feed: Any,
    *,
    settings: TrainSettings,
    rank: int,
    world: int,
    link: ShardBoard,
    sizes: Sizes,
    saved: Mapping[str, Any] | None,
) -> ShardedSource | UnshardedSource:
    """The source of one rank of one generation.

    Args:
        feed: what `feed("train")` of the job gave: batches, or a map-style data set, of which
            batches of `total_batch` are made, in another order in each epoch.
        settings: of the job.
        rank: whose it is.
        world: ranks of the generation.
        link: where shards are leased; not asked where `settings.deal` is "static".
        sizes: of this rank's batches; not asked either then.
        saved: the feed's part of the checkpoint (`saving.merged`); None: there is none.

    Raises:
        UsageError: the feed cannot be divided among so many ranks, the checkpoint is of another
            one, or nothing says how large a batch is.
    """
    ordered = ordered_of(feed, settings)
    if ordered is None:
        check_fits(saved, UnshardedSource.kind, None, world)
        mine = None if saved is None else saved["ranks"][rank]
        return UnshardedSource(feed, seed=settings.seed, rank=rank, world=world, saved=mine)
    check_fits(saved, ShardedSource.kind, ordered.identity(), world)
    total_batch = settings.total_batch or ordered.batch_size
    if total_batch is None:
        raise UsageError("nothing says how large a batch is: give --total-batch ROWS")
    trained = restored(saved)
    leases: PositionLeases = BoardLeases(link, trained, world, total_batch, settings.shard_rows)
    if settings.deal == "static":
        leases = sizes = StaticLeases(trained, total_batch, rank, world)
    return ShardedSource(
        ordered,
        leases=leases,
        sizes=sizes,
        total_batch=total_batch,
        equal_rows=rows_of_rank(total_batch, rank, world),
    )


def ordered_of(feed: Any, settings: TrainSettings) -> Ordered | None:
    """The order of a feed's samples; None: they have no ids.

    Raises:
        UsageError: as `source_for` does.
    """
    check_feed(feed, settings)
    feed = _batches_of(feed, settings)
    return None if why_not(feed) else Ordered(feed, settings.seed)


def check_feed(feed: Any, settings: TrainSettings) -> None:
    """Raises UsageError where a feed cannot be what the settings say, before any rank starts."""
    least, most = settings.nodes
    why = why_not(_batches_of(feed, settings))
    if why and least != most:
        raise UsageError(f"--nodes {least}:{most} lets ranks come and go, but {why}")
    if why and settings.total_batch is not None:
        raise UsageError(f"--total-batch cuts batches anew, but {why}")


def make_reader(
    source: ShardedSource | UnshardedSource,
    distill: Distill | None,
    settings: TrainSettings,
    *,
    rank: int,
    epoch: int = 0,
) -> DistilReader | DirectReader:
    """What the training loop iterates: a reader with teachers, or the source where none is asked.

    Args:
        source: of this rank.
        distill: how the job distils; None: it does not.
        settings: of the job.
        rank: number of this rank in its job.
        epoch: number of the first epoch.

    Raises:
        UsageError: settings that cannot work.
    """
    if distill is None or not distill.needs_labels:
        return DirectReader(source, epoch)
    from ...distill_reader.reader import DistilReader

    if settings.coordinator is None and not settings.teachers:
        raise UsageError(
            f"the job asks the service {distill.service!r} for soft labels, and nothing says where"
            " its teachers are: give --redis redis://HOST:6379, or --teachers HOST:PORT,..."
        )
    reader = DistilReader(
        source,
        coordinator=settings.coordinator,
        teachers=settings.teachers,
        job=settings.job,
        rank=rank,
        seed=settings.seed,
        **distill.reader_options(),
    )
    if epoch:
        reader.load_state_dict({**reader.state_dict(), "epoch": epoch})
    return reader


def _batches_of(feed: Any, settings: TrainSettings) -> Any:
    if not is_dataset(feed):
        return feed
    if settings.total_batch is None:
        raise UsageError(
            f"feed('train') gave a data set, a {type(feed).__name__}, which says nothing of"
            " batches: give --total-batch ROWS, or have it return Batched(dataset, batch_size)"
        )
    return Batched(feed, settings.total_batch, shuffle=True)


class DirectReader:
    """Iterates a source in the training loop's own thread: for jobs that ask no teacher.

    Batches are the source's own, equal to the last bit to those that a `DistilReader` over it
    gives; one that is iterated again goes on with the next epoch.

    Args:
        source: of this rank.
        epoch: number of the first epoch.
    """

    def __init__(self, source: ResumableSource, epoch: int = 0) -> None:
        self._source = source
        self._epoch = epoch
        self._mark: Any = None

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epoch; it is begun now."""
        reading = self._source.begin(self._epoch, 0, self._mark)
        self._epoch += 1
        self._mark = None
        return self._batches(reading)

    def _batches(self, reading: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    batch = next(reading)
                except StopIteration:
                    self._mark = reading.end()
                    return
                reading.mark(take_apart(batch).arrays)
                yield batch
        finally:
            reading.close()

    def close(self) -> None:
        """End what the source keeps."""
        self._source.close()


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
