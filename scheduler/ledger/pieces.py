"""Runs of rows of one batch: how those that wait are kept, cut to size and put together."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Sequence

#: Rows [start, stop) of some batch that wait for a teacher, and how often they were sent:
#: (start, stop, sent). A plain tuple, as one is made for every batch.
Piece = tuple[int, int, int]


def put_back(pieces: list[Piece], piece: Piece) -> None:
    """Put `piece` where its rows belong; none of them may be there already."""
    insort(pieces, piece)


def cut(pieces: list[Piece], most_rows: int) -> list[Piece]:
    """Take the first `most_rows` rows (>= 1), or all there are, out of `pieces`."""
    taken = []
    while pieces and most_rows:
        start, stop, sent = pieces[0]
        if stop - start > most_rows:
            pieces[0] = (start + most_rows, stop, sent)
            stop = start + most_rows
        else:
            del pieces[0]
        taken.append((start, stop, sent))
        most_rows -= stop - start
    return taken


def runs(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The rows of `pieces`, in growing order, as few (start, stop) as they can be said in."""
    joined: list[tuple[int, int]] = []
    for start, stop, _ in pieces:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def pieces_of(rows: int, missing: Sequence[tuple[int, int]] | None) -> list[Piece]:
    """What waits of a new batch of `rows`: those that are `missing`, or all of it.

    Raises:
        ValueError: `missing` are not rows of the batch, in order and disjoint, or it has none.
    """
    if missing is None and rows > 0:  # as nearly always
        return [(0, rows, 0)]
    if rows < 1:
        raise ValueError(f"a batch has at least 1 row, not {rows}")
    end = 0
    for start, stop in missing or ():
        if not end <= start < stop <= rows:
            raise ValueError(f"missing rows must grow, and lie within {rows} rows: {missing}")
        end = stop
    return [(start, stop, 0) for start, stop in missing or ()]


def count(pieces: Iterable[Piece]) -> int:
    """How many rows they have."""
    return sum(stop - start for start, stop, _ in pieces)
