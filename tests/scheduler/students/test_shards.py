"""An epoch dealt out: all of it, nothing twice, by shards and by the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.scheduler.students.ranges import Ranges
from edl.scheduler.students.shards import (
    SHARDS_PER_RANK,
    Shard,
    StaticDeal,
    cut,
    rows_of_rank,
    shard_rows,
)

REMAINING = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40))).map(
    lambda pairs: Ranges.of([(start, start + rows) for start, rows in pairs])
)


@given(REMAINING, st.integers(1, 50))
def test_shards_are_all_that_remains_and_nothing_twice(remaining: Ranges, size: int) -> None:
    shards = cut(remaining, size)
    assert [n for shard in shards for n in range(*shard)] == list(remaining.numbers())
    assert all(1 <= shard.rows <= size for shard in shards)


@given(st.integers(0, 10**7), st.integers(1, 64), st.integers(1, 4096))
def test_shards_are_small_beside_what_a_rank_trains_in_an_epoch(
    total: int, world: int, batch: int
) -> None:
    rows = shard_rows(total, world, batch)
    part = -(-batch // world)
    assert rows >= part  # a batch is not gathered of many shards
    assert rows % part == 0
    assert rows <= max(part, total // (world * SHARDS_PER_RANK))


@given(st.integers(0, 1000), st.integers(1, 20))
def test_parts_of_ranks_are_equal_but_for_one(rows: int, world: int) -> None:
    parts = [rows_of_rank(rows, rank, world) for rank in range(world)]
    assert sum(parts) == rows
    assert max(parts) - min(parts) <= 1


@given(REMAINING, st.integers(1, 50), st.integers(1, 7))
def test_a_static_deal_gives_each_step_the_next_positions(
    remaining: Ranges, batch: int, world: int
) -> None:
    order = list(remaining.numbers())
    deals = [StaticDeal(remaining, batch, rank, world) for rank in range(world)]
    for step in range(deals[0].steps + 1):
        parts = [[n for shard in deal.shards(step) for n in range(*shard)] for deal in deals]
        assert [len(part) for part in parts] == [deal.rows(step) for deal in deals]
        assert [n for part in parts for n in part] == order[step * batch : (step + 1) * batch]
    assert all(deal.rows(deals[0].steps) == 0 for deal in deals)


@given(REMAINING, st.integers(1, 50), st.integers(1, 7), st.integers(1, 7), st.integers(0, 6))
def test_another_world_goes_on_with_the_same_steps(
    remaining: Ranges, batch: int, world: int, next_world: int, after: int
) -> None:
    """What a step trains does not depend on how many ranks there were, and are."""
    done = Ranges.of(
        pair
        for rank in range(world)
        for step in range(after)
        for pair in StaticDeal(remaining, batch, rank, world).shards(step)
    )
    rest = remaining.minus(done)
    alone = StaticDeal(remaining, batch, 0, 1)
    for step in range(after, alone.steps):
        together = [
            tuple(pair)
            for rank in range(next_world)
            for pair in StaticDeal(rest, batch, rank, next_world).shards(step - after)
        ]
        assert Ranges.of(together) == Ranges.of(alone.shards(step))


def test_deals_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError):
        cut(Ranges.of([(0, 5)]), 0)
    for batch, rank, world in ((0, 0, 1), (4, 2, 2), (4, -1, 2)):
        with pytest.raises(UsageError):
            StaticDeal(Ranges(), batch, rank, world)


def test_a_shard_says_its_rows() -> None:
    assert Shard(3, 8).rows == 5
