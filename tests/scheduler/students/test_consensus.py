"""What ranks agree on: the same from the same votes, and nothing that leaves one behind."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.students.accumulation import pieces
from edl.scheduler.students.consensus import Vote, decide
from edl.scheduler.students.learning_rate import factor

votes = st.builds(
    Vote,
    rows=st.integers(0, 1 << 40),
    waiting=st.booleans(),
    leaving=st.booleans(),
    save=st.booleans(),
    pulled=st.integers(-1, 1 << 40),
    row_s=st.floats(0, 1e6),
    busy_s=st.floats(0, 1e6),
)
worlds = st.lists(votes, min_size=1, max_size=8)


@given(votes)
def test_a_vote_survives_a_vector_of_float64(vote: Vote) -> None:
    assert Vote.from_numbers(vote.to_numbers()) == vote


@given(worlds)
def test_a_step_is_taken_when_all_are_ready_and_any_has_rows(world: list[Vote]) -> None:
    decision = decide(world)
    ready = not any(vote.waiting for vote in world)
    some = any(vote.rows for vote in world)
    expected = ("step" if some else "over") if ready else "again"
    assert decision.verdict == expected
    assert decision.total == (sum(vote.rows for vote in world) if expected == "step" else 0)
    assert decision.save <= (expected == "step")


@given(worlds)
def test_one_that_is_to_leave_takes_all_with_it(world: list[Vote]) -> None:
    assert decide(world).leave == any(vote.leaving for vote in world)


@given(worlds)
def test_shares_change_behind_what_anyone_may_have_read(world: list[Vote]) -> None:
    assert all(decide(world).free_from > vote.pulled for vote in world)


@given(st.integers(0, 400), st.integers(0, 400), st.one_of(st.none(), st.integers(1, 64)))
def test_pieces_cover_a_batch_and_weigh_its_share(rows: int, others: int, most: int | None) -> None:
    cut = pieces(rows, rows + others, most)
    assert [row for piece in cut for row in range(piece.start, piece.stop)] == list(range(rows))
    assert all(most is None or piece.stop - piece.start <= most for piece in cut)
    assert len(cut) == (0 if rows == 0 else 1 if most is None else math.ceil(rows / most))
    if rows:
        assert sum(piece.weight for piece in cut) == pytest.approx(rows / (rows + others))
        sizes = [piece.stop - piece.start for piece in cut]
        assert max(sizes) - min(sizes) <= 1


def test_a_batch_that_is_all_weighs_exactly_one() -> None:
    (piece,) = pieces(48, 48, None)
    assert piece.weight == 1.0


@given(st.integers(1, 64), st.integers(1, 64))
def test_a_learning_rate_comes_back_when_the_world_does(old: int, new: int) -> None:
    assert factor("keep", old, new) == factor("linear", old, old) == factor("sqrt", 0, new) == 1.0
    assert factor("linear", old, new) == new / old
    for policy in ("linear", "sqrt"):
        there_and_back = factor(policy, old, new) * factor(policy, new, old)
        assert there_and_back == pytest.approx(1.0)
