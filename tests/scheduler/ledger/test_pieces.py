"""Runs of rows: cut to size and put together, none is lost and none comes twice."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from edl.scheduler.ledger.pieces import Piece, count, cut, put_back, runs

ROWS = 40


@st.composite
def pieces(draw: st.DrawFn) -> list[Piece]:
    """Disjoint pieces in any order, some of them adjacent."""
    ends = sorted(draw(st.sets(st.integers(0, ROWS), max_size=10)))
    keep = draw(st.lists(st.booleans(), min_size=len(ends), max_size=len(ends)))
    made = [
        (start, stop, stop % 3)
        for start, stop, is_kept in zip(ends, ends[1:], keep, strict=False)
        if is_kept
    ]
    return draw(st.permutations(made))


def rows_of(of: list[Piece]) -> list[int]:
    return [row for start, stop, _ in of for row in range(start, stop)]


@given(pieces(), st.integers(1, ROWS))
def test_what_is_cut_is_the_first_rows_and_the_rest_stays(
    those: list[Piece], most_rows: int
) -> None:
    waiting: list[Piece] = []
    for piece in those:
        put_back(waiting, piece)
    rows = rows_of(waiting)
    assert rows == sorted(rows_of(those))
    taken = cut(waiting, most_rows)
    assert rows_of(taken) == rows[:most_rows]
    assert rows_of(waiting) == rows[most_rows:]
    assert count(taken) == min(most_rows, len(rows))


@given(pieces())
def test_runs_are_the_same_rows_and_as_few_as_they_can_be(those: list[Piece]) -> None:
    joined = runs(sorted(those))
    assert [row for start, stop in joined for row in range(start, stop)] == rows_of(sorted(those))
    assert all(stop < start for (_, stop), (start, _) in pairwise(joined))


def test_each_row_keeps_how_often_it_was_sent() -> None:
    waiting = [(0, 4, 0), (4, 9, 2)]
    assert cut(waiting, 6) == [(0, 4, 0), (4, 6, 2)]
    assert waiting == [(6, 9, 2)]
