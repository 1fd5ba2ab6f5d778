"""When students share teachers, or exchange them: who joins whom, who trades, who goes first.

A student either has teachers of its own or a part of exactly one. Students that need half of a
teacher or less may sit together and still have all that they need; others share only when there is
nothing else for them. Among teachers of several powers, who has more than it needs trades with who
has less. Among students that have one teacher or a part of one, the better places go by priority.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from .assignment_table import Board, Seat
from .state import EPS

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
        fit = far, -board.load(name)
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
    full = board.load(here)
    if full <= 1 + EPS:
        return None
    there = least_loaded(board, seat)
    if there is None or there == here or _load_with(board, seat, there) >= full - EPS:
        return None
    return there


def relief(board: Board) -> tuple[Seat, str] | None:
    """Who moves to which idle teacher, though nobody misses anything: the latest at the fullest."""
    shared = [name for name, seats in board.holders.items() if len(seats) > 1]
    for name in sorted(shared, key=board.load, reverse=True):
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
    names = (board.least_loaded(power, seat.host) for power in board.powers)
    return [name for name in names if name is not None]


def _has_room(board: Board, seat: Seat, name: str) -> bool:
    part = seat.need / board.power[name]
    return part <= LIGHT + EPS and board.load(name) + part <= 1 + EPS


def _load_with(board: Board, seat: Seat, name: str) -> float:
    return board.load(name) + board.part(seat, name)


class Trades:
    """Trades that leave nobody short: a powerful teacher for a weaker one."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._spare: dict[float, tuple[float, Seat]] = {}
        if len(board.powers) > 1:
            for seat in board.seats:
                self._offer(seat)

    @property
    def anybody(self) -> bool:
        """Whether there is anybody who would trade."""
        return bool(self._spare)

    def trade(self, seat: Seat) -> Seat | None:
        """Trade one of the student's own teachers for a more powerful one; returns with whom."""
        if seat.shared or not seat.held or not self._spare:
            return None
        board = self._board
        gains = [
            (power - less, power, less)
            for less in {board.power[name] for name in seat.held}
            for power, (spare, _) in self._spare.items()
            if EPS < power - less <= spare + EPS
        ]
        if not gains:
            return None
        _, power, less = min(gains)
        other = self._spare[power][1]
        _trade(board, seat, _latest(board, seat, less), other, _latest(board, other, power))
        return other

    def _offer(self, seat: Seat) -> None:
        """For each power, the student that can do best with a weaker one."""
        spare = seat.own - seat.need
        if seat.shared or seat.need <= 0 or spare <= EPS:
            return
        for name in seat.held:
            power = self._board.power[name]
            if power not in self._spare or spare > self._spare[power][0] + EPS:
                self._spare[power] = spare, seat


def _latest(board: Board, seat: Seat, power: float) -> str:
    return next(name for name in reversed(seat.held) if board.power[name] == power)


def _trade(board: Board, seat: Seat, weak: str, other: Seat, strong: str) -> None:
    board.take(seat, weak)
    board.take(other, strong)
    board.give(seat, strong)
    board.give(other, weak)
    seat.notes.append(f"teacher {strong} taken over from {other.name} for teacher {weak}")
    other.notes.append(f"teacher {strong} traded for {weak} with {seat.name}, which needs more")


#: A place must be better by this factor to be worth moving two students.
WORTH = 1.5


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
            alike[board.power[seat.held[0]], round(min(seat.need, most), 6)].append(seat)
    for seats in alike.values():
        _sort_by_priority(board, seats)


def _sort_by_priority(board: Board, seats: Iterable[Seat]) -> None:
    """The highest priority takes from the lowest, while there is anything to be gained."""
    buckets: dict[tuple[int, float], list[Seat]] = defaultdict(list)
    for seat in seats:
        buckets[seat.priority, round(board.level(seat), 6)].append(seat)
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
        _change_places(board, seat, other)
        buckets[seat.priority, theirs[1]].append(seat)
        buckets[other.priority, mine[1]].append(other)
        for key in (mine, theirs):
            if not buckets[key]:
                del buckets[key]


def _change_places(board: Board, seat: Seat, other: Seat) -> None:
    mine, theirs = seat.held[0], other.held[0]
    for one, leaves, takes in ((seat, mine, theirs), (other, theirs, mine)):
        board.give(one, takes)
        board.take(one, leaves)
    seat.notes.append(f"teacher {theirs} taken over from {other.name}")
    other.notes.append(f"teacher {theirs} given to {seat.name}, which goes first")
