"""Laws of resuming and sharding, for random sources, batch sizes, cuts, epochs and world sizes.

What a training loop had before the cut and what it has after the resume are together what it would
have had without; the shards of an epoch are the epoch.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from edl.distill_reader import Batched, DistilReader
from edl.tests.distill_reader.instant_engine import InstantEngine
from edl.tests.distill_reader.readers import Samples

EPOCHS = 3
#: Batches of one epoch, as bytes: equal when every field is.
Batches = list[tuple[bytes, ...]]


@pytest.fixture(autouse=True, scope="module")
def instantly() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edl.distill_reader.pipeline.EngineClient", InstantEngine)
        yield


def batches_of(samples: int, size: int, order: random.Random) -> list[tuple[Any, Any]]:
    ids = list(range(samples))
    order.shuffle(ids)
    chosen = [ids[start : start + size] for start in range(0, samples, size)]
    return [(np.array([[i, i, i] for i in one], np.float32), np.array(one)) for one in chosen]


class Plain:
    """Any iterable, whose order follows from the epoch that it is told."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size, self.epoch = samples, size, -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        return iter(batches_of(self.samples, self.size, random.Random(self.epoch)))


class Stateful:
    """Knows by itself in which order it is and where; a new `iter` is a new order."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size
        self.order, self.at, self.loaded = random.Random(1), 0, False
        self.started = self.order.getstate()

    def __iter__(self) -> Iterator[Any]:
        if not self.loaded:
            self.started, self.at = self.order.getstate(), 0
        self.loaded = False
        self.order.setstate(self.started)
        return self.rest(batches_of(self.samples, self.size, self.order))

    def rest(self, batches: list[Any]) -> Iterator[Any]:
        while self.at < len(batches):
            self.at += 1
            yield batches[self.at - 1]
        self.started, self.at = self.order.getstate(), 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "started": self.started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at, self.started, self.loaded = state["at"], state["started"], True


@dataclass(frozen=True)
class Case:
    kind: str
    samples: int
    size: int
    seed: int
    shuffle: bool = True
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    uneven: Any = "keep"
    ordered: bool = True

    def source(self) -> Any:
        match self.kind:
            case "map":
                return Batched(
                    Samples(self.samples), self.size, shuffle=self.shuffle, drop_last=self.drop_last
                )
            case "list":
                return batches_of(self.samples, self.size, random.Random(3))
            case "plain":
                return Plain(self.samples, self.size)
            case _:
                return Stateful(self.samples, self.size)

    def reader(self) -> DistilReader:
        return DistilReader(
            self.source(),
            service="s",
            teachers=["127.0.0.1:9"],
            seed=self.seed,
            rank=self.rank,
            world_size=self.world_size,
            uneven=self.uneven,
            ordered=self.ordered,
        )

    def ranks(self, world_size: int) -> list[Case]:
        return [replace(self, rank=rank, world_size=world_size) for rank in range(world_size)]


cases = st.builds(
    Case,
    kind=st.sampled_from(["map", "list", "plain", "stateful"]),
    samples=st.integers(0, 40),
    size=st.integers(1, 7),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
    ordered=st.booleans(),
)
dealt_cases = st.builds(
    Case,
    kind=st.sampled_from(["map", "list"]),
    samples=st.integers(1, 40),
    size=st.integers(1, 7),
    seed=st.integers(0, 2**40),
    shuffle=st.booleans(),
    uneven=st.sampled_from(["keep", "drop", "pad"]),
)
worlds = st.integers(1, 4)


def as_bytes(batch: Any) -> tuple[bytes, ...]:
    x, ids, _ = batch
    np.testing.assert_array_equal(x[:, 0], ids)
    return x.tobytes(), ids.tobytes()


def ids_of(batches: Batches) -> list[int]:
    return [int(i) for _, ids in batches for i in np.frombuffer(ids, np.int64)]


def epoch_of(reader: DistilReader, most: int | None = None) -> Batches:
    return [as_bytes(batch) for batch in itertools.islice(iter(reader), most)]


def read_on(reader: DistilReader, had: dict[int, Batches], most: int | None = None) -> None:
    """Add what remains of the present epoch, or its next `most` batches, to what was had of it."""
    had.setdefault(saved(reader)["epoch"], []).extend(epoch_of(reader, most))


def saved(reader: DistilReader) -> Any:
    return json.loads(json.dumps(reader.state_dict()))


def in_any_order(epochs: list[Batches], ordered: bool) -> list[Batches]:
    return epochs if ordered else [sorted(batches) for batches in epochs]


def uninterrupted(case: Case) -> list[Batches]:
    with case.reader() as reader:
        return [epoch_of(reader) for _ in range(EPOCHS)]


@given(cases, st.integers(0, EPOCHS - 1), st.integers(0, 45), st.integers(0, 45))
@example(Case("map", samples=40, size=2, seed=1, ordered=False), 0, 5, 3)
def test_taken_and_remaining_are_the_whole(case: Case, epoch: int, first: int, second: int) -> None:
    """Cut twice in one epoch: each time, what is read ahead is not taken for delivered."""
    had: dict[int, Batches] = {}
    with case.reader() as reader:
        for _ in range(epoch):
            read_on(reader, had)
        read_on(reader, had, first)
        state = saved(reader)
        if state["epoch"] == epoch:
            taken = had[epoch]
            assert state["samples"] == len(ids_of(taken))
            assert state["batches"] + len(state["ahead"]) == len(taken)
            assert not (case.ordered and state["ahead"])
    with case.reader() as reader:
        reader.load_state_dict(state)
        assert saved(reader) == state
        read_on(reader, had, second)
        state = saved(reader)
    with case.reader() as reader:
        reader.load_state_dict(state)
        while saved(reader)["epoch"] < EPOCHS:
            read_on(reader, had)
    epochs = [had[number] for number in range(EPOCHS)]
    assert in_any_order(epochs, case.ordered) == in_any_order(uninterrupted(case), case.ordered)


@given(dealt_cases, worlds)
def test_shards_are_the_epoch(case: Case, world: int) -> None:
    whole = uninterrupted(case)
    ranks = [uninterrupted(one) for one in case.ranks(world)]
    for epoch in range(EPOCHS):
        shares = [rank[epoch] for rank in ranks]
        turns = [b for step in itertools.zip_longest(*shares) for b in step if b is not None]
        steps = {len(one) for one in shares}
        match case.uneven:
            case "keep":
                assert turns == whole[epoch]
            case "drop":
                assert turns == whole[epoch][: len(turns)]
                assert len(whole[epoch]) - len(turns) < world
                assert len(steps) == 1
            case "pad":
                assert turns == list(itertools.islice(itertools.cycle(whole[epoch]), len(turns)))
                assert len(turns) - len(whole[epoch]) < world
                assert len(steps) == 1


@given(dealt_cases, worlds, worlds, st.integers(0, EPOCHS - 1), st.integers(0, 20))
def test_resume_on_other_ranks(case: Case, before: int, after: int, epoch: int, step: int) -> None:
    """From the states of all ranks, which stand at the same step."""
    case = replace(case, uneven="keep")
    whole = uninterrupted(case)[epoch]
    states, had = [], []
    for one in case.ranks(before):
        with one.reader() as reader:
            for _ in range(epoch):
                epoch_of(reader)
            iterator = iter(reader)
            had += [as_bytes(batch) for batch in itertools.islice(iterator, step)]
            states.append(saved(reader))
    for one in case.ranks(after):
        with one.reader() as reader:
            reader.load_state_dict(states)
            if saved(reader)["epoch"] == epoch:
                had += epoch_of(reader)
    assert sorted(ids_of(had)) == sorted(ids_of(whole))


def samples() -> Iterator[Any]:
    rows = Samples(11)
    yield from (rows[number] for number in range(11))


def test_readers_of_the_three_kinds_of_generators() -> None:
    options: dict[str, Any] = {"service": "s", "teachers": ["127.0.0.1:9"]}
    some: dict[str, Any] = {"batch_size": 4, **options}
    lists = lambda: iter([[*samples()], [*samples()][:2]])  # noqa: E731
    batches = lambda: iter([(np.zeros((2, 3), np.float32), np.zeros(2, int))])  # noqa: E731
    for reader, sizes in (
        (DistilReader.from_sample_generator(samples, **some), [4, 4, 3]),
        (DistilReader.from_sample_generator(samples, drop_last=True, **some), [4, 4]),
        (DistilReader.from_sample_list_generator(lists, **options), [11, 2]),
        (DistilReader.from_batch_generator(batches, **options), [2]),
    ):
        with reader:
            for _ in range(2):
                assert [len(ids) for _, ids, _ in reader] == sizes
