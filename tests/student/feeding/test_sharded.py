"""The source of a rank: which batches it gives, how far ahead, and what becomes of errors."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.distill_reader.sources import Source, source_of
from edl.errors import BatchError, GenerationSuperseded, UsageError
from edl.scheduler.shard_plan import Shard as Part
from edl.student.feeding import DirectReader, ShardedSource, source_for
from edl.student.feeding.sharded import DEFAULT_AHEAD
from edl.tests.ground.programs import wait_for
from edl.tests.student.feeding.ranks import (
    Equal,
    OnBoard,
    Rank,
    batched,
    positions_of,
    publish,
    save,
    settings_of,
    step,
    trained_of,
    world_of,
)


def epoch_of(ranks: list[Rank], epoch: int, rng: random.Random) -> list[list[int]]:
    """Train an epoch while ranks read ahead at random; the positions of each step."""
    for rank in ranks:
        rank.begin()
    steps: list[list[int]] = []
    for _ in range(1000):
        for rank in ranks:
            while len(rank.read) < 2 and rng.random() < 0.5:
                rank.read_one()
        rows = [int(position) for positions in step(ranks, epoch) for position in positions]
        if not rows:
            return steps
        steps.append(rows)
    raise AssertionError("the epoch does not end")


def together(steps: list[list[int]]) -> list[int]:
    return [position for rows in steps for position in rows]


def test_each_step_is_full_however_far_one_rank_reads_ahead(rng: random.Random) -> None:
    for _ in range(60):
        total, world = rng.randint(2, 24), rng.randint(2, 4)
        samples, shard_rows = rng.randint(1, 200), rng.choice([None, rng.randint(1, 40)])
        settings = settings_of(total_batch=total, shard_rows=shard_rows)
        feed = batched(samples, total)
        ranks = world_of(MemoryBoard(), feed, settings, generation=1, world=world)
        for rank in ranks:
            rank.begin()
        for _ in range(60):
            ranks[-1].read_one()  # all that it gets, before the others have any
        sizes = [sum(map(len, step(ranks, 0))) for _ in range(samples // total + 2)]
        assert sizes == [*[total] * (samples // total), samples % total, 0][: len(sizes)]
        for rank in ranks:
            rank.end()


@pytest.mark.parametrize("deal", ["dynamic", "static"])
def test_epochs_of_any_size_end_with_each_position_once(deal: Any, rng: random.Random) -> None:
    for _ in range(50):  # of each deal
        samples, batch, world = rng.randint(1, 90), rng.randint(1, 24), rng.randint(1, 6)
        told = f"{samples} samples, batch {batch}, {world} ranks"
        shard_rows = rng.choice([None, rng.randint(1, 11)])
        settings = settings_of(batch, deal=deal, shard_rows=shard_rows)
        board = MemoryBoard()
        ranks = world_of(board, batched(samples, 8), settings, generation=1, world=world)
        for epoch in range(2):
            steps = epoch_of(ranks, epoch, rng)
            assert sorted(together(steps)) == list(range(samples)), told
            assert all(len(rows) <= batch for rows in steps), told
            if deal == "static":
                assert [len(rows) for rows in steps[:-1]] == [batch] * (len(steps) - 1), told
                assert together(steps) == list(range(samples)), told
        for number, rank in enumerate(ranks):
            rank.begin()  # which tells the board of what was done last
            assert number not in unfinished(board), f"{told}: a shard is not done"
            rank.end()


def unfinished(board: MemoryBoard) -> set[int]:
    """Ranks that have leased what they have not done."""
    return set(board._of("job", sign=False).held.values())


def test_an_unfinished_shard_of_a_dead_rank_is_done_again_and_no_other(rng: random.Random) -> None:
    settings = settings_of(8, shard_rows=6)
    board, feed = MemoryBoard(), batched(60, 8)
    ranks = world_of(board, feed, settings, generation=1, world=2)
    for rank in ranks:
        rank.begin()
    trained: list[int] = []
    for _ in range(3):
        trained += [int(p) for positions in step(ranks, 0) for p in positions]
    saved = save(ranks, None)
    ranks[1].read_one()  # leased, read, and not trained when it dies
    unfinished = [int(p) for p in ranks[1].read[0]]
    assert sorted(trained) == list(trained_of(saved, 0).numbers())
    (alone,) = world_of(board, feed, settings, generation=2, world=1, saved=saved)
    again = together(epoch_of([alone], 0, rng))
    assert set(unfinished) < set(again)
    assert sorted(trained + again) == list(range(60))
    with pytest.raises(GenerationSuperseded):  # it was not dead, and goes on
        epoch_of([ranks[1]], 0, rng)
    for rank in (*ranks, alone):
        rank.end()


def test_batches_are_those_of_the_feed_in_its_order() -> None:
    feed = batched(50, 8)
    (rank,) = world_of(MemoryBoard(), feed, settings_of(seed=3), generation=1, world=1)
    plain = source_of(feed, Part(), 3)
    for epoch in range(2):
        reading = plain.begin(epoch, 0, None)
        for mine in rank.reader:
            numbers, squares, positions = mine
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


def test_positions_of_ranks_name_the_same_samples() -> None:
    samples: dict[int, int] = {}
    for world in (1, 3):
        ranks = world_of(
            MemoryBoard(), batched(40, 6), settings_of(seed=9), generation=1, world=world
        )
        for rank in ranks:
            rank.begin()
        while True:
            batches = [next(rank.batches, None) for rank in ranks]
            if not any(batch is not None for batch in batches):
                break
            for rank, batch in zip(ranks, batches, strict=True):
                if batch is not None:
                    numbers, _, positions = batch
                    for position, number in zip(positions, numbers[:, 0], strict=True):
                        assert samples.setdefault(int(position), int(number)) == int(number)
                    rank.source.trained(0, positions)
        for rank in ranks:
            rank.end()
    assert sorted(samples) == sorted(samples.values()) == list(range(40))
    assert samples != {number: number for number in range(40)}  # it was shuffled


@dataclass
class Line:
    """A line to a board that never has anything, or fails."""

    fails: Exception | None = None
    asked: list[str] = field(default_factory=list)

    def fill(self, epoch: int, shards: Iterable[tuple[int, int]]) -> None:
        self.asked.append("fill")

    def lease(self, epoch: int, most: int) -> tuple[int, int] | None:
        self.asked.append("lease")
        if self.fails is not None:
            raise self.fails
        return None

    def done(self, epoch: int, start: int, stop: int) -> None:
        self.asked.append("done")


def of_line(line: Any, sizes: Any, samples: int = 40, **options: Any) -> ShardedSource:
    source = source_for(
        batched(samples, 4),
        settings=settings_of(4, **options),
        rank=0,
        world=1,
        link=line,
        sizes=sizes,
        saved=None,
    )
    assert isinstance(source, ShardedSource)
    return source


def test_an_epoch_of_which_nothing_is_left_is_empty() -> None:
    source = of_line(Line(), Equal(4, 0, 1))
    reader = DirectReader(source)
    assert list(reader) == list(reader) == []
    reader.close()


def test_what_the_board_says_is_raised_where_batches_are_taken() -> None:
    source = of_line(Line(GenerationSuperseded("another world")), Equal(4, 0, 1))
    with pytest.raises(GenerationSuperseded, match="another world"):
        next(iter(DirectReader(source)))
    source.close()


def test_a_static_deal_asks_nobody() -> None:
    line = Line()
    source = of_line(line, None, deal="static")
    read = []
    for batch in (reader := DirectReader(source)):
        read += positions_of(batch).tolist()
        source.trained(0, positions_of(batch))
    assert read == list(range(40))
    assert line.asked == []
    reader.close()


@dataclass
class Falling:
    """Sizes that fall to 0 at once."""

    sizes: tuple[int, ...]

    def rows(self, ordinal: int, left: int) -> int:
        return self.sizes[ordinal] if ordinal < len(self.sizes) else 0


def test_a_rank_whose_share_ends_trains_what_it_has_leased() -> None:
    board = MemoryBoard()
    publish(board, 1)
    source = of_line(OnBoard(board, 1, 0), Falling((2, 2)), samples=30, shard_rows=7)
    sizes, trained = [], []
    for batch in (reader := DirectReader(source)):
        sizes.append(len(positions_of(batch)))
        trained += positions_of(batch).tolist()
        source.trained(0, positions_of(batch))
    assert sizes[:2] == [2, 2]
    assert trained == list(range(7))
    iter(reader)  # the next epoch begins
    assert not unfinished(board)
    reader.close()


def test_it_reads_no_further_than_allowed_until_steps_are_taken() -> None:
    board = MemoryBoard()
    publish(board, 1)
    source = of_line(OnBoard(board, 1, 0), Equal(4, 0, 1), samples=400, shard_rows=4)
    read: list[Any] = []

    def take() -> None:
        read.extend(DirectReader(source))

    reading = threading.Thread(target=take)
    reading.start()
    try:
        wait_for(lambda: source._tally.ahead == DEFAULT_AHEAD)
    finally:
        source.stop()
        reading.join(10)
    assert not reading.is_alive()
    assert len(read) == DEFAULT_AHEAD
    source.close()


def test_it_is_a_source_that_a_reader_takes_as_it_is() -> None:
    source = of_line(Line(), Equal(4, 0, 1))
    assert isinstance(source, Source)
    assert source_of(source, Part(), 0) is source
    with pytest.raises(UsageError, match="leave world_size away"):
        source_of(source, Part(0, 2), 0)
    with pytest.raises(UsageError, match="checkpoints"):
        source.begin(0, 3, None)
    with pytest.raises(TypeError):
        len(source)
    source.close()


def test_a_field_of_our_name_is_refused() -> None:
    from edl.student.feeding.positions import with_positions

    positions = np.arange(2)
    with pytest.raises(BatchError, match="edl_positions"):
        with_positions({"edl_positions": 1}, positions)
    x = np.zeros(2)
    assert with_positions({"x": x}, positions)["edl_positions"] is positions
    assert with_positions([{"x": x}], positions)[0]["edl_positions"] is positions
    assert with_positions(x, positions) == (x, positions)
    assert with_positions([x], positions) == [x, positions]
