"""Ranks share an epoch: each batch once, whatever their number, and whenever it changes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from edl.errors import UsageError
from edl.scheduler.shard_plan import Shard, Uneven, share, steps, taken_together

TOTALS = st.integers(0, 60)
WORLDS = st.integers(1, 9)


def shards(world: int, uneven: Uneven) -> list[Shard]:
    return [Shard(rank, world, uneven) for rank in range(world)]


@given(TOTALS, st.integers(0, 60), WORLDS)
def test_what_is_kept_goes_to_one_rank_each(total: int, start: int, world: int) -> None:
    assume(start <= total)
    shares = [share(total, start, shard) for shard in shards(world, "keep")]
    assert sorted(place for one in shares for place in one) == list(range(start, total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@given(TOTALS, st.integers(0, 60), WORLDS)
def test_what_does_not_go_round_is_dropped(total: int, start: int, world: int) -> None:
    assume(start <= total)
    shares = [share(total, start, shard) for shard in shards(world, "drop")]
    places = sorted(place for one in shares for place in one)
    assert places == list(range(start, start + len(places)))
    assert total - start - len(places) < world
    assert len({len(one) for one in shares}) == 1


@given(TOTALS, st.integers(0, 60), WORLDS)
def test_what_is_padded_begins_anew(total: int, start: int, world: int) -> None:
    assume(start <= total)
    shares = [share(total, start, shard) for shard in shards(world, "pad")]
    assert len({len(one) for one in shares}) == 1
    turns = [one[step] for step in range(len(shares[0])) for one in shares]
    assert turns[: total - start] == list(range(start, total))
    assert turns[total - start :] == [n % total for n in range(len(turns) - (total - start))]
    assert len(turns) - (total - start) < world


@given(TOTALS, st.integers(0, 60), WORLDS, st.sampled_from(["keep", "drop", "pad"]))
def test_steps_are_the_length_of_the_share(
    total: int, start: int, world: int, uneven: Uneven
) -> None:
    assume(start <= total)
    for shard in shards(world, uneven):
        assert steps(total, start, shard) == len(share(total, start, shard))


@given(TOTALS, st.lists(st.tuples(WORLDS, st.integers(0, 20)), max_size=6), WORLDS)
def test_the_group_may_change_at_any_step(
    total: int, groups: list[tuple[int, int]], last: int
) -> None:
    """Each group goes on where the one before it stood, the last one to the end."""
    taken: list[int] = []
    start = 0
    for world, step in groups:
        shares = [share(total, start, shard)[:step] for shard in shards(world, "keep")]
        taken += [place for one in shares for place in one]
        gone = taken_together(total, start, "keep", [len(one) for one in shares])
        assert gone is not None
        start = gone
    taken += [place for shard in shards(last, "keep") for place in share(total, start, shard)]
    assert sorted(taken) == list(range(total))


@given(st.integers(1, 60), st.lists(st.integers(0, 20), min_size=2, max_size=5))
def test_ranks_at_different_steps_have_taken_no_prefix(total: int, taken: list[int]) -> None:
    shares = [share(total, 0, shard) for shard in shards(len(taken), "keep")]
    taken = [min(count, len(one)) for count, one in zip(taken, shares, strict=True)]
    gone = taken_together(total, 0, "keep", taken)
    places = sorted(
        place for one, count in zip(shares, taken, strict=True) for place in one[:count]
    )
    step = max(taken)
    same_step = all(len(one[:step]) == n for one, n in zip(shares, taken, strict=True))
    assert gone == (len(places) if same_step else None)
    if same_step:
        assert places == list(range(len(places)))


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_cannot_be_is_refused(rank: int, world: int) -> None:
    with pytest.raises(UsageError, match=f"rank {rank} of world_size {world}"):
        Shard(rank, world)


def test_another_word_for_uneven_is_refused() -> None:
    with pytest.raises(UsageError, match="'keep', 'drop', 'pad'"):
        Shard(uneven="repeat")  # type: ignore[arg-type]
