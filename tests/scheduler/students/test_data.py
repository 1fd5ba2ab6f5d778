"""Sets of samples, and how ranks share an epoch."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.runtime.errors import UsageError
from edl.scheduler.students.shards import (
    SHARDS_PER_RANK,
    Ranges,
    RankShard,
    StaticDeal,
    Uneven,
    batches_of_rank,
    cut,
    rows_of_rank,
    shard_rows,
    steps_of_rank,
    taken_together,
)

Pairs = list[tuple[int, int]]
PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], sum(p))))


def numbers(pairs: Iterable[tuple[int, int]]) -> set[int]:
    return {number for start, stop in pairs for number in range(start, stop)}


def check_form(ranges: Ranges) -> None:
    """No range is empty, none touches the next."""
    assert all(start < stop for start, stop in ranges.pairs)
    ends = [stop for _, stop in ranges.pairs[:-1]]
    assert all(end < start for end, (start, _) in zip(ends, ranges.pairs[1:], strict=True))


class TestRanges:
    @given(PAIRS)
    def test_normal_form(self, pairs: Pairs) -> None:
        ranges = Ranges.of(pairs)
        check_form(ranges)
        assert numbers(ranges.pairs) == numbers(pairs)
        assert ranges.count == len(numbers(pairs))
        assert bool(ranges) == bool(numbers(pairs))
        assert ranges == Ranges.of_numbers(numbers(pairs))
        assert ranges == Ranges.from_json(json.loads(json.dumps(ranges.to_json())))

    @given(PAIRS, PAIRS)
    def test_union_and_difference(self, one: Pairs, other: Pairs) -> None:
        union, rest = Ranges.of(one).union(Ranges.of(other)), Ranges.of(one).minus(Ranges.of(other))
        check_form(union)
        check_form(rest)
        assert numbers(union.pairs) == numbers(one) | numbers(other)
        assert numbers(rest.pairs) == numbers(one) - numbers(other)

    @given(PAIRS, st.integers(0, 80))
    def test_complement(self, pairs: Pairs, total: int) -> None:
        rest = Ranges.of(pairs).complement(total)
        check_form(rest)
        assert numbers(rest.pairs) == set(range(total)) - numbers(pairs)

    @given(PAIRS, st.integers(0, 80), st.integers(0, 80))
    def test_slice(self, pairs: Pairs, start: int, stop: int) -> None:
        part = Ranges.of(pairs).slice(start, stop)
        check_form(part)
        assert sorted(numbers(part.pairs)) == sorted(numbers(pairs))[start:stop]

    @pytest.mark.parametrize("wrong", [5, "0-3", [3], [[1]], [[3, 2]], [[-1, 2]], [[0, 1.5]], None])
    def test_invalid_ranges_are_refused(self, wrong: object) -> None:
        with pytest.raises(UsageError, match="range"):
            Ranges.from_json(wrong)


REMAINING = st.lists(st.tuples(st.integers(0, 300), st.integers(1, 40))).map(
    lambda pairs: Ranges.of([(start, start + rows) for start, rows in pairs])
)


class TestShards:
    @given(REMAINING, st.integers(1, 50))
    def test_shards_cover_the_rest_once(self, remaining: Ranges, size: int) -> None:
        shards = cut(remaining, size)
        assert [n for shard in shards for n in range(*shard)] == sorted(numbers(remaining.pairs))
        assert all(1 <= stop - start <= size for start, stop in shards)

    @given(st.integers(0, 10**7), st.integers(1, 64), st.integers(1, 4096))
    def test_shards_are_small(self, total: int, world: int, batch: int) -> None:
        rows = shard_rows(total, world, batch)
        part = -(-batch // world)
        assert rows >= part  # a batch is not gathered of many shards
        assert rows % part == 0
        assert rows <= max(part, total // (world * SHARDS_PER_RANK))

    @given(st.integers(0, 1000), st.integers(1, 20))
    def test_parts_of_ranks_are_equal(self, rows: int, world: int) -> None:
        parts = [rows_of_rank(rows, rank, world) for rank in range(world)]
        assert sum(parts) == rows
        assert max(parts) - min(parts) <= 1

    @given(REMAINING, st.integers(1, 50), st.integers(1, 7))
    def test_static_deal(self, remaining: Ranges, batch: int, world: int) -> None:
        order = sorted(numbers(remaining.pairs))
        deals = [StaticDeal(remaining, batch, rank, world) for rank in range(world)]
        for step in range(deals[0].steps + 1):
            parts = [[n for shard in deal.shards(step) for n in range(*shard)] for deal in deals]
            assert [len(part) for part in parts] == [deal.rows(step) for deal in deals]
            assert [n for part in parts for n in part] == order[step * batch : (step + 1) * batch]
        assert all(deal.rows(deals[0].steps) == 0 for deal in deals)

    @given(REMAINING, st.integers(1, 50), st.integers(1, 7), st.integers(1, 7), st.integers(0, 6))
    def test_another_world_continues(
        self, remaining: Ranges, batch: int, world: int, next_world: int, after: int
    ) -> None:
        """What a step trains does not depend on how many ranks there were, and are."""
        deals = [StaticDeal(remaining, batch, rank, world) for rank in range(world)]
        done = [pair for step in range(after) for deal in deals for pair in deal.shards(step)]
        rest = remaining.minus(Ranges.of(done))
        deals = [StaticDeal(rest, batch, rank, next_world) for rank in range(next_world)]
        alone = StaticDeal(remaining, batch, 0, 1)
        for step in range(after, alone.steps):
            together = [pair for deal in deals for pair in deal.shards(step - after)]
            assert Ranges.of(together) == Ranges.of(alone.shards(step))

    def test_invalid_deals_are_refused(self) -> None:
        with pytest.raises(UsageError):
            cut(Ranges.of([(0, 5)]), 0)


TOTALS = st.integers(0, 60)
WORLDS = st.integers(1, 9)


def rank_shards(world: int, uneven: Uneven) -> list[RankShard]:
    return [RankShard(rank, world, uneven) for rank in range(world)]


class TestShardPlan:
    @given(TOTALS, st.integers(0, 60), WORLDS, st.sampled_from(["keep", "drop", "pad"]))
    def test_ranks_take_turns(self, total: int, start: int, world: int, uneven: Uneven) -> None:
        start %= total + 1
        shards = rank_shards(world, uneven)
        shares = [batches_of_rank(total, start, shard) for shard in shards]
        lengths = [len(one) for one in shares]
        assert [steps_of_rank(total, start, shard) for shard in shards] == lengths
        assert max(lengths) - min(lengths) <= (1 if uneven == "keep" else 0)
        turns = [one[n] for n in range(max(lengths)) for one in shares if n < len(one)]
        assert turns[: total - start] == list(range(start, total))[: len(turns)]
        lacking = total - start - len(turns)
        assert lacking in {"keep": [0], "drop": range(world), "pad": range(1 - world, 1)}[uneven]
        assert turns[total - start :] == [n % total for n in range(-lacking)]

    @given(TOTALS, st.lists(st.tuples(WORLDS, st.integers(0, 20)), max_size=6), WORLDS)
    def test_the_group_may_change(self, total: int, groups: Pairs, last: int) -> None:
        """Each group goes on where the one before it stood, the last one to the end."""
        taken: list[int] = []
        start = 0
        for world, step in [*groups, (last, total)]:
            shares = [
                batches_of_rank(total, start, shard)[:step] for shard in rank_shards(world, "keep")
            ]
            taken += [place for one in shares for place in one]
            gone = taken_together(total, start, "keep", [len(one) for one in shares])
            assert gone is not None
            start = gone
        assert sorted(taken) == list(range(total))

    @given(st.integers(1, 60), st.lists(st.integers(0, 20), min_size=2, max_size=5))
    def test_ranks_at_different_steps(self, total: int, taken: list[int]) -> None:
        shares = [batches_of_rank(total, 0, shard) for shard in rank_shards(len(taken), "keep")]
        taken = [min(count, len(one)) for count, one in zip(taken, shares, strict=True)]
        gone = taken_together(total, 0, "keep", taken)
        pairs = list(zip(shares, taken, strict=True))
        places = sorted(place for one, count in pairs for place in one[:count])
        same_step = all(len(one[: max(taken)]) == count for one, count in pairs)
        assert gone == (len(places) if same_step else None)
        if same_step:
            assert places == list(range(len(places)))
