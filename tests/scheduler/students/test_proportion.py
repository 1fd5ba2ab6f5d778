"""Shares of ranks: they sum, all ranks have the same ones, they follow speeds and seldom change."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.students.proportion import Proportion, equal_rows, rows_by_speed, useful, within

speeds = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


@given(st.integers(0, 5000), speeds)
def test_shares_sum_to_the_total_exactly(total: int, given_speeds: list[float]) -> None:
    rows = rows_by_speed(total, given_speeds)
    assert sum(rows) == total
    assert min(rows) >= (1 if total >= len(given_speeds) else 0)


@given(st.integers(0, 5000), st.integers(1, 64))
def test_equal_shares_differ_by_one_at_most(total: int, world: int) -> None:
    rows = equal_rows(total, world)
    assert sum(rows) == total
    assert max(rows) - min(rows) <= 1


@given(st.integers(0, 500), speeds, st.integers(-50, 600))
def test_the_end_of_an_epoch_is_shared_to_the_last_row(
    total: int, given_speeds: list[float], left: int
) -> None:
    rows = rows_by_speed(total, given_speeds)
    parts = within(rows, left)
    assert sum(parts) == min(total, max(0, left))
    assert all(part <= max(1, full) for part, full in zip(parts, rows, strict=True))


@given(st.integers(1, 500), speeds, st.integers(0, 5000))
def test_ranks_find_use_for_no_more_than_there_is(
    total: int, given_speeds: list[float], left: int
) -> None:
    rows = within(rows_by_speed(total, given_speeds), left)
    uses = [useful(part, left, total) for part in rows]
    assert left - len(rows) <= sum(uses) <= left
    assert all(use >= part for use, part in zip(uses, rows, strict=True))


@given(st.integers(100, 5000), speeds)
def test_who_is_faster_gets_no_less(total: int, given_speeds: list[float]) -> None:
    rows = rows_by_speed(total, given_speeds)
    by_speed = [count for _, count in sorted(zip(given_speeds, rows, strict=True))]
    assert all(late >= early - 1 for early, late in itertools.pairwise(by_speed))


def test_speeds_of_three_three_one() -> None:
    assert rows_by_speed(70, [3, 3, 1]) == (30, 30, 10)
    assert rows_by_speed(64, [3, 3, 1]) == (28, 27, 9)


class Ranks:
    """Ranks that keep a proportion each and read ahead; the seconds of a row are given."""

    def __init__(self, total: int, row_s: list[float], fixed_s: float, rng: random.Random) -> None:
        self.row_s, self.fixed_s, self.rng = row_s, fixed_s, rng
        self.states = [Proportion.equal(total, len(row_s)) for _ in row_s]
        self.read: list[dict[int, int]] = [{} for _ in row_s]
        self.pulled = [0] * len(row_s)
        self.changes = 0

    def run(self, first: int, steps: int, noise: float = 0.0) -> None:
        for step in range(first, first + steps):
            self.pulled = [max(one, step + self.rng.randrange(12)) for one in self.pulled]
            for rank, last in enumerate(self.pulled):  # rows are read for with what is known then
                for ahead in range(step, last + 1):
                    rows = self.states[rank].rows(ahead)[rank]
                    assert self.read[rank].setdefault(ahead, rows) == rows
            rows_now = [self.read[rank][step] for rank in range(len(self.row_s))]
            assert sum(rows_now) == self.states[0].total
            times = [
                (self.fixed_s + rows * row_s) * (1 + self.rng.uniform(-noise, noise)) / rows
                for rows, row_s in zip(rows_now, self.row_s, strict=True)
            ]
            before = self.rows
            self.states = [one.told(step, times, max(self.pulled) + 1) for one in self.states]
            self.changes += self.rows != before
            assert all(one == self.states[0] for one in self.states)

    @property
    def rows(self) -> tuple[int, ...]:
        return self.states[0].changes[-1].rows


def test_a_rank_three_times_slower_gets_a_third(rng: random.Random) -> None:
    ranks = Ranks(70, [0.01, 0.01, 0.03], 0.0, rng)
    ranks.run(0, 100)
    assert ranks.rows == (30, 30, 10)
    assert ranks.changes == 1


def test_noise_of_a_tenth_changes_nothing_once_it_fits(rng: random.Random) -> None:
    ranks = Ranks(210, [0.01, 0.01, 0.03], 0.0, rng)
    ranks.run(0, 100, noise=0.04)
    after = ranks.changes
    ranks.run(100, 300, noise=0.04)
    assert ranks.changes == after <= 2
    assert ranks.rows[2] == pytest.approx(30, abs=3)


def test_a_fixed_cost_of_a_step_is_shared_too(rng: random.Random) -> None:
    """Steps end together where rows do not cost all: 0.5 + 90 x 0.01 = 0.5 + 30 x 0.03."""
    ranks = Ranks(210, [0.01, 0.01, 0.03], 0.5, rng)
    ranks.run(0, 400)
    times = [0.5 + rows * row_s for rows, row_s in zip(ranks.rows, ranks.row_s, strict=True)]
    assert max(times) < 1.15 * min(times)
    assert ranks.changes <= 4


def test_ranks_that_hide_their_source_while_they_wait_do_not_swing(rng: random.Random) -> None:
    """Who waits for others is read ahead for meanwhile: its own source looks fast."""
    row_s, total = [0.01, 0.01, 0.03], 210
    state = Proportion.equal(total, 3)
    durations, changes = [], 0
    for step in range(300):
        rows = state.rows(step)
        took = [count * one for count, one in zip(rows, row_s, strict=True)]
        seen = [t / n if t > 0.95 * max(took) else 1e-4 for t, n in zip(took, rows, strict=True)]
        after = state.told(step, seen, step + 1 + rng.randrange(8))
        changes += after.changes[-1].rows != state.changes[-1].rows
        durations.append(max(took))
        state = after
    ideal = 0.9  # 90 rows of 0.01 s, 30 of 0.03 s
    assert sum(durations[50:]) / 250 < 1.25 * ideal
    assert changes <= 300 / 10


def test_a_rank_that_becomes_fast_again_is_seen(rng: random.Random) -> None:
    ranks = Ranks(60, [0.01, 0.01, 0.03], 0.0, rng)
    ranks.run(0, 60)
    ranks.row_s = [0.01, 0.01, 0.01]
    ranks.run(60, 100)
    assert ranks.rows == (20, 20, 20)


@given(st.data())
def test_all_ranks_read_the_same_shares_whatever_they_vote(data: st.DataObject) -> None:
    """Property of `Ranks.run`: what was read ahead is what counts at the step, and it sums."""
    world = data.draw(st.integers(2, 6))
    row_s = data.draw(st.lists(st.floats(1e-4, 1.0), min_size=world, max_size=world))
    ranks = Ranks(data.draw(st.integers(world, 500)), row_s, 0.0, data.draw(st.randoms()))
    ranks.run(0, 25, noise=data.draw(st.floats(0, 0.9)))


def test_ranks_of_which_nothing_is_known_change_nothing() -> None:
    state = Proportion.equal(30, 3)
    for step in range(20):
        state = state.told(step, [0.01, 0.09, 0.0], step + 1)
    assert state.rows(20) == (10, 10, 10)
