"""The loaders of Paddle and PyTorch, their forked workers, their samplers; torchdata's states."""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import numpy as np
import paddle
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from edl.distill_reader.sources import ResumableSource, source_of
from edl.distill_reader.sources.iterables import PlainSource, StatefulSource
from edl.distill_reader.sources.map_style import MapSource
from edl.distill_reader.sources.source import freeze_garbage_in_forks
from edl.runtime.errors import UsageError
from edl.scheduler.students.shards import RankShard
from edl.tests.distill_reader.readers import Samples
from edl.tests.waiting import DEADLINE_S

EXPECTED_WARNINGS = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata calls it
    pytest.mark.filterwarnings("ignore:This process"),  # that has threads forks
]
pytestmark = [pytest.mark.system, pytest.mark.forks, *EXPECTED_WARNINGS]
# PyTorch ends workers that take long by SIGTERM. Paddle has a handler for that, which allocates
# memory: a worker that was just allocating some waits for itself then, and never ends.
paddle.disable_signal_handler()

SAMPLES, BATCH, EPOCHS = 23, 4, 3
BATCHES = 6


class Rows(Samples, paddle.io.Dataset):  # type: ignore[misc]  # Paddle is not typed
    pass


class TorchStream(torch.utils.data.IterableDataset):  # type: ignore[misc]  # PyTorch is not typed
    def __iter__(self) -> Iterator[Any]:
        return (np.int64(number) for number in range(SAMPLES))


class PaddleStream(paddle.io.IterableDataset):  # type: ignore[misc]  # Paddle is not typed
    __iter__ = TorchStream.__iter__


def paddle_loader(**options: Any) -> Any:
    return paddle.io.DataLoader(Rows(SAMPLES), batch_size=BATCH, shuffle=True, **options)


def torch_loader(**options: Any) -> Any:
    return TorchLoader(Rows(SAMPLES), batch_size=BATCH, shuffle=True, **options)


def seeded_torch() -> Any:
    return torch_loader(generator=torch.Generator().manual_seed(5))


def stateful_loader(**options: Any) -> Any:
    """A new one in the same process begins as in a new one: its orders follow torch's seed."""
    torch.manual_seed(11)
    return StatefulDataLoader(Rows(SAMPLES), batch_size=BATCH, shuffle=True, **options)


KEPT = {"num_workers": 2, "persistent_workers": True}
LOADERS: dict[str, Callable[[], Any]] = {
    "paddle": paddle_loader,
    "paddle, workers": partial(paddle_loader, num_workers=2),
    "paddle, kept workers": partial(paddle_loader, **KEPT),
    "torch": torch_loader,
    "torch, own generator": seeded_torch,
    "torch, workers": partial(torch_loader, num_workers=2),
    "torch, kept workers": partial(torch_loader, **KEPT),
    "torchdata": stateful_loader,
    "torchdata, workers": partial(stateful_loader, num_workers=2),
    "torchdata, kept workers": partial(stateful_loader, **KEPT),
}


def distributed(world: int, rank: int) -> Any:
    rows = Rows(SAMPLES)
    sampler = paddle.io.DistributedBatchSampler(rows, BATCH, world, rank, shuffle=True)
    return paddle.io.DataLoader(rows, batch_sampler=sampler)


def ids_of(batch: Any) -> list[int]:
    x, ids = (np.asarray(field) for field in batch)
    np.testing.assert_array_equal(x[:, 0], ids)
    return [int(i) for i in ids]


def json_of(mark: Any) -> Any:
    return json.loads(json.dumps(mark))


def read(reading: Any, most: int = BATCHES + 1) -> tuple[list[list[int]], Any]:
    """Up to `most` batches of an epoch, and the mark behind them, or behind all of it."""
    batches, mark = [], reading.start
    for _ in range(most):
        try:
            batch = next(reading)
        except StopIteration:
            mark = reading.end()
            break
        batches.append(ids_of(batch))
        mark = reading.mark([np.asarray(field) for field in batch])
    reading.close()
    return batches, json_of(mark)


@pytest.fixture
def source() -> Iterator[Callable[[Any], ResumableSource]]:
    """Makes sources, and closes them."""
    made: list[ResumableSource] = []

    def make(given: Any, shard: RankShard | None = None, rank: int = 0) -> ResumableSource:
        made.append(source_of(given, shard or RankShard(), 0, rank))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("name", LOADERS)
def test_resuming_yields_the_remaining_batches(
    name: str, source: Callable[[Any], ResumableSource]
) -> None:
    whole, marks = [], []
    first = source(LOADERS[name]())
    for epoch in range(EPOCHS):
        batches, mark = read(first.begin(epoch, 0, None))
        assert sorted(i for batch in batches for i in batch) == list(range(SAMPLES))
        whole.append(batches)
        marks.append(mark)
    assert whole[0] != whole[1]
    assert read(first.begin(0, 0, None))[0] == whole[0], "back to the beginning"
    again = source(LOADERS[name]())
    had, mark = read(again.begin(0, 0, None), most=2)
    assert read(again.begin(1, 0, None))[0] == whole[1], "an epoch that was left spoils no other"
    resumed = source(LOADERS[name]())
    rest, _ = read(resumed.begin(0, 2, mark))
    assert had + rest == whole[0]
    following, _ = read(resumed.begin(1, 0, None))
    assert following == whole[1]
    later = source(LOADERS[name]())
    assert read(later.begin(2, 0, marks[1]))[0] == whole[2], "from the end of the epoch before"


@pytest.mark.parametrize("name", ["paddle, workers", "torch, workers", "torch, own generator"])
def test_the_users_own_loader_stays_as_it_was(
    name: str, source: Callable[[Any], ResumableSource]
) -> None:
    loader = LOADERS[name]()
    sampler, generator = loader.batch_sampler, getattr(loader, "generator", None)
    before = generator and generator.get_state()
    read(source(loader).begin(0, 0, None), most=2)
    assert loader.batch_sampler is sampler
    assert generator is None or torch.equal(generator.get_state(), before)
    assert sum(len(ids_of(batch)) for batch in loader) == SAMPLES


def test_loaders_without_ids_are_plain(source: Callable[..., ResumableSource]) -> None:
    """If they keep their workers, the next epoch can be read, too."""

    class Own(TorchLoader):  # type: ignore[misc]  # PyTorch is not typed
        """Of a user, who may do more with batches than a loader does."""

    for given in (
        paddle.io.DataLoader(PaddleStream(), batch_size=BATCH, **KEPT),
        TorchLoader(TorchStream(), batch_size=BATCH, **KEPT),
        TorchLoader(Rows(SAMPLES), batch_size=None),
        Own(Rows(SAMPLES), batch_size=BATCH, **KEPT),
    ):
        made = source(given)
        assert type(made) is PlainSource
        for epoch in range(2):
            reading = made.begin(epoch, 0, None)
            assert len(list(iter(reading.__next__, None))) >= BATCHES
            reading.close()
    assert type(source_of(stateful_loader(), RankShard(), 0)) is StatefulSource


class Lengthless(torch.utils.data.Sampler):  # type: ignore[misc]  # PyTorch is not typed
    def __iter__(self) -> Iterator[int]:
        return iter(range(SAMPLES))


def test_loaders_without_ids_are_told_the_epoch_too(
    source: Callable[[Any], ResumableSource],
) -> None:
    """Otherwise a `DistributedSampler` repeats its first order."""
    parts: list[Any] = [TorchStream(), Rows(SAMPLES), Lengthless()]
    told: list[list[int]] = [[], [], []]
    for part, epochs in zip(parts, told, strict=True):
        part.set_epoch = epochs.append
    stream, rows, sampler = parts
    source(TorchLoader(stream, batch_size=BATCH)).begin(3, 0, None).close()
    made = source(TorchLoader(rows, batch_size=BATCH, sampler=sampler))
    assert type(made) is PlainSource, "its sampler has no length"
    assert len(read(made.begin(3, 0, None))[0]) == BATCHES
    assert told == [[3], [3], [3]]


class FirstComesLate(Rows):
    """The first row waits until the second of two workers has begun its second batch."""

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        self._begun = torch.multiprocessing.Event()

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if index == 3 * BATCH:
            self._begun.set()
        elif index == 0:
            assert self._begun.wait(DEADLINE_S), "only one worker works"
        return super().__getitem__(index)


def test_batches_come_in_the_order_of_their_ids_even_if_a_loader_keeps_none(
    source: Callable[[Any], ResumableSource],
) -> None:
    """A number of batches would not say which ones were delivered."""
    loader = TorchLoader(FirstComesLate(), batch_size=BATCH, num_workers=2, in_order=False)
    batches, _ = read(source(loader).begin(0, 0, None))
    assert [i for batch in batches for i in batch] == list(range(SAMPLES))


class Drawn(Rows):
    """Samples with a random number of their worker."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return np.full(1, np.random.randint(2**31)), np.int64(index)


@pytest.mark.parametrize("make", [TorchLoader, paddle.io.DataLoader])
def test_random_numbers_of_workers_follow_from_the_epoch_and_the_rank(
    make: Callable[..., Any], source: Callable[..., ResumableSource]
) -> None:
    """Also if the loader has its own generator; equal ones would augment all ranks alike."""
    rows, options = Drawn(SAMPLES), {"num_workers": 1}
    own = {"generator": torch.Generator()} if make is TorchLoader else {}
    loader = make(rows, **options, **own)

    def number(loader: Any, epoch: int = 0, *ranks: Any) -> int:
        reading = source(loader, *ranks).begin(epoch, 0, None)
        try:
            return int(np.asarray(next(reading)[0]).flat[0])
        finally:
            reading.close()

    second = number(loader, 0, RankShard(1, 2))
    assert second != number(loader, 0, RankShard(0, 2)) == number(loader) != number(loader, 1)
    assert second == number(loader, 0, None, 1), "the loader is the share of rank 1"
    sampler = paddle.io.DistributedBatchSampler(rows, BATCH, 2, 1)
    assert second == number(make(rows, batch_sampler=sampler, **options))


class FirstWaits(Rows):
    """The first row that any worker reads waits until it is let go."""

    def __init__(self) -> None:
        super().__init__(SAMPLES)
        self.let_go = torch.multiprocessing.Event()
        self.is_read = torch.multiprocessing.Event()

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        if not self.is_read.is_set():
            self.is_read.set()
            assert self.let_go.wait(DEADLINE_S)
        return super().__getitem__(index)


def in_thread(work: Callable[[], Any]) -> Future[Any]:
    """Work in a thread of its own: a worker forked in a pool's thread would end with an error."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run).start()
    return future


@pytest.mark.parametrize("make", [TorchLoader, paddle.io.DataLoader])
def test_an_epoch_may_begin_while_the_last_one_still_waits_for_kept_workers(
    make: Callable[..., Any], source: Callable[[Any], ResumableSource]
) -> None:
    rows, everything = FirstWaits(), list(range(SAMPLES))
    made = source(make(rows, batch_size=BATCH, num_workers=1, persistent_workers=True))
    left = made.begin(0, 0, None)
    waiting = in_thread(lambda: next(left))
    assert rows.is_read.wait(DEADLINE_S), "a worker of the first epoch is the one that waits"
    try:
        following = in_thread(lambda: read(made.begin(1, 0, None))[0])
        assert [i for batch in following.result(DEADLINE_S) for i in batch] == everything
    finally:
        rows.let_go.set()
    assert ids_of(waiting.result(DEADLINE_S)) == everything[:BATCH]
    left.close()
    for epoch in (2, 3):
        batches, _ = read(made.begin(epoch, 0, None))
        assert [i for batch in batches for i in batch] == everything


def test_a_distributed_sampler_is_told_the_epoch_and_keeps_its_part() -> None:
    parts = [source_of(distributed(2, rank), RankShard(rank, 2), 0) for rank in (0, 1)]
    assert all(isinstance(part, MapSource) and not part.divides_ids for part in parts)
    for epoch in (0, 1):
        ids = [i for part in parts for b in read(part.begin(epoch, 0, None))[0] for i in b]
        assert set(ids) == set(range(SAMPLES))
    orders = [read(parts[0].begin(epoch, 0, None))[0] for epoch in (0, 1, 0)]
    assert orders[0] == orders[2] != orders[1]


def test_a_distributed_sampler_of_another_group_is_refused() -> None:
    with pytest.raises(UsageError, match="sampler is for rank 0 of 2, the reader for rank 1 of 2"):
        source_of(distributed(2, 0), RankShard(1, 2), 0)
    sampler = torch.utils.data.DistributedSampler(Rows(SAMPLES), num_replicas=3, rank=1)
    loader = TorchLoader(Rows(SAMPLES), batch_size=BATCH, sampler=sampler)
    with pytest.raises(UsageError, match="sampler is for rank 1 of 3, the reader for rank 0 of 2"):
        source_of(loader, RankShard(0, 2), 0)


class Noted:
    """In a cycle with itself; notes the process that tears it down."""

    def __init__(self, note: Callable[[int], None]) -> None:
        self._note = note
        self.me = self

    def __del__(self) -> None:
        self._note(os.getpid())


def in_child(body: Callable[[], bool]) -> bool:
    """Whether `body` was true in a forked child, which ends then."""
    pid = os.fork()
    if pid == 0:  # pragma: no cover
        os._exit(0 if body() else 1)
    end = os.pidfd_open(pid)
    try:
        assert select.select([end], [], [], DEADLINE_S)[0], "the child hangs"
    finally:
        os.close(end)
    return os.waitpid(pid, 0)[1] == 0


def test_a_child_collects_its_own_garbage_and_none_that_it_inherited() -> None:
    freeze_garbage_in_forks()
    gc.collect()
    inherited: list[int] = []
    Noted(inherited.append)

    def collects_its_own() -> bool:
        own: list[int] = []
        Noted(own.append)
        gc.collect()
        return own == [os.getpid()] and not inherited and gc.isenabled()

    assert in_child(collects_its_own)
    gc.disable()
    try:
        assert in_child(lambda: not gc.isenabled())
        assert not gc.isenabled()
    finally:
        gc.enable()
    gc.collect()
    assert inherited == [os.getpid()]


FORKS_AT_THE_SAME_TIME = """
import gc, os, threading

nested = []

def fork() -> None:
    pid = os.fork()
    if pid == 0:
        os._exit(0 if gc.isenabled() else 1)
    assert os.waitpid(pid, 0)[1] == 0, "a child has no collector"

def before() -> None:
    if not nested:
        nested.append(threading.Thread(target=fork))
        nested[0].start()
        nested[0].join()

os.register_at_fork(before=before)
from edl.distill_reader.sources.source import freeze_garbage_in_forks
freeze_garbage_in_forks()  # its handler before a fork runs first
fork()
assert nested and gc.isenabled(), "the parent has no collector"
"""


def test_threads_that_fork_at_the_same_time_keep_the_collector() -> None:
    subprocess.run([sys.executable, "-P", "-c", FORKS_AT_THE_SAME_TIME], check=True)
