"""The source of a rank: its batches, shares that change, how far it reads ahead, and errors."""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.distill_reader import Batched
from edl.distill_reader.sources import ResumableSource
from edl.distill_reader.sources import source_of as reader_source
from edl.proto.arena import Array
from edl.runtime.errors import BatchError, UsageError
from edl.scheduler.students.agreement import RowShares, equal_rows
from edl.scheduler.students.shards import RankShard
from edl.student.feeding import (
    DirectReader,
    ShardedSource,
    UnshardedSource,
    merge_states,
    sample_order,
)
from edl.student.feeding.positions import trained_positions
from edl.student.feeding.sharded import MOST_AHEAD
from edl.student.job.batches import with_positions
from edl.student.rank.prefetcher import Shares
from edl.tests.student.feeding.ranks import (
    Numbers,
    batched,
    board_link,
    positions_of,
    save,
    settings_of,
    source_of,
    step,
    world_of,
)
from edl.tests.waiting import DEADLINE_S, wait_until

MOST_STEPS = 10_000


class UnevenWorld:
    """Ranks that agree on shares as their loops do; `row_s`: seconds that each takes for a row."""

    def __init__(self, total: int, samples: int, shard_rows: int, row_s: Sequence[float]) -> None:
        world = len(row_s)
        self.total, self.samples, self.row_s = total, samples, row_s
        self.step = 0
        self.shares = [Shares(RowShares.equal(self.total, world), rank) for rank in range(world)]
        self.ranks = world_of(
            JobBoard(MemoryStore()),
            batched(self.samples, self.total),
            settings_of(total_batch=self.total, shard_rows=shard_rows),
            world=world,
            sizes=self.shares,
        )

    def epoch(self, number: int, ahead: Callable[[], int] = lambda: 1) -> list[list[list[int]]]:
        """The positions of each rank in each step; `ahead`: batches that it has read by then."""
        for shares, rank in zip(self.shares, self.ranks, strict=True):
            shares.begin(self.step)
            rank.begin()
        steps: list[list[list[int]]] = []
        for _ in range(MOST_STEPS):
            for rank in self.ranks:  # within the promise: beyond it, reading would wait for us
                while not rank.ended and len(rank.read) < ahead():
                    rank.read_one()
            free_from = max(shares.promise(self.step) for shares in self.shares) + 1
            taken = step(self.ranks, number)
            if not any(map(len, taken)):
                return steps
            steps.append([positions.tolist() for positions in taken])
            times = [s if len(rows) else 0.0 for s, rows in zip(self.row_s, taken, strict=True)]
            for shares in self.shares:
                shares.set_shares(shares.proportion.after_step(self.step, times, free_from))
            self.step += 1
        raise AssertionError("the epoch does not end")

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


@pytest.mark.parametrize("shard_rows", [1, 30])
def test_steps_stay_full_while_shares_change(rng: random.Random, shard_rows: int) -> None:
    """With shards of one row no rank holds a rest: only an epoch's last step is not full."""
    changes = 0
    for _ in range(8):
        row_s = [rng.choice((0.01, 0.02, 0.05)) for _ in range(rng.randint(2, 4))]
        world = UnevenWorld(rng.randint(len(row_s), 40), rng.randint(1, 200), shard_rows, row_s)
        begins = range(0, world.samples, world.total)
        full = [min(world.total, world.samples - begin) for begin in begins]
        for epoch in range(3):
            ranks = world.epoch(epoch, lambda: rng.randint(1, 6))
            steps = [list(itertools.chain(*of_ranks)) for of_ranks in ranks]
            assert sorted(itertools.chain(*steps)) == list(range(world.samples))
            assert max(map(len, steps)) <= world.total
            assert shard_rows > 1 or [len(rows) for rows in steps] == full
        agreed = world.shares[0].proportion.changes[-1].rows
        changes += agreed != equal_rows(world.total, len(agreed))
        world.end()
    assert changes


def linked(link: Any, sizes: Any = None, samples: int = 40, **options: Any) -> ShardedSource:
    source = source_of(batched(samples, 4), settings_of(4, **options), link=link, sizes=sizes)
    assert isinstance(source, ShardedSource)
    return source


def test_an_epoch_does_not_end_in_single_rows_where_a_share_has_fallen() -> None:
    """What a rank alone holds is trained in equal parts of a step, not in its share."""
    world = UnevenWorld(100, 2000, 250, [1.0, 0.01])  # rank 0 is a hundred times slower
    rows = [tuple(map(len, of_ranks)) for of_ranks in world.epoch(0)]
    assert world.shares[0].proportion == world.shares[1].proportion
    assert (1, 99) in rows
    assert sum(map(sum, rows)) == 2000
    assert sum(of_step < 50 for of_step in map(sum, rows)) <= 2  # where rank 1's end, and the last
    world.end()


def test_a_rank_whose_share_ends_trains_what_it_has_leased() -> None:
    sizes = Mock(rows=lambda ordinal, left: 2 if ordinal < 2 else 0)
    source = linked(link := board_link(), sizes, samples=30, shard_rows=7)
    trained = []
    for batch in (reader := DirectReader(source)):
        trained.append(positions_of(batch).tolist())
        source.trained(0, positions_of(batch))
    assert trained[:2] == [[0, 1], [2, 3]]
    assert list(itertools.chain(*trained)) == list(range(7))
    assert link.leased == [(0, 7)]
    reader.close()


def test_it_reads_no_further_ahead_than_allowed() -> None:
    source = linked(board_link(), samples=400, shard_rows=4)
    read: list[Any] = []
    reading = threading.Thread(target=lambda: read.extend(DirectReader(source)))
    reading.start()
    try:
        wait_until(lambda: len(read) >= MOST_AHEAD)
    finally:
        source.stop()
        reading.join(DEADLINE_S)
    assert not reading.is_alive()
    assert len(read) == MOST_AHEAD
    source.close()


def test_a_reader_takes_it_as_its_source() -> None:
    source = linked(Mock())
    assert isinstance(source, ResumableSource)
    assert reader_source(source, RankShard(), 0) is source
    with pytest.raises(UsageError, match="omit world_size"):
        reader_source(source, RankShard(0, 2), 0)
    with pytest.raises(UsageError, match="their checkpoint has the trained positions"):
        source.begin(0, 3, None)
    with pytest.raises(TypeError):
        len(source)
    source.close()


def test_a_batch_may_not_have_a_field_of_the_positions_name() -> None:
    positions, x = np.arange(2), np.zeros(2)
    with pytest.raises(BatchError, match="edl_positions"):
        with_positions({"edl_positions": 1}, positions)
    assert with_positions({"x": x}, positions)["edl_positions"] is positions
    assert with_positions([{"x": x}], positions)[0]["edl_positions"] is positions
    assert with_positions(x, positions) == (x, positions)
    assert with_positions([x], positions) == [x, positions]


class Drawing(Batched):
    """Draws numbers when an epoch begins, as loaders draw the seeds of their workers."""

    drawn: tuple[float, ...] = ()

    def batches_of(self, ids: Any) -> Iterator[Any]:
        self.drawn += (np.random.random(),)
        return super().batches_of(ids)


def test_workers_of_each_rank_have_random_numbers_of_their_own() -> None:
    feed, fixed = Drawing(Numbers(8), 4), settings_of(nodes=(2, 2), deal="static")
    for rank in (0, 1, 0, 1):
        list(DirectReader(source_of(feed, fixed, rank=rank, world=2)))
    assert feed.drawn[0] != feed.drawn[1]
    assert feed.drawn[:2] == feed.drawn[2:]


NOTHING = np.zeros(0, np.int64)


class Plain:
    """An iterable of batches that knows nothing of where it stands."""

    batches = 6
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return map(self.batch, range(self.batches))

    def batch(self, number: int) -> tuple[Array]:
        return (np.full((2, 3), 100 * self.epoch + number, np.float32),)


def numbers(batches: Iterable[Any]) -> list[float]:
    return [float(batch[0][0, 0]) for batch in batches]


class Divided(Plain):
    def shard(self, rank: int, world_size: int) -> Any:
        return list(self)[rank::world_size]


class Stateful(Plain):
    place = 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.batches:
            self.place += 1
            yield self.batch(self.place - 1)
        self.place = 0

    def state_dict(self) -> dict[str, Any]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


@pytest.mark.parametrize(
    ("feed", "seed", "why"),
    [
        (batched(50, 8), 5, "seed was 0 and is 5"),
        (batched(20, 8), 0, "samples was 50 and is 20"),
        (batched(51, 8), 0, "samples was 50 and is 51"),
        (Plain(), 0, "of kind 'sharded', but .* is of kind 'unsharded' now"),
    ],
)
def test_a_checkpoint_of_another_feed_is_refused(feed: Any, seed: int, why: str) -> None:
    (rank,) = world_of(JobBoard(MemoryStore()), batched(50, 8), settings_of())
    rank.begin()
    for _ in range(3):
        step([rank], 0)
    saved = save([rank], None)
    rank.end()
    with pytest.raises(UsageError, match=why):
        list(DirectReader(source_of(feed, settings_of(seed=seed), saved=saved)))


@pytest.mark.parametrize("made", [Plain, Stateful, lambda: list(Plain())])
@pytest.mark.parametrize("after", [0, 2, 6, 9, 12])
def test_a_feed_without_ids_continues_after_the_trained_batches(
    made: Callable[[], Any], after: int
) -> None:
    def run(saved: Any, epoch: int, count: int) -> tuple[list[float], Any, int]:
        """The batches that were trained, what is saved, and the epoch."""
        source, trained = source_of(made(), saved=saved), list[float]()
        assert isinstance(source, UnshardedSource)
        reader = DirectReader(source, epoch)
        while True:
            for batch in reader:
                if len(trained) == count:  # this one was read ahead
                    state = json.loads(json.dumps(merge_states([source.state()], None)))
                    reader.close()
                    return trained, state, epoch
                trained += numbers([batch])
                source.trained(epoch, NOTHING)
            epoch += 1

    whole, _, _ = run(None, 0, 18)
    first, saved, epoch = run(None, 0, after)
    rest, _, _ = run(saved, epoch, 18 - after)
    assert first + rest == whole
    assert trained_positions(saved) == {}


def test_a_rank_that_finished_the_epoch_gets_no_more_of_it() -> None:
    feed = Plain()
    mine = source_of(feed)
    for _ in DirectReader(mine):
        mine.trained(0, NOTHING)
    saved = merge_states([mine.state()], None)
    again = source_of(feed, saved=saved)
    reader = DirectReader(again, 0)  # others go on in epoch 0
    assert list(reader) == []
    assert merge_states([again.state()], None) == saved
    assert numbers(reader) == [100.0 + n for n in range(6)]
    reader.close()


def test_ranks_of_a_fixed_world_get_parts_of_a_divisible_feed() -> None:
    feed, fixed = Divided(), settings_of(nodes=(2, 2))
    parts = []
    for rank in range(2):
        mine = source_of(feed, fixed, rank=rank, world=2)
        parts.append(numbers(DirectReader(mine)))
    assert parts == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(UsageError, match="cannot be divided among 2 ranks"):
        source_of(Plain(), fixed, rank=0, world=2)
    saved = merge_states([source_of(feed).state()], None)
    with pytest.raises(UsageError, match="of 1 ranks, but this world has 2"):
        source_of(feed, fixed, saved=saved, world=2)


@pytest.mark.parametrize("feed", [Plain(), Stateful(), Divided(), list(Plain())])
def test_a_feed_without_ids_needs_a_fixed_number_of_nodes(feed: Any) -> None:
    with pytest.raises(UsageError, match=r"--nodes 1:4 .*Batched\(dataset, batch_size\)") as error:
        sample_order(feed, settings_of(nodes=(1, 4)))
    assert "--nodes 2:2" in str(error.value)
    with pytest.raises(UsageError, match="--total-batch"):
        sample_order(feed, settings_of(32))
    sample_order(feed, settings_of(nodes=(4, 4)))
    sample_order(batched(9, 2), settings_of(32, nodes=(1, 4)))
    divides = Batched(Numbers(10), 2)
    divides.batch_sampler.nranks = 2  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="divides samples itself"):
        sample_order(divides, settings_of(nodes=(1, 2)))


def test_a_data_set_needs_a_total_batch() -> None:
    with pytest.raises(UsageError, match=r"--total-batch ROWS"):
        source_of(Numbers(10))
    mine = source_of(Numbers(10), settings_of(4))
    assert isinstance(mine, ShardedSource)
    assert (mine.total_batch, mine.positions(0)) == (4, 10)
    read = []
    for numbers, _, positions in DirectReader(mine):
        read += numbers[:, 0].astype(int).tolist()
        mine.trained(0, positions)
    assert sorted(read) == list(range(10)) != read


def test_a_sampler_without_a_batch_size_needs_a_total_batch() -> None:
    feed = batched(10, 4)
    feed.batch_sampler = [[0, 1], [2]]  # type: ignore[assignment]
    with pytest.raises(UsageError, match="no batch size: give --total-batch ROWS"):
        sample_order(feed, settings_of())
    order = sample_order(feed, settings_of(3))
    assert order is not None
    assert (order.total_batch, order.total(0)) == (3, 3)
