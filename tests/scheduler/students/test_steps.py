"""What ranks agree on in each step: batch sizes, weights, when to save."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.students.agreement import (
    RowShares,
    Vote,
    decide,
    equal_rows,
    limit_rows,
    rows_by_speed,
    rows_left_for_rank,
)
from edl.scheduler.students.saving import (
    MIN_INTERVAL_S,
    SaveSchedule,
    StoredCheckpoint,
    newest_first,
    to_prune,
)
from edl.scheduler.students.weights import (
    Cosine,
    Linear,
    Steps,
    Weight,
    always_zero,
    check,
    factor,
    needs_total,
    weight_at,
)
from edl.scheduler.students.weights import pieces as cut_batch

FLAG, ROWS, TIME_S = st.booleans(), st.integers(0, 1 << 40), st.floats(0, 1e6)
PULLED = st.integers(-1, 1 << 40)
votes = st.builds(Vote, ROWS, FLAG, FLAG, FLAG, pulled=PULLED, row_s=TIME_S, busy_s=TIME_S)
worlds = st.lists(votes, min_size=1, max_size=8)


class TestConsensus:
    @given(votes)
    def test_a_vote_survives_a_vector_of_float64(self, vote: Vote) -> None:
        assert Vote.from_numbers(vote.to_numbers()) == vote

    @given(worlds)
    def test_step_when_all_are_ready(self, world: list[Vote]) -> None:
        decision = decide(world)
        ready = not any(vote.waiting for vote in world)
        some = any(vote.rows for vote in world)
        expected = ("step" if some else "over") if ready else "again"
        assert decision.verdict == expected
        assert decision.total == (sum(vote.rows for vote in world) if expected == "step" else 0)
        assert decision.save <= (expected == "step")
        assert decision.leave == any(vote.leaving for vote in world)
        assert all(decision.free_from > vote.pulled for vote in world)

    @given(st.integers(0, 400), st.integers(0, 400), st.one_of(st.none(), st.integers(1, 64)))
    def test_pieces(self, rows: int, others: int, most: int | None) -> None:
        cut = cut_batch(rows, rows + others, most)
        assert [row for piece in cut for row in range(piece.start, piece.stop)] == list(range(rows))
        assert all(most is None or piece.stop - piece.start <= most for piece in cut)
        assert len(cut) == (0 if rows == 0 else 1 if most is None else math.ceil(rows / most))
        if rows:
            assert sum(piece.weight for piece in cut) == pytest.approx(rows / (rows + others))
            sizes = [piece.stop - piece.start for piece in cut]
            assert max(sizes) - min(sizes) <= 1

    @given(st.integers(1, 64), st.integers(1, 64))
    def test_learning_rate_follows_the_world(self, old: int, new: int) -> None:
        assert factor("keep", old, new) == factor("linear", old, old) == 1.0
        assert factor("sqrt", 0, new) == 1.0
        assert factor("linear", old, new) == new / old
        for policy in ("linear", "sqrt"):
            there_and_back = factor(policy, old, new) * factor(policy, new, old)
            assert there_and_back == pytest.approx(1.0)


ROW_S = st.lists(st.floats(1e-4, 1.0), min_size=2, max_size=6)
speeds = st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=12)


class Ranks:
    """Ranks that keep a proportion each and read ahead; the seconds of a row are given."""

    def __init__(self, total: int, row_s: list[float], fixed_s: float, rng: random.Random) -> None:
        self.row_s, self.fixed_s, self.rng = row_s, fixed_s, rng
        self.states = [RowShares.equal(total, len(row_s)) for _ in row_s]
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
            self.states = [one.after_step(step, times, max(self.pulled) + 1) for one in self.states]
            self.changes += self.rows != before
            assert all(one == self.states[0] for one in self.states)

    @property
    def rows(self) -> tuple[int, ...]:
        return self.states[0].changes[-1].rows


class TestProportion:
    @given(st.integers(0, 5000), speeds)
    def test_shares_sum_to_the_total_exactly(self, total: int, given_speeds: list[float]) -> None:
        rows = rows_by_speed(total, given_speeds)
        assert sum(rows) == total
        assert min(rows) >= (1 if total >= len(given_speeds) else 0)
        if total >= 100:
            by_speed = [count for _, count in sorted(zip(given_speeds, rows, strict=True))]
            assert all(late >= early - 1 for early, late in itertools.pairwise(by_speed))

    @given(st.integers(0, 5000), st.integers(1, 64))
    def test_equal_shares_differ_by_one_at_most(self, total: int, world: int) -> None:
        rows = equal_rows(total, world)
        assert sum(rows) == total
        assert max(rows) - min(rows) <= 1

    @given(st.integers(1, 500), speeds, st.integers(-50, 5000))
    def test_end_of_an_epoch(self, total: int, given_speeds: list[float], left: int) -> None:
        rows = rows_by_speed(total, given_speeds)
        parts = limit_rows(rows, left)
        assert sum(parts) == min(total, max(0, left))
        assert all(part <= max(1, full) for part, full in zip(parts, rows, strict=True))
        left = max(0, left)
        uses = [rows_left_for_rank(part, left, total) for part in parts]
        assert left - len(parts) <= sum(uses) <= left
        assert all(use >= part for use, part in zip(uses, parts, strict=True))

    def test_ranks_without_a_speed_leave_the_shares_equal(self) -> None:
        state = RowShares.equal(30, 3)
        for step in range(20):
            state = state.after_step(step, [0.01, 0.09, 0.0], step + 1)
        assert state.rows(20) == (10, 10, 10)

    def test_shares_follow_speeds(self, rng: random.Random) -> None:
        ranks = Ranks(70, [0.01, 0.01, 0.03], 0.0, rng)
        ranks.run(0, 100)
        assert ranks.rows == (30, 30, 10)
        assert ranks.changes == 1
        ranks = Ranks(60, [0.01, 0.01, 0.03], 0.0, rng)
        ranks.run(0, 60)
        ranks.row_s = [0.01, 0.01, 0.01]
        ranks.run(60, 100)
        assert ranks.rows == (20, 20, 20)

    def test_noise_and_fixed_costs(self, rng: random.Random) -> None:
        ranks = Ranks(210, [0.01, 0.01, 0.03], 0.0, rng)
        ranks.run(0, 100, noise=0.04)
        after = ranks.changes
        ranks.run(100, 300, noise=0.04)
        assert ranks.changes == after <= 2
        assert ranks.rows[2] == pytest.approx(30, abs=3)
        ranks = Ranks(210, [0.01, 0.01, 0.03], 0.5, rng)
        ranks.run(0, 400)
        times = [0.5 + rows * row_s for rows, row_s in zip(ranks.rows, ranks.row_s, strict=True)]
        assert max(times) < 1.15 * min(times)
        assert ranks.changes <= 4

    def test_hidden_sources_do_not_swing(self, rng: random.Random) -> None:
        """A rank that waits for others reads ahead, so its source looks fast."""
        row_s, total = [0.01, 0.01, 0.03], 210
        state = RowShares.equal(total, 3)
        durations, changes = [], 0
        for step in range(300):
            rows = state.rows(step)
            took = [count * one for count, one in zip(rows, row_s, strict=True)]
            pairs = zip(took, rows, strict=True)
            seen = [t / n if t > 0.95 * max(took) else 1e-4 for t, n in pairs]
            after = state.after_step(step, seen, step + 1 + rng.randrange(8))
            changes += after.changes[-1].rows != state.changes[-1].rows
            durations.append(max(took))
            state = after
        ideal = 0.9  # 90 rows of 0.01 s, 30 of 0.03 s
        assert sum(durations[50:]) / 250 < 1.25 * ideal
        assert changes <= 300 / 10

    @given(ROW_S, st.integers(6, 500), st.randoms(), st.floats(0, 0.9))
    def test_all_ranks_read_the_same_shares(
        self, row_s: list[float], total: int, rng: random.Random, noise: float
    ) -> None:
        """Property of `Ranks.run`: what was read ahead is what counts at the step, and it sums."""
        Ranks(total, row_s, 0.0, rng).run(0, 25, noise)


weights = st.floats(0, 10)

VALUES = (weights, weights, st.integers(1, 50), st.integers(0, 50))
ramps = st.builds(Linear, *VALUES) | st.builds(Cosine, *VALUES)


class TestWeights:
    @given(ramps)
    def test_ramp_is_monotonic(self, ramp: Linear | Cosine) -> None:
        end = ramp.after + (ramp.steps or 0)
        values = [ramp.at(step, None) for step in range(end + 3)]
        low, high = sorted((ramp.first, ramp.last))
        assert all(low - 1e-9 <= value <= high + 1e-9 for value in values)
        order = sorted(values, reverse=ramp.last < ramp.first)
        assert values == pytest.approx(order)
        assert set(values[: ramp.after + 1]) == {ramp.first}
        assert set(values[end:]) == {ramp.last}
        half = ramp.steps or 0
        twice = type(ramp)(ramp.first, ramp.last, 2 * half, ramp.after)
        middle = twice.at(ramp.after + half, None)
        assert middle == pytest.approx((ramp.first + ramp.last) / 2)

    @given(weights, weights, st.integers(2, 100))
    def test_ramp_over_the_training(self, first: float, last: float, total: int) -> None:
        for ramp in (Linear(first, last), Cosine(first, last)):
            assert (ramp.at(0, total), ramp.at(total - 1, total)) == (first, last)
            assert needs_total(ramp)

    @given(st.lists(weights, min_size=1, max_size=6), st.data())
    def test_steps(self, values: list[float], data: st.DataObject) -> None:
        gaps = data.draw(st.lists(st.integers(1, 9), min_size=5))
        at = list(itertools.accumulate(gaps[: len(values) - 1]))
        schedule = Steps(tuple(values), tuple(at))
        expected = [values[sum(step >= one for one in at)] for step in range((at or [0])[-1] + 3)]
        assert [weight_at(schedule, step) for step in range(len(expected))] == expected

    def test_examples_of_weights(self) -> None:
        assert [weight_at(weight, 7, 9) for weight in (0, 1, 0.25)] == [0.0, 1.0, 0.25]
        line, bent = Linear(1, 0, 100), Cosine(1, 0, 100)
        assert bent.at(10, None) > line.at(10, None)
        assert bent.at(90, None) < line.at(90, None)
        with pytest.raises(ValueError, match="give the schedule steps="):
            weight_at(Linear(1, 0), 3, None)
        assert not needs_total(Linear(1, 0, 9))

    @pytest.mark.parametrize(
        ("weight", "zero"),
        [(0, True), (0.1, False), (Linear(0, 0), True), (Cosine(0, 1), False),
         (Steps((0,), ()), True)],
    )  # fmt: skip
    def test_always_zero(self, weight: Weight, zero: bool) -> None:
        assert always_zero(weight) is zero

    @pytest.mark.parametrize("weight", [-0.1, float("nan"), float("inf"), True, "1", None])
    def test_invalid_weights_are_refused(self, weight: Any) -> None:
        with pytest.raises(ValueError, match="a weight is a finite number"):
            check(weight)


STEPS = st.integers(0, 50)

ORDER = st.integers(0, 9)
ONE = st.builds(
    StoredCheckpoint, st.uuids().map(str), STEPS, st.floats(0, 100), st.booleans(), ORDER
)
FOUND = st.lists(ONE, min_size=3, max_size=12, unique_by=lambda one: one.name)


class TestSaving:
    @pytest.mark.parametrize(
        ("rhythm", "step", "now_s", "due"),
        [
            (SaveSchedule(10, None), 19, 1000.0, False),
            (SaveSchedule(10, None), 20, 0.0, True),
            (SaveSchedule(None, 30.0), 11, 29.9, False),
            (SaveSchedule(None, 30.0), 11, 30.0, True),
            (SaveSchedule(10, 30.0), 11, 30.0, True),
            (SaveSchedule(10, 30.0), 20, 1.0, True),
            (SaveSchedule(overhead=0.0), 10**9, 1e9, False),
            (SaveSchedule(overhead=0.0), 11, 0.1, False),
            (SaveSchedule(), 11, 0.1, True),  # the first step
            (SaveSchedule(1, 1.0), 10, 1000.0, False),  # the step that was saved last
        ],
    )
    def test_when_it_is_due(self, rhythm: SaveSchedule, step: int, now_s: float, due: bool) -> None:
        assert rhythm.due(step, now_s, last_step=10, last_s=0.0) is due

    @given(st.floats(0.01, 20.0), st.floats(0.001, 30.0), st.floats(0.005, 0.5))
    def test_saves_take_a_part_of_the_time(
        self, step_s: float, cost_s: float, overhead: float
    ) -> None:
        rhythm, now_s, last, saves = SaveSchedule(overhead=overhead), 0.0, (0, 0.0), 0
        for step in range(1, 301):
            now_s += step_s
            if rhythm.due(step, now_s, *last, [cost_s] if saves else []):
                assert saves > 0 or step == 1
                now_s, saves = now_s + cost_s, saves + 1
                last = (step, now_s)
        assert (saves - 1) * cost_s <= overhead * now_s
        # It is no rarer than the overhead and the least distance ask for.
        assert now_s - last[1] <= max(MIN_INTERVAL_S, cost_s / overhead) + step_s

    def test_a_save_that_stalled_once_does_not_put_off_the_next_ones(self) -> None:
        due = SaveSchedule(overhead=0.02).due
        assert not due(11, 99.0, 10, 0.0, [60.0, 2.0])
        assert due(11, 101.0, 10, 0.0, [60.0, 2.0])

    @given(FOUND, st.integers(1, 5))
    def test_pruning_keeps_the_newest(self, found: list[StoredCheckpoint], keep: int) -> None:
        gone = set(to_prune(found, keep))
        whole = [one.name for one in newest_first(found) if one.usable]
        left = [one for one in found if one.name not in gone]
        assert [one.name for one in newest_first(left) if one.usable] == whole[:keep]
        assert to_prune(left, keep) == [], "once is enough"
        for one in found:
            if not one.usable:  # damaged ones go with older ones
                newer = sum(other.usable and other.order > one.order for other in found)
                assert (one.name in gone) == (newer >= keep)

    def test_pruning_examples(self) -> None:
        found = [StoredCheckpoint(str(step), step, 0.0) for step in (30, 10, 20, 40)]
        assert to_prune(found, 2) == ["10", "20"]
        old = StoredCheckpoint("b", 90, 9.0)
        found = [
            old,
            StoredCheckpoint("c", 20, 1.0, sequence=2),
            StoredCheckpoint("d", 10, 2.0, sequence=3),
        ]
        assert to_prune(found, 2) == ["b"], "its place in the history counts, not its step"
        found = [replace(old, usable=False, pending=True), *found[1:]]
        assert to_prune(found, 1) == ["c"]
        found = [
            StoredCheckpoint("b", 10, 2.0),
            StoredCheckpoint("a", 10, 1.0),
            StoredCheckpoint("c", 10, 3.0, usable=False),
        ]
        assert to_prune(found, 1) == ["a"]
        with pytest.raises(ValueError, match="at least one"):
            to_prune([], 0)
