"""Shares that change on the way: steps stay full to the epoch's end, and nothing is left out."""

from __future__ import annotations

import itertools
import random

from edl.coordinator.jobs.memory_board import MemoryBoard
from edl.proto.arena import Array
from edl.scheduler.students.proportion import Proportion, equal_rows
from edl.student.feeding import DirectReader, ShardedSource, source_for
from edl.student.rank.shares import Shares
from edl.tests.student.feeding.ranks import OnBoard, Rank, batched, publish, settings_of, step

FOREVER = 10_000


class Uneven:
    """A world whose ranks agree on shares as their loops do; who reads ahead is drawn."""

    def __init__(
        self, rng: random.Random, total: int, samples: int, row_s: list[float], shard_rows: int
    ) -> None:
        self.rng, self.row_s, self.step = rng, row_s, 0
        board, world = MemoryBoard(), len(row_s)
        publish(board, 1)
        feed = batched(samples, total)
        settings = settings_of(total_batch=total, shard_rows=shard_rows)
        self.shares = [Shares(Proportion.equal(total, world), rank) for rank in range(world)]
        self.ranks: list[Rank] = []
        for number, sizes in enumerate(self.shares):
            source = source_for(
                feed,
                settings=settings,
                rank=number,
                world=world,
                link=OnBoard(board, 1, number),
                sizes=sizes,
                saved=None,
            )
            assert isinstance(source, ShardedSource)
            self.ranks.append(Rank(source, DirectReader(source)))

    def epoch(self, number: int) -> list[list[int]]:
        """The positions of each step."""
        for shares, rank in zip(self.shares, self.ranks, strict=True):
            shares.begin(self.step)
            rank.begin()
        steps: list[list[int]] = []
        for _ in range(FOREVER):
            for rank in self.ranks:  # no further than was promised: who waits would wait for us
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


def drawn(rng: random.Random, shard_rows: int) -> tuple[Uneven, int, int]:
    world = rng.randint(2, 4)
    total, samples = rng.randint(world, 40), rng.randint(1, 600)
    row_s = [rng.choice((0.01, 0.02, 0.05)) for _ in range(world)]
    return Uneven(rng, total, samples, row_s, shard_rows), total, samples


def test_each_step_is_full_while_shares_change(rng: random.Random) -> None:
    """Of shards of one row nobody holds a rest: but for an epoch's last step all are full."""
    changes = 0
    for _ in range(30):
        world, total, samples = drawn(rng, shard_rows=1)
        for epoch in range(3):
            steps = world.epoch(epoch)
            assert sorted(itertools.chain(*steps)) == list(range(samples))
            assert [len(rows) for rows in steps] == [
                min(total, samples - begin) for begin in range(0, samples, total)
            ]
        agreed = world.shares[0].proportion.changes[-1].rows
        changes += agreed != equal_rows(total, len(agreed))
        world.end()
    assert changes


def test_the_rest_of_a_shard_is_trained_by_who_holds_it(rng: random.Random) -> None:
    for _ in range(30):
        world, total, samples = drawn(rng, shard_rows=rng.randint(2, 60))
        for epoch in range(3):
            steps = world.epoch(epoch)
            assert sorted(itertools.chain(*steps)) == list(range(samples))
            assert max(map(len, steps)) <= total
        world.end()
