"""Ranks over a feed without processes: they read, train what a test says, die, and save."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from edl.coordinator.jobs import JobBoard
from edl.coordinator.store.memory_store import MemoryStore
from edl.distill_reader import Batched
from edl.proto.arena import Array
from edl.scheduler.students.shards import rows_of_rank
from edl.student.feeding import DirectReader, ShardedSource, merge_states, source_for
from edl.student.job.batches import POSITIONS
from edl.student.link import RankLink, ShardServer
from edl.student.messages import Ask
from edl.student.settings import TrainSettings
from edl.tests.stores import of_job

JOB = "job"


class Numbers:
    """A map-style data set whose samples are (number, number squared)."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, number: int) -> tuple[Array, np.int64]:
        return np.full(3, number, np.float32), np.int64(number * number)


def settings_of(total_batch: int | None = None, **more: Any) -> TrainSettings:
    if more.get("nodes", (1, 1))[1] > 1:
        more |= {"coordinator": "redis://127.0.0.1:1", "checkpoint": "/checkpoints"}
    return TrainSettings("/job.py", JOB, total_batch=total_batch, epochs=1, **more)


@dataclass
class BoardLink(RankLink):
    """Connects one rank to a job board, as its supervisor does; `leased`: what it has had."""

    board: JobBoard
    generation: int
    rank: int
    leased: list[tuple[int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.server = ShardServer(self.board, JOB, self.generation, local=False)

    def fill(self, epoch: int, shards: Iterable[tuple[int, int]]) -> None:
        self.board.fill(JOB, self.generation, epoch, list(shards))

    def lease(self, epoch: int, most: int = 0) -> tuple[int, int] | None:
        ask = Ask(0, "lease", epoch, most=most)
        shard: tuple[int, int] | None = self.server.answer(self.rank, ask, lambda: True)
        if shard is not None:
            self.leased.append(shard)
        return shard


@dataclass
class Equal:
    total: int
    rank: int
    world: int

    def rows(self, ordinal: int, left: int) -> int:
        return rows_of_rank(min(self.total, left), self.rank, self.world)


@dataclass
class Rank:
    """One rank: reads ahead as a test says, and trains what it has read in order."""

    source: ShardedSource
    reader: DirectReader
    link: BoardLink
    read: deque[Array] = field(default_factory=deque)
    ended: bool = False

    def begin(self) -> None:
        self.batches = iter(self.reader)
        self.ended = False
        self.read.clear()

    def read_one(self) -> None:
        if not self.ended:
            batch = next(self.batches, None)
            if batch is None:
                self.ended = True
            else:
                self.read.append(positions_of(batch))

    def take(self) -> Array:
        """Positions of the next batch; none where the epoch is over for it."""
        if not self.read:
            self.read_one()
        return self.read.popleft() if self.read else np.zeros(0, np.int64)

    def end(self) -> None:
        self.source.stop()
        self.reader.close()


def positions_of(batch: Any) -> Array:
    found: Array = batch[POSITIONS] if isinstance(batch, dict) else batch[-1]
    return found


def publish(board: JobBoard, generation: int) -> None:
    if generation == 1:
        board.join(JOB, "node", {}, 3600.0)
    assert board.lead(JOB, "node", 3600.0)
    assert board.publish(JOB, of_job(board, JOB, "node"), generation, {})


def board_link(rank: int = 0) -> BoardLink:
    """To a board of its own."""
    publish(board := JobBoard(MemoryStore()), 1)
    return BoardLink(board, 1, rank)


def source_of(
    feed: Any,
    settings: TrainSettings | None = None,
    *,
    rank: int = 0,
    world: int = 1,
    link: Any = None,
    sizes: Any = None,
    saved: Any = None,
) -> Any:
    """The source of a rank; without a link it has a board of its own."""
    settings = settings or settings_of()
    link = link or board_link(rank)
    sampler = getattr(feed, "batch_sampler", None)
    batch: Any = settings.total_batch or getattr(sampler, "batch_size", 4)
    sizes = sizes or Equal(batch, rank, world)
    return source_for(
        feed, settings=settings, rank=rank, world=world, link=link, sizes=sizes, saved=saved
    )


def world_of(
    board: JobBoard,
    feed: Any,
    settings: TrainSettings,
    *,
    generation: int = 1,
    world: int = 1,
    saved: dict[str, Any] | None = None,
    epoch: int = 0,
    sizes: Sequence[Any] = (),
) -> list[Rank]:
    """The ranks of a generation that goes on where a checkpoint says."""
    publish(board, generation)
    ranks = []
    for rank in range(world):
        link = BoardLink(board, generation, rank)
        size = sizes[rank] if sizes else None
        source = source_of(
            feed, settings, rank=rank, world=world, link=link, sizes=size, saved=saved
        )
        ranks.append(Rank(source, DirectReader(source, epoch), link))
    return ranks


def save(ranks: list[Rank], base: dict[str, Any] | None) -> dict[str, Any]:
    return merge_states([rank.source.state() for rank in ranks], base)


def step(ranks: list[Rank], epoch: int) -> list[Array]:
    """One step of all ranks; the positions of each."""
    taken = [rank.take() for rank in ranks]
    for rank, positions in zip(ranks, taken, strict=True):
        rank.source.trained(epoch, positions)
    return taken


def batched(samples: int, batch: int, *, shuffle: bool = True, drop_last: bool = False) -> Batched:
    return Batched(Numbers(samples), batch, shuffle=shuffle, drop_last=drop_last)
