"""When one teacher serves several students: who joins whom, and who gets one of its own again.

A student either has teachers of its own or a part of exactly one. Students that need half of a
teacher or less may sit together and still have all that they need; others share only when there is
nothing else for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from .board import Board, Seat
from .power import EPS

#: A student that needs no more of a teacher than this may sit with others in a shortage.
LIGHT = 0.5


def roomy(board: Board, seat: Seat, but: str = "") -> str | None:
    """A held teacher that can serve the student besides, while nobody at it misses anything."""
    if not any(_has_room(board, seat, name) for name in _least_loaded(board, seat)):
        return None
    best: tuple[bool, float] | None = None
    found = None
    for name in {other.held[0]: None for other in board.seats if len(other.held) == 1}:
        if name == but or not _has_room(board, seat, name):
            continue
        far = not seat.host or board.host(name) != seat.host
        fit = far, -board.loads.of(name)
        if best is None or fit < best:
            best, found = fit, name
    return found


def pack(board: Board) -> Seat | None:
    """Seat a light student with others, so that the teacher which it had alone is idle."""
    for seat in sorted(_lone_light(board), key=lambda seat: (seat.need, seat.arrival)):
        teacher = roomy(board, seat, but=seat.held[0])
        if teacher is not None:
            move(board, seat, teacher)
            seat.notes.append(f"shares teacher {teacher}, as it needs only a part of one")
            return seat
        return None  # what has no room for the lightest has none for another
    return None


def least_loaded(board: Board, seat: Seat) -> str | None:
    """The teacher where one more hurts least."""
    names = _least_loaded(board, seat)
    return min(names, key=lambda name: _load_with(board, seat, name), default=None)


def lighter(board: Board, seat: Seat) -> str | None:
    """A teacher where the student, and those it leaves, have more than where it shares now."""
    here = seat.held[0]
    full = board.loads.of(here)
    if full <= 1 + EPS:
        return None
    there = least_loaded(board, seat)
    if there is None or there == here or _load_with(board, seat, there) >= full - EPS:
        return None
    return there


def relief(board: Board) -> tuple[Seat, str] | None:
    """Who moves to which idle teacher, though nobody misses anything: the latest at the fullest."""
    shared = [name for name, seats in board.holders.items() if len(seats) > 1]
    for name in sorted(shared, key=board.loads.of, reverse=True):
        for seat in reversed(board.holders[name]):
            teacher = board.idle.enough(seat.need, seat.host)
            if teacher is not None:
                return seat, teacher
    return None


def move(board: Board, seat: Seat, teacher: str) -> None:
    """From the one teacher that it has to another."""
    board.take(seat, seat.held[0])
    board.give(seat, teacher)


def _lone_light(board: Board) -> Iterator[Seat]:
    for seat in board.seats:
        if (
            len(seat.held) == 1
            and not seat.shared
            and board.part(seat, seat.held[0]) <= LIGHT + EPS
        ):
            yield seat


def _least_loaded(board: Board, seat: Seat) -> list[str]:
    """Of each power, the teacher with the smallest load."""
    names = (board.loads.least(power, seat.host) for power in board.powers)
    return [name for name in names if name is not None]


def _has_room(board: Board, seat: Seat, name: str) -> bool:
    part = seat.need / board.power(name)
    return part <= LIGHT + EPS and board.loads.of(name) + part <= 1 + EPS


def _load_with(board: Board, seat: Seat, name: str) -> float:
    return board.loads.of(name) + board.part(seat, name)
