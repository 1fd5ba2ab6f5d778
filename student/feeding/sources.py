"""The choice of a rank's source and reader, which depends on the job's feed and on teachers.

`UnshardedSource` is for feeds whose samples ranks cannot share by position: each rank of a fixed
world reads a part, and remembers its position there. `DirectReader` is for jobs without teachers.
`sharded.py` has the source for all other feeds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from ...distill_reader.sources import source_of
from ...distill_reader.sources.batched import Batched
from ...distill_reader.sources.source import Mark, ResumableSource, SourceIterator
from ...distill_reader.structure import take_apart
from ...proto.arena import Array
from ...runtime.errors import UsageError
from ...scheduler.students.shards import RankShard, rows_of_rank
from ..job.distill import Distill
from ..job.spec import is_dataset
from ..link import RankLink
from ..settings import TrainSettings
from .positions import (
    BoardLeases,
    PositionLeases,
    SampleOrder,
    StaticLeases,
    check_fits,
    reason_not_shardable,
    trained_positions,
)
from .sharded import ShardedSource, Sizes

if TYPE_CHECKING:
    from ...distill_reader.reader import DistilReader

_END: Final = object()


def source_for(
    feed: Any,
    *,
    settings: TrainSettings,
    rank: int,
    world: int,
    link: RankLink,
    sizes: Sizes,
    saved: Mapping[str, Any] | None,
) -> ShardedSource | UnshardedSource:
    """Return the source of one rank in one generation.

    Args:
        feed: result of `feed("train")` of the job: batches, or a map-style data set, which is
            shuffled and cut into batches of `total_batch` rows.
        settings: settings of the job.
        rank: number of the rank.
        world: number of ranks of the generation.
        link: leases shards through the supervisor; unused if `settings.deal` is "static".
        sizes: sizes of this rank's batches; unused if `settings.deal` is "static".
        saved: the feed's part of the checkpoint (`merge_states`); None: there is none.

    Raises:
        UsageError: the feed cannot be divided among this many ranks, the checkpoint does not fit
            the feed, or the batch size is unknown.
    """
    order = sample_order(feed, settings, rank)
    if order is None:
        check_fits(saved, UnshardedSource.kind, None, world)
        state = None if saved is None else saved["ranks"][rank]
        return UnshardedSource(feed, seed=settings.seed, rank=rank, world=world, saved=state)
    check_fits(saved, ShardedSource.kind, order.identity(), world)
    total_batch = order.total_batch
    leases: PositionLeases = BoardLeases(link, world, total_batch, settings.shard_rows)
    if settings.deal == "static":
        leases = sizes = StaticLeases(total_batch, rank, world)
    return ShardedSource(
        order,
        leases=leases,
        sizes=sizes,
        trained=trained_positions(saved),
        total_batch=total_batch,
        equal_rows=rows_of_rank(total_batch, rank, world),
    )


def sample_order(feed: Any, settings: TrainSettings, rank: int = 0) -> SampleOrder | None:
    """Return the order of a feed's samples; None if ranks cannot share them by position.

    Raises:
        UsageError: the batch size is unknown, or the feed does not fit the settings, for example
            because ranks may come and go.
    """
    if is_dataset(feed):
        if settings.total_batch is None:
            raise UsageError(
                f"feed('train') gave a data set, a {type(feed).__name__}, which has no batch"
                " size: give --total-batch ROWS, or have it return Batched(dataset, batch_size)"
            )
        feed = Batched(feed, settings.total_batch, shuffle=True)
    if not (reason := reason_not_shardable(feed)):
        return SampleOrder(feed, settings.seed, settings.total_batch, rank)
    least, most = settings.nodes
    if least != most:
        raise UsageError(f"--nodes {least}:{most} lets ranks come and go, but {reason}")
    if settings.total_batch is not None:
        raise UsageError(f"--total-batch changes the feed's batches, but {reason}")
    return None


def steps_of(
    settings: TrainSettings, total_batch: int | None, positions: Callable[[int], int | None]
) -> int | None:
    """Return the optimizer steps of the whole job, estimated; None: unknown.

    Args:
        settings: settings of the job.
        total_batch: rows of one step, of all ranks together; None: unknown.
        positions: returns the number of positions of an epoch, or None.
    """
    known = [] if settings.steps is None else [settings.steps]
    if settings.epochs is not None and total_batch is not None:
        count = positions(0)
        if count is not None:
            known.append(settings.epochs * -(-count // total_batch))
    return min(known, default=None)


def make_reader(
    source: ShardedSource | UnshardedSource,
    distill: Distill | None,
    settings: TrainSettings,
    *,
    rank: int,
    epoch: int = 0,
) -> DistilReader | DirectReader:
    """Return the reader of the training loop: a `DistilReader` if the job needs teachers.

    Args:
        source: source of this rank.
        distill: how the job distils; None: it does not.
        settings: settings of the job.
        rank: number of this rank.
        epoch: number of the first epoch.

    Raises:
        UsageError: no teachers are given, or the settings of the reader are invalid.
    """
    if distill is None or not distill.needs_labels:
        return DirectReader(source, epoch)
    from ...distill_reader.reader import DistilReader

    if settings.coordinator is None and not settings.teachers:
        raise UsageError(
            f"the job asks the service {distill.service!r} for soft labels, but there is no"
            " address of its teachers: give --redis redis://HOST:6379, or --teachers HOST:PORT,..."
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


class DirectReader:
    """Iterates a source in the training loop's thread, for jobs without teachers.

    Apart from the missing soft labels, the batches are bit-identical to those of a `DistilReader`.
    Each iteration is the next epoch.

    Args:
        source: source of this rank.
        epoch: number of the first epoch.
    """

    def __init__(self, source: ResumableSource, epoch: int = 0) -> None:
        self._source = source
        self._epoch = epoch
        self._mark: Any = None

    def __iter__(self) -> Iterator[Any]:
        """Begin the next epoch at once, and return its batches."""
        iterator = self._source.begin(self._epoch, 0, self._mark)
        self._epoch += 1
        self._mark = None
        return self._batches(iterator)

    def _batches(self, iterator: Any) -> Iterator[Any]:
        with closing(iterator):
            while (batch := next(iterator, _END)) is not _END:
                iterator.mark(take_apart(batch).arrays)
                yield batch
            self._mark = iterator.end()

    def close(self) -> None:
        """Close the source."""
        self._source.close()


class UnshardedSource:
    """The source of one rank of a fixed world; a `ResumableSource` of the reader.

    An iterable divides its batches among ranks itself, by `shard(rank, world_size)`. Ranks take the
    batches of a list in turn. The position after each batch is kept until the batch is trained. So
    a checkpoint has the position after the last trained batch, even if the rank has read ahead.

    Args:
        feed: an iterable of batches, a list of batches, or a loader that `SampleOrder` cannot use,
            for example because its sampler divides samples itself.
        seed: seed of the order of samples, if the feed shuffles.
        rank: number of this rank.
        world: number of ranks.
        saved: `state()` of this rank in the checkpoint; None: start at the beginning.

    Attributes:
        has_positions: False: batches carry no positions.
        total_batch: None: the feed decides.

    Raises:
        UsageError: the feed can be iterated only once, or cannot be divided among the ranks.
    """

    kind = "unsharded"
    divides_ids = False
    has_positions = False
    total_batch: int | None = None

    def __init__(
        self, feed: Any, *, seed: int, rank: int, world: int, saved: Mapping[str, Any] | None
    ) -> None:
        self._source: ResumableSource = source_of(feed, RankShard(rank, world), seed)
        self._saved = saved
        self._position: dict[str, Any] = dict(saved or {"epoch": 0, "batches": 0, "mark": None})
        self._marks: deque[Mark] = deque()  # of the batches that are read and not trained
        self._end: tuple[Mark | None] | None = None  # mark after the epoch, once it is all read

    # --- the training loop's side

    def positions(self, epoch: int) -> int | None:
        """Return None: the number of samples is unknown."""
        return None

    def trained(self, epoch: int, positions: Array) -> None:
        """Record that a step trained the next batch."""
        if self._marks:
            self._position = {
                "epoch": epoch,
                "batches": self._position["batches"] + 1,
                "mark": self._marks.popleft(),
            }

    def sample_ids(self, epoch: int, positions: Sequence[int]) -> list[Any]:
        """Return []: samples have no ids."""
        return []

    def state(self) -> dict[str, Any]:
        """Return the position after the last trained batch, as JSON values."""
        position = self._position
        if self._end is not None and not self._marks:
            position = {"epoch": position["epoch"] + 1, "batches": 0, "mark": self._end[0]}
        return {"kind": self.kind, **position}

    def stop(self) -> None:
        """Do nothing: this source does not wait for the training."""

    # --- the reader's side

    def __len__(self) -> int:
        return len(self._source)

    def identity(self) -> dict[str, Any]:
        return {"of": self._source.kind, **self._source.identity()}

    def begin(self, epoch: int, taken: int, mark: Mark | None) -> SourceIterator:
        if taken:
            raise UsageError("a rank's position is restored from its checkpoint, not by its reader")
        self._marks.clear()
        self._end = None
        saved, self._saved = self._saved, None
        # When the checkpoint was saved, this rank had finished the epoch, other ranks had not.
        if saved is not None and saved["epoch"] > epoch:
            self._saved, self._end = saved, (saved["mark"],)
            self._position = {"epoch": epoch, "batches": saved["batches"], "mark": None}
            return _EmptyIterator()
        if saved is not None and saved["epoch"] == epoch:
            taken, mark = saved["batches"], saved["mark"]
        iterator = self._source.begin(epoch, taken, mark)
        mark = iterator.start if mark is None else mark
        self._position = {"epoch": epoch, "batches": taken, "mark": mark}
        return _RecordedIterator(iterator, self._marks.append, self._on_end)

    def close(self) -> None:
        self._source.close()

    def _on_end(self, mark: Mark | None) -> None:
        self._end = (mark,)


class _RecordedIterator:
    """Wraps an iterator, and reports its marks and its end.

    Args:
        iterator: the iterator.
        on_mark: called with the position after each batch.
        on_end: called with the position after the epoch.
    """

    def __init__(
        self,
        iterator: SourceIterator,
        on_mark: Callable[[Mark], None],
        on_end: Callable[[Mark | None], None],
    ) -> None:
        self._iterator = iterator
        self._on_mark, self._on_end = on_mark, on_end
        self.start = iterator.start

    def __next__(self) -> Any:
        return next(self._iterator)

    def mark(self, arrays: Sequence[Array]) -> Mark:
        mark = self._iterator.mark(arrays)
        self._on_mark(mark)
        return mark

    def end(self) -> Mark | None:
        end = self._iterator.end()
        self._on_end(end)
        return end

    def close(self) -> None:
        self._iterator.close()


class _EmptyIterator:
    """An iterator without batches, for an epoch that this rank has finished."""

    start = None

    def __next__(self) -> Any:
        raise StopIteration

    def mark(self, arrays: Sequence[Array]) -> Mark:
        return {}

    def end(self) -> None:
        return None

    def close(self) -> None:
        pass
