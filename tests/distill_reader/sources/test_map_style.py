"""Map-style sources: the order follows from the seed, and what would spoil that is refused."""

from __future__ import annotations

import copy
import json
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from edl.distill_reader import Batched
from edl.distill_reader.sources import ResumableSource, source_of
from edl.distill_reader.sources.iterables import PlainSource, StatefulSource
from edl.distill_reader.sources.map_style import MapSource
from edl.runtime.errors import UsageError
from edl.scheduler.students.shards import RankShard

SAMPLES = 24


class Rows:
    """Samples that are their numbers; remembers which were read, and what it was told."""

    def __init__(self, samples: int = SAMPLES) -> None:
        self.samples = samples
        self.read: list[int] = []
        self.epochs: list[int] = []

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return np.int64(index)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


def ids(
    source: ResumableSource, epoch: int = 0, taken: int = 0, mark: Any = None
) -> list[list[int]]:
    reading = source.begin(epoch, taken, mark)
    batches = []
    while True:
        try:
            batches.append(next(reading).tolist())
        except StopIteration:
            return batches


def shuffled(
    seed: int = 0,
    shard: RankShard = RankShard(),  # noqa: B008
    data: Rows | None = None,
) -> ResumableSource:
    return source_of(Batched(data or Rows(), 5, shuffle=True), shard, seed)


def test_the_order_follows_from_seed_and_epoch() -> None:
    assert ids(shuffled()) == ids(shuffled())
    assert ids(shuffled(), 1) == ids(shuffled(), 1)
    assert ids(shuffled()) != ids(shuffled(), 1)
    assert ids(shuffled()) != ids(shuffled(seed=1))


def test_only_what_remains_is_loaded() -> None:
    data = Rows()
    source = shuffled(data=data)
    mark = json.loads(json.dumps(source.begin(0, 0, None).start))
    rest = ids(source, 0, 3, mark)
    assert data.read == [i for batch in rest for i in batch]
    assert len(rest) == 2


def test_generators_of_the_process_stay_as_they_were() -> None:
    before = random.getstate(), repr(np.random.get_state())
    ids(shuffled())
    assert (random.getstate(), repr(np.random.get_state())) == before


def test_readers_that_begin_at_the_same_time_disturb_no_order() -> None:
    class ManyDraws(Sampler):
        def __iter__(self) -> Iterator[list[int]]:
            return iter([[np.random.randint(100) for _ in range(50)] for _ in range(4)])

    def orders(_: int) -> list[Any]:
        source = with_sampler(ManyDraws(random.Random(0)))
        return [source.begin(epoch, 0, None).start for epoch in range(100)]

    alone, before, interval = orders(0), repr(np.random.get_state()), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(2) as threads:
            assert list(threads.map(orders, range(2))) == [alone, alone]
    finally:
        sys.setswitchinterval(interval)
    assert repr(np.random.get_state()) == before


class PersistentWorkerLoader:
    """A loader whose workers have read the data set when they began, and are kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.batch_sampler = [[0], [1]]
        self.worker: Any = None

    def read(self, plan: Any) -> Iterator[Any]:
        self.worker = self.worker or copy.deepcopy(self.dataset)
        return (np.array(self.worker.epochs[-1:]) for _ in plan)

    def keep(self, batches: Iterator[Any]) -> bool:
        return True

    def close(self) -> None:
        self.worker = None


def test_workers_that_are_kept_hear_of_the_epoch_too() -> None:
    """Otherwise a resumed run with new workers would see different data."""
    source = MapSource(PersistentWorkerLoader(Rows()), RankShard(), 0)
    assert [ids(source, epoch) for epoch in range(3)] == [[[e], [e]] for e in range(3)]


def test_its_length_is_that_of_the_rank() -> None:
    assert len(shuffled()) == 5
    assert [len(shuffled(shard=RankShard(rank, 2))) for rank in (0, 1)] == [3, 2]
    assert len(shuffled(shard=RankShard(1, 2, "pad"))) == 3


class Sampler:
    """Ids in an order of its own, which no seed of ours reaches."""

    def __init__(self, order: random.Random) -> None:
        self.order = order

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        chosen = list(range(8))
        self.order.shuffle(chosen)
        return iter([chosen[start : start + 2] for start in range(0, 8, 2)])


def with_sampler(sampler: Any, data: Any = None) -> ResumableSource:
    batched = Batched(data or Rows(), 2)
    batched.batch_sampler = sampler
    return source_of(batched, RankShard(), 0)


def test_an_order_that_nobody_can_repeat_is_noticed_on_resume() -> None:
    mark = with_sampler(Sampler(random.Random(1))).begin(2, 0, None).start
    assert len(ids(with_sampler(Sampler(random.Random(1))), 2, 1, mark)) == 3
    with pytest.raises(UsageError, match=r"orders epoch 2 differently.*set_epoch"):
        with_sampler(Sampler(random.Random(2))).begin(2, 1, mark)


def test_a_sampler_without_an_end_is_refused() -> None:
    class Endless(Sampler):
        def __iter__(self) -> Iterator[list[int]]:
            while True:
                yield [0]

    with pytest.raises(UsageError, match="has the length 4, and yields more"):
        with_sampler(Endless(random.Random())).begin(0, 0, None)


def test_ids_may_be_names() -> None:
    source = with_sampler([["a", "b"], ["c"]], {"a": 1, "b": 2, "c": 3})
    assert ids(source) == [[1, 2], [3]]
    assert source.begin(0, 0, None).start is not None


def test_ids_may_be_tuples_of_different_lengths() -> None:
    def source(*ids: Any) -> ResumableSource:
        return with_sampler([list(ids)], {(1,): 1, (1, 2): 2, (1, 3): 3})

    mark = source((1,), (1, 2)).begin(0, 0, None).start
    assert ids(source((1,), (1, 2)), mark=mark) == [[1, 2]]
    with pytest.raises(UsageError, match="orders epoch 0 differently"):
        source((1,), (1, 3)).begin(0, 0, mark)


class Iterable:
    def __iter__(self) -> Iterator[Any]:
        return iter(["batch"])


class Stateful(Iterable):
    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


class Sharded(Iterable):
    def shard(self, *, rank: int, world_size: int) -> Any:
        return [f"{rank} of {world_size}"] if rank else Stateful()


def kind_of(given: Any, shard: RankShard = RankShard()) -> type:  # noqa: B008
    return type(source_of(given, shard, 0))


def test_an_iterable_is_plain_and_one_with_a_state_is_stateful() -> None:
    assert kind_of(Iterable()) is PlainSource
    assert kind_of({"dict": 1}) is PlainSource
    assert kind_of(Stateful()) is StatefulSource
    saves_only = type("SavesOnly", (Iterable,), {"state_dict": Stateful.state_dict})
    assert kind_of(saves_only()) is PlainSource


@pytest.mark.parametrize("given", [Iterable(), Stateful()])
def test_what_has_no_ids_is_not_divided(given: Any) -> None:
    with pytest.raises(UsageError, match=r"cannot be divided among 3 ranks.*shard\(rank"):
        source_of(given, RankShard(1, 3), 0)


def test_an_iterable_that_divides_itself_is_asked_for_its_part() -> None:
    assert kind_of(Sharded(), RankShard(0, 3)) is StatefulSource
    source = source_of(Sharded(), RankShard(1, 3), 0)
    assert next(source.begin(0, 0, None)) == "1 of 3"
    assert kind_of(Sharded()) is PlainSource


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (iter([1]), "only once"),
        (3, "'int' cannot be iterated"),
        (Rows(), "'Rows' cannot be.*DataLoader of it, or Batched"),
        (lambda: iter([1]), "'function' cannot be.*from_batch_generator"),
    ],
)
def test_what_is_no_source_is_told_what_to_be_made_of(given: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        source_of(given, RankShard(), 0)
