"""Which source and reader a rank has: by what its job's feed can do, and whether it distils."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ...distill_reader.sources.batched import Batched
from ...errors import UsageError
from ...scheduler.students.shards import rows_of_rank
from ..job.distill import Distill
from ..job.spec import is_dataset
from ..settings import TrainSettings
from .leases import Board, BoardLeases, Leases, StaticLeases
from .order import Ordered, why_not
from .saving import check_fits, restored
from .sharded import ShardedSource, Sizes
from .unsharded import UnshardedSource

if TYPE_CHECKING:
    from ...distill_reader.reader import DistilReader
from collections.abc import Iterator

from ...distill_reader.sources.source import ResumableSource
from ...distill_reader.structure import take_apart


def source_for(
    feed: Any,
    *,
    settings: TrainSettings,
    rank: int,
    world: int,
    link: Board,
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
    leases: Leases = BoardLeases(link, trained, world, total_batch, settings.shard_rows)
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
            " its teachers are: give --coordinator redis://HOST:6379, or --teachers HOST:PORT,..."
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
