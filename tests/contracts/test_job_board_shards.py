"""One contract, two job boards: the shards of an epoch, within a generation."""

from __future__ import annotations

import threading

import pytest

from edl.errors import GenerationSuperseded, UsageError
from edl.scheduler.students.ranges import Ranges
from edl.scheduler.students.shards import Shard, cut
from edl.tests.contracts.conftest import Boards
from edl.tests.contracts.test_job_board import JOB, begin


def test_each_shard_is_leased_once_in_order(boards: Boards) -> None:
    begin(boards.one)
    shards = cut(Ranges.of([(0, 10), (12, 19)]), 4)
    assert boards.one.fill(JOB, 1, 0, shards)
    leased: list[Shard] = []
    while (shard := boards.another.lease(JOB, 1, 0, len(leased) % 2)) is not None:
        leased.append(shard)
    assert leased == shards == [(0, 4), (4, 8), (8, 10), (12, 16), (16, 19)]


def test_the_first_to_fill_an_epoch_wins(boards: Boards) -> None:
    begin(boards.one)
    assert boards.one.fill(JOB, 1, 3, [Shard(0, 5)])
    assert not boards.another.fill(JOB, 1, 3, [Shard(0, 2), Shard(2, 5)])
    assert boards.another.lease(JOB, 1, 3, 0) == (0, 5)
    assert boards.another.lease(JOB, 1, 3, 0) is None
    assert not boards.another.fill(JOB, 1, 3, [Shard(0, 5)])  # nor when all of it is leased
    assert boards.another.lease(JOB, 1, 3, 1) is None
    assert boards.one.fill(JOB, 1, 4, [])  # an epoch of which nothing is left
    assert not boards.one.fill(JOB, 1, 4, [Shard(0, 1)])


def test_epochs_lie_beside_each_other(boards: Boards) -> None:
    begin(boards.one)
    boards.one.fill(JOB, 1, 1, [Shard(0, 3)])
    boards.one.fill(JOB, 1, 0, [Shard(4_000_000_000, 4_000_000_009)])
    assert boards.one.lease(JOB, 1, 2, 0) is None
    assert boards.one.lease(JOB, 1, 0, 0) == (4_000_000_000, 4_000_000_009)
    assert boards.one.lease(JOB, 1, 0, 0) is None
    assert boards.one.lease(JOB, 1, 1, 0) == (0, 3)


def test_thousands_of_shards_are_laid_out_at_once(boards: Boards) -> None:
    begin(boards.one)
    shards = cut(Ranges.of([(0, 1_280_000)]), 64)
    assert len(shards) == 20_000
    assert boards.one.fill(JOB, 1, 0, shards)
    assert [boards.one.lease(JOB, 1, 0, 0) for _ in range(3)] == shards[:3]


def test_a_question_that_is_asked_again_is_answered_by_the_same_shard(
    boards: Boards,
) -> None:
    begin(boards.one)
    boards.one.fill(JOB, 1, 0, cut(Ranges.of([(0, 12)]), 3))
    assert boards.one.lease(JOB, 1, 0, 0, 4) == (0, 3)
    assert boards.another.lease(JOB, 1, 0, 0, 4) == (0, 3), "its answer may have been lost"
    assert boards.one.lease(JOB, 1, 0, 1, 4) == (3, 6), "of another rank"
    assert boards.one.lease(JOB, 1, 0, 0, 5) == (6, 9)
    assert boards.another.lease(JOB, 1, 0, 0, 4) == (6, 9), "it comes late, and nobody listens"
    assert boards.one.done(JOB, 1, 0, 0, 0, 3)
    assert boards.one.lease(JOB, 1, 0, 1, 5) == (9, 12)
    assert boards.one.lease(JOB, 1, 0, 1, 6) is None


def test_a_shard_is_cut_for_who_has_no_use_for_all_of_it(boards: Boards) -> None:
    begin(boards.one)
    boards.one.fill(JOB, 1, 2, [Shard(0, 10), Shard(10, 12)])
    assert boards.one.lease(JOB, 1, 2, 0, 1, 4) == (0, 4)
    assert boards.another.lease(JOB, 1, 2, 0, 1, 4) == (0, 4)
    assert boards.another.lease(JOB, 1, 2, 1, 1, 5) == (4, 9)
    assert boards.one.done(JOB, 1, 2, 0, 0, 4)
    assert boards.one.lease(JOB, 1, 2, 0, 2, 5) == (9, 10)
    assert boards.one.lease(JOB, 1, 2, 0, 3) == (10, 12)
    assert boards.one.lease(JOB, 1, 2, 0, 4, 1) is None


def test_only_who_has_a_shard_is_done_with_it(boards: Boards) -> None:
    begin(boards.one)
    boards.one.fill(JOB, 1, 0, [Shard(0, 5)])
    assert not boards.one.done(JOB, 1, 0, 0, 0, 5)
    boards.one.lease(JOB, 1, 0, 0)
    assert not boards.another.done(JOB, 1, 0, 1, 0, 5)
    assert boards.one.done(JOB, 1, 0, 0, 0, 5)
    assert not boards.one.done(JOB, 1, 0, 0, 0, 5)


def test_a_generation_that_is_over_gets_and_gives_nothing(boards: Boards) -> None:
    begin(boards.one)
    boards.one.fill(JOB, 1, 0, cut(Ranges.of([(0, 9)]), 3))
    boards.one.lease(JOB, 1, 0, 0, 9)
    boards.one.report(JOB, 1, 0, {"step": 1})
    assert boards.another.publish(JOB, "a", 2, {})
    for old in (
        lambda: boards.one.fill(JOB, 1, 0, [Shard(0, 3)]),
        lambda: boards.one.lease(JOB, 1, 0, 0),
        lambda: boards.one.done(JOB, 1, 0, 0, 0, 3),
    ):
        with pytest.raises(GenerationSuperseded, match=r"generation 1 .* generation 2 is"):
            old()
    assert not boards.one.report(JOB, 1, 0, {"step": 2})
    assert boards.one.reports(JOB) == []
    # Nothing of the old one is left in the new one.
    assert boards.one.lease(JOB, 2, 0, 0) is None
    assert boards.one.fill(JOB, 2, 0, [Shard(0, 9)])
    assert not boards.one.done(JOB, 2, 0, 0, 0, 3)
    assert boards.one.lease(JOB, 2, 0, 0, 1) == (0, 9), "its questions begin anew"


def test_before_the_first_generation_nothing_is_leased(boards: Boards) -> None:
    with pytest.raises(GenerationSuperseded, match="there is none now"):
        boards.one.lease(JOB, 1, 0, 0)


def test_shards_that_overlap_are_refused(boards: Boards) -> None:
    begin(boards.one)
    for wrong in ([(0, 3), (2, 5)], [(3, 3)], [(5, 4)], [(0, 1 << 33)]):
        with pytest.raises(UsageError, match="shards are ranges"):
            boards.one.fill(JOB, 1, 0, [Shard(*pair) for pair in wrong])
    with pytest.raises(UsageError, match="epochs count"):
        boards.one.lease(JOB, 1, -1, 0)


def test_ranks_that_lease_at_the_same_time_share_nothing(boards: Boards) -> None:
    begin(boards.one)
    shards = cut(Ranges.of([(0, 600)]), 2)
    taken: list[list[Shard]] = [[], [], [], []]

    def take(rank: int) -> None:
        board = (boards.one, boards.another)[rank % 2]
        board.fill(JOB, 1, 0, shards)
        while (shard := board.lease(JOB, 1, 0, rank)) is not None:
            taken[rank].append(shard)
            assert board.done(JOB, 1, 0, rank, *shard)

    ranks = [threading.Thread(target=take, args=(rank,)) for rank in range(4)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(30)
    assert sorted(shard for one in taken for shard in one) == shards
