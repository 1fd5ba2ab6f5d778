"""Among students that have one teacher or a part of one: the better places by priority."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from .board import Board, Seat
from .power import EPS

#: A place must be better by this factor to be worth moving two students.
WORTH = 1.5

_Buckets = dict[tuple[int, float], list[Seat]]


def by_priority(board: Board) -> None:
    """Exchange places, until nobody has a much worse one than a student of lower priority.

    Only students that can use as much of every teacher change places: so nobody else notices, and
    whoever gets the worse place has nowhere better to go than the one who had it.
    """
    if len({seat.priority for seat in board.seats}) < 2 or not board.shared:
        return
    most = board.powers[-1]
    alike: dict[tuple[float, float], list[Seat]] = defaultdict(list)
    for seat in board.seats:
        if len(seat.held) == 1 and seat.need > 0:
            alike[board.power(seat.held[0]), round(min(seat.need, most), 6)].append(seat)
    for seats in alike.values():
        _sort(board, _buckets(board, seats))


def _buckets(board: Board, seats: Iterable[Seat]) -> _Buckets:
    found: _Buckets = defaultdict(list)
    for seat in seats:
        found[seat.priority, round(board.level(seat), 6)].append(seat)
    return found


def _sort(board: Board, buckets: _Buckets) -> None:
    """The highest priority takes from the lowest, while there is anything to be gained."""
    while True:
        pairs = [
            (-mine[0], mine[1], theirs[0], -theirs[1])
            for mine in buckets
            for theirs in buckets
            if mine[0] > theirs[0] and theirs[1] >= WORTH * mine[1] - EPS
        ]
        if not pairs:
            return
        first, worse, last, better = min(pairs)
        mine, theirs = (-first, worse), (last, -better)
        seat, other = buckets[mine].pop(), buckets[theirs].pop()
        _exchange(board, seat, other)
        buckets[seat.priority, theirs[1]].append(seat)
        buckets[other.priority, mine[1]].append(other)
        for key in (mine, theirs):
            if not buckets[key]:
                del buckets[key]


def _exchange(board: Board, seat: Seat, other: Seat) -> None:
    mine, theirs = seat.held[0], other.held[0]
    for one, leaves, takes in ((seat, mine, theirs), (other, theirs, mine)):
        board.give(one, takes)
        board.take(one, leaves)
    seat.notes.append(f"teacher {theirs} taken over from {other.name}")
    other.notes.append(f"teacher {theirs} given to {seat.name}, which goes first")
