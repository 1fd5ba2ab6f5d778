"""The source of a rank: its batches, shares that change, how far it reads ahead, and errors."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.distill_reader.sources import Source
from edl.distill_reader.sources import source_of as reader_source
from edl.errors import BatchError, GenerationSuperseded, UsageError
from edl.proto.arena import Array
from edl.scheduler.shard_plan import Shard as Part
from edl.scheduler.students.proportion import Proportion, equal_rows
from edl.student.feeding import DirectReader, ShardedSource
from edl.student.feeding.positions import with_positions
from edl.student.feeding.sharded import DEFAULT_AHEAD
from edl.student.rank.shares import Shares
from edl.tests.student.feeding.ranks import (
    BoardLink,
    batched,
    positions_of,
    publish,
    settings_of,
    source_of,
    step,
    world_of,
)
from edl.tests.waiting import wait_until

MOST_STEPS = 10_000


class UnevenWorld:
    """Ranks that agree on shares as their loops do, and read ahead at random."""

    def __init__(self, rng: random.Random, shard_rows: int) -> None:
        world = rng.randint(2, 4)
        self.rng, self.step = rng, 0
        self.total, self.samples = rng.randint(world, 40), rng.randint(1, 200)
        self.row_s = [rng.choice((0.01, 0.02, 0.05)) for _ in range(world)]
        self.shares = [Shares(Proportion.equal(self.total, world), rank) for rank in range(world)]
        self.ranks = world_of(
            MemoryBoard(),
            batched(self.samples, self.total),
            settings_of(total_batch=self.total, shard_rows=shard_rows),
            world=world,
            sizes=self.shares,
        )

    def epoch(self, number: int) -> list[list[int]]:
        """The positions of each step."""
        for shares, rank in zip(self.shares, self.ranks, strict=True):
            shares.begin(self.step)
            rank.begin()
        steps: list[list[int]] = []
        for _ in range(MOST_STEPS):
            for rank in self.ranks:  # within the promise: beyond it, reading would wait for us
                while not rank.ended and len(rank.read) < self.rng.randint(1, 6):
                    rank.read_one()
            free_from = max(shares.promise(self.step) for shares in self.shares) + 1
            taken = step(self.ranks, number)
            if not any(map(len, taken)):
                return steps
            steps.append([int(position) for positions in taken for position in positions])
            for shares in self.shares:
                shares.told(shares.proportion.told(self.step, self._times(taken), free_from))
            self.step += 1
        raise AssertionError("the epoch does not end")

    def _times(self, taken: list[Array]) -> list[float]:
        return [s if len(rows) else 0.0 for s, rows in zip(self.row_s, taken, strict=True)]

    def end(self) -> None:
        for rank in self.ranks:
            rank.end()


@pytest.mark.parametrize("shard_rows", [1, 30])
def test_steps_stay_full_while_shares_change(rng: random.Random, shard_rows: int) -> None:
    """With shards of one row no rank holds a rest: only an epoch's last step is not full."""
    changes = 0
    for _ in range(8):
        world = UnevenWorld(rng, shard_rows)
        full = [
            min(world.total, world.samples - begin)
            for begin in range(0, world.samples, world.total)
        ]
        for epoch in range(3):
            steps = world.epoch(epoch)
            assert sorted(itertools.chain(*steps)) == list(range(world.samples))
            assert max(map(len, steps)) <= world.total
            assert shard_rows > 1 or [len(rows) for rows in steps] == full
        agreed = world.shares[0].proportion.changes[-1].rows
        changes += agreed != equal_rows(world.total, len(agreed))
        world.end()
    assert changes


def test_batches_are_those_of_the_feed_in_its_order() -> None:
    feed = batched(50, 8)
    (rank,) = world_of(MemoryBoard(), feed, settings_of(seed=3))
    plain = reader_source(feed, Part(), 3)
    for epoch in range(2):
        reading = plain.begin(epoch, 0, None)
        for numbers, squares, positions in rank.reader:
            expected = next(reading)
            assert numbers.dtype == expected[0].dtype
            assert np.array_equal(numbers, expected[0])
            assert np.array_equal(squares, expected[1])
            assert positions.dtype == np.int64
            rank.source.trained(epoch, positions)
        with pytest.raises(StopIteration):
            next(reading)
        reading.close()
    rank.end()


def test_positions_name_the_same_samples_in_every_world() -> None:
    samples: dict[int, int] = {}
    for world in (1, 3):
        ranks = world_of(MemoryBoard(), batched(40, 6), settings_of(seed=9), world=world)
        for rank in ranks:
            rank.begin()
        while any(batches := [next(rank.batches, ()) for rank in ranks]):
            for rank, batch in zip(ranks, batches, strict=True):
                if batch:
                    numbers, _, positions = batch
                    for position, number in zip(positions, numbers[:, 0], strict=True):
                        assert samples.setdefault(int(position), int(number)) == int(number)
                    rank.source.trained(0, positions)
        for rank in ranks:
            rank.end()
    assert sorted(samples) == sorted(samples.values()) == list(range(40))
    assert samples != {number: number for number in range(40)}  # it was shuffled


@dataclass
class EmptyLink:
    """Connects to a board that never has a shard, or fails."""

    fails: Exception | None = None
    calls: list[str] = field(default_factory=list)

    def fill(self, epoch: int, shards: Iterable[tuple[int, int]]) -> None:
        self.calls.append("fill")

    def lease(self, epoch: int, most: int) -> tuple[int, int] | None:
        self.calls.append("lease")
        if self.fails is not None:
            raise self.fails
        return None

    def done(self, epoch: int, start: int, stop: int) -> None:
        self.calls.append("done")


def linked(link: Any, sizes: Any = None, samples: int = 40, **options: Any) -> ShardedSource:
    source = source_of(batched(samples, 4), settings_of(4, **options), link=link, sizes=sizes)
    assert isinstance(source, ShardedSource)
    return source


def test_an_epoch_of_which_nothing_is_left_is_empty() -> None:
    reader = DirectReader(linked(EmptyLink()))
    assert list(reader) == list(reader) == []
    reader.close()


def test_errors_of_the_board_are_raised_where_batches_are_taken() -> None:
    source = linked(EmptyLink(GenerationSuperseded("another world")))
    with pytest.raises(GenerationSuperseded, match="another world"):
        next(iter(DirectReader(source)))
    source.close()


def test_a_static_deal_asks_no_board() -> None:
    link = EmptyLink()
    source = linked(link, deal="static")
    read = []
    for batch in (reader := DirectReader(source)):
        read += positions_of(batch).tolist()
        source.trained(0, positions_of(batch))
    assert read == list(range(40))
    assert link.calls == []
    reader.close()


class FallingSizes:
    """Two rows each for two batches, then none."""

    def rows(self, ordinal: int, left: int) -> int:
        return 2 if ordinal < 2 else 0


def test_a_rank_whose_share_ends_trains_what_it_has_leased() -> None:
    publish(board := MemoryBoard(), 1)
    link = BoardLink(board, 1, 0)
    source = linked(link, FallingSizes(), samples=30, shard_rows=7)
    sizes, trained = [], []
    for batch in (reader := DirectReader(source)):
        sizes.append(len(positions_of(batch)))
        trained += positions_of(batch).tolist()
        source.trained(0, positions_of(batch))
    assert sizes[:2] == [2, 2]
    assert trained == list(range(7))
    iter(reader)  # the next epoch begins
    assert not link.held
    reader.close()


def test_it_reads_no_further_ahead_than_allowed() -> None:
    publish(board := MemoryBoard(), 1)
    source = linked(BoardLink(board, 1, 0), samples=400, shard_rows=4)
    read: list[Any] = []
    reading = threading.Thread(target=lambda: read.extend(DirectReader(source)))
    reading.start()
    try:
        wait_until(lambda: len(read) >= DEFAULT_AHEAD)
    finally:
        source.stop()
        reading.join(10)
    assert not reading.is_alive()
    assert len(read) == DEFAULT_AHEAD
    source.close()


def test_a_reader_takes_it_as_its_source() -> None:
    source = linked(EmptyLink())
    assert isinstance(source, Source)
    assert reader_source(source, Part(), 0) is source
    with pytest.raises(UsageError, match="leave world_size away"):
        reader_source(source, Part(0, 2), 0)
    with pytest.raises(UsageError, match="checkpoints"):
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
