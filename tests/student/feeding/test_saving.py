"""The state of a feed in a checkpoint; checkpoints and feeds that are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.distill_reader import Batched
from edl.errors import UsageError
from edl.student.feeding import (
    DirectReader,
    ShardedSource,
    UnshardedSource,
    check_feed,
    merged,
    restored,
)
from edl.tests.student.feeding.ranks import (
    Numbers,
    batched,
    save,
    settings_of,
    source_of,
    step,
    world_of,
)

NOTHING = np.zeros(0, np.int64)


class Plain:
    """An iterable of batches that knows nothing of where it stands."""

    def __init__(self, batches: int = 6) -> None:
        self.batches = batches
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.batches):
            yield (np.full((2, 3), 100 * self.epoch + number, np.float32),)


class Divided(Plain):
    """One that divides itself."""

    def shard(self, rank: int, world_size: int) -> Any:
        return [batch for number, batch in enumerate(self) if number % world_size == rank]


class Stateful(Plain):
    """One that knows where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.place = 0

    def __iter__(self) -> Iterator[Any]:
        while self.place < self.batches:
            self.place += 1
            yield (np.full((2, 3), 100 * self.epoch + self.place - 1, np.float32),)
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
        (Plain(), 0, "of kind 'sharded', and .* is of kind 'unsharded' now"),
    ],
)
def test_a_checkpoint_of_another_feed_is_refused(feed: Any, seed: int, why: str) -> None:
    (rank,) = world_of(MemoryBoard(), batched(50, 8), settings_of())
    rank.begin()
    for _ in range(3):
        step([rank], 0)
    saved = save([rank], None)
    rank.end()
    with pytest.raises(UsageError, match=why):
        list(DirectReader(source_of(feed, settings_of(seed=seed), saved=saved)))


@pytest.mark.parametrize("feed", [Plain(), Stateful(), list(Plain())])
@pytest.mark.parametrize("after", [0, 2, 6, 9, 12])
def test_a_feed_without_ids_continues_after_the_trained_batches(feed: Any, after: int) -> None:
    def run(saved: dict[str, Any] | None, epoch: int, count: int) -> tuple[list[float], Any, int]:
        mine = source_of(feed, saved=saved)
        assert isinstance(mine, UnshardedSource)
        reader = DirectReader(mine, epoch)
        seen: list[float] = []
        while len(seen) < count:
            batches = iter(reader)
            for batch in batches:
                seen.append(float(batch[0][0, 0]))
                mine.trained(epoch, NOTHING)
                if len(seen) == count:
                    break
            else:
                epoch += 1
                continue
            next(batches, None)  # read ahead, and not trained
            break
        state = json.loads(json.dumps(merged([mine.state()], None)))
        reader.close()
        return seen, state, epoch

    whole, _, _ = run(None, 0, 18)
    if isinstance(feed, Stateful):
        feed.place = 0
    first, saved, epoch = run(None, 0, after)
    if isinstance(feed, Stateful):
        feed.place = 0
    rest, _, _ = run(saved, epoch, 18 - after)
    assert first + rest == whole
    assert restored(saved) == {}


def test_a_rank_that_finished_the_epoch_gets_no_more_of_it() -> None:
    feed = Plain()
    mine = source_of(feed)
    for _ in DirectReader(mine):
        mine.trained(0, NOTHING)
    saved = merged([mine.state()], None)
    again = source_of(feed, saved=saved)
    reader = DirectReader(again, 0)  # others go on in epoch 0
    assert list(reader) == []
    assert merged([again.state()], None) == saved
    assert [float(batch[0][0, 0]) for batch in reader] == [100.0 + n for n in range(6)]
    reader.close()


def test_ranks_of_a_fixed_world_get_parts_of_a_divisible_feed() -> None:
    feed, fixed = Divided(), settings_of(nodes=(2, 2))
    parts = []
    for rank in range(2):
        mine = source_of(feed, fixed, rank=rank, world=2)
        parts.append([float(batch[0][0, 0]) for batch in DirectReader(mine)])
    assert parts == [[0, 2, 4], [1, 3, 5]]
    with pytest.raises(UsageError, match="cannot be divided among 2 ranks"):
        source_of(Plain(), fixed, rank=0, world=2)
    saved = merged([source_of(feed).state()], None)
    with pytest.raises(UsageError, match="of 1 ranks and this world has 2"):
        source_of(feed, fixed, saved=saved, world=2)


@pytest.mark.parametrize("feed", [Plain(), Stateful(), Divided(), list(Plain())])
def test_a_feed_without_ids_needs_a_fixed_number_of_nodes(feed: Any) -> None:
    with pytest.raises(UsageError, match=r"--nodes 1:4 .*Batched\(dataset, batch_size\)") as error:
        check_feed(feed, settings_of(nodes=(1, 4)))
    assert "--nodes 2:2" in str(error.value)
    with pytest.raises(UsageError, match="--total-batch"):
        check_feed(feed, settings_of(32))
    check_feed(feed, settings_of(nodes=(4, 4)))
    check_feed(batched(9, 2), settings_of(32, nodes=(1, 4)))


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


def test_a_sampler_that_divides_by_itself_is_refused_for_worlds_that_change() -> None:
    feed = Batched(Numbers(10), 2)
    feed.batch_sampler.nranks = 2  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="divides the samples itself"):
        check_feed(feed, settings_of(nodes=(1, 2)))
