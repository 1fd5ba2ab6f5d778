"""The rule: from what is held, with as few moves as it takes, to what is fair.

The same procedure serves one teacher that comes and a service that begins from nothing. Claims are
ordered by class (has nothing, has too small a part of one, below its guaranteed `min`, below its
need), priority, level, and how many ranks of the job must be lifted with it. So everybody has a
first teacher before anyone has a second. Then come the guaranteed ones: where the sum of all `min`
exceeds the supply, the higher priority has its own first, and within a priority all have as much as
each other. Then the rest, in the same way.

1. What is not needed is given back. 2. Idle teachers go to the strongest claim. 3. While there is
none idle: a light student joins another; light students make room; who would miss one least gives
it to a strictly stronger claim; who can do with a weaker one trades; and who has nothing shares.
4. What is idle then relieves those who share, where one teacher is all that they need. Each step
serves a stronger claim than it makes, so this ends.

To fill all levels anew at each change, and to match what is held to them with the fewest moves,
would take fewer rules. Measured: with teachers of one power as many move as here. With three powers
8 to 26 times as many do, as each student's mixture depends on all that were filled before it; and a
change takes 14 times the CPU with 10,000 teachers. So what is held is repaired.

Teachers that give labels to none of their students take no part. Such a student keeps them besides
its share, so that it notices when they label again, and gives them back once it has enough.
"""

from __future__ import annotations

from . import sharing
from .board import A_PART, BELOW_MIN, NOTHING, SERVED, Board, Seat
from .claims import Claims, Givers, Rank, beats, rank, whole_jobs
from .fleet import EPS
from .sharing import Trades, by_priority

#: Two looks do, nearly always; a bound, so that no accident of rounding can hold up a service.
ROUNDS = 20
#: The same for the steps of one look, for each student and teacher.
STEPS = 20

_WHY = {
    NOTHING: "which had none",
    A_PART: "which had only a part of one",
    BELOW_MIN: "which had less than its min",
}


def grow(board: Board) -> None:
    """The rule while teachers register anew: whoever lacks something gets more, nobody less."""
    claims = Claims(board, (seat for seat in board.seats if not seat.shared))
    while (seat := claims.pop()) is not None:
        if board.idle:
            board.give(seat, board.idle.fitting(seat.need - seat.own, seat.host))
        elif not seat.held:
            teacher = sharing.least_loaded(board, seat)
            if teacher is not None:
                board.give(seat, teacher)
            continue
        else:
            continue
        claims.push(seat)


def repair(board: Board) -> None:
    """The rule itself."""
    for seat in board.seats:
        _part(board, seat)
    _settle(board)
    while any(_release(board, seat) for seat in board.seats):
        _settle(board)


def _settle(board: Board) -> None:
    for seat in board.seats:
        _give_back(board, seat)
    if board.power:
        for _ in range(ROUNDS):
            if not _Repair(board).run():
                break
        whole_jobs(board)
        by_priority(board)


class _Repair:
    """One run of the rule over a board."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._claims = Claims(board, board.seats)
        self._givers: Givers | None = None
        self._trades: Trades | None = None
        self._packed = False  # nobody is left to make room, so nobody is looked for
        self._nobody_gives = False  # what one claim is too weak for, weaker ones are too
        self._moved = False  # somebody made room
        self._turned_away = False  # somebody could not be helped
        self._stale = False  # and others have more or less since then
        self._steps = STEPS * (len(board.seats) + len(board.power))

    def run(self) -> bool:
        """Whether another look may find more: somebody made room, or was turned away too early."""
        board = self._board
        while (seat := self._claims.pop()) is not None and self._steps > 0:
            self._steps -= 1
            if board.idle:
                self._take(seat, board.idle.fitting(seat.need - seat.own, seat.host))
            elif not self._help(seat):
                if seat.held and self._all_compete:
                    break  # what is beyond this claim is beyond the weaker ones
                self._turned_away = True
        while board.idle and (relief := sharing.relief(board)) is not None:
            self._take(*relief)
        return self._moved or self._stale

    def _help(self, seat: Seat) -> bool:
        """There is no idle teacher: somebody makes room, gives way, or shares, if at all."""
        board = self._board
        if len(seat.held) == seat.shared:  # nothing, or only a part
            teacher = sharing.roomy(board, seat)
            if teacher is not None:
                self._join(seat, teacher)
                return True
        if not self._packed:
            if sharing.pack(board) is not None:
                self._moved, self._trades, self._nobody_gives = True, None, False
                self._claims.push(seat)
                return True
            self._packed = True
        if self._transfer(seat) or self._trade(seat):
            return True
        teacher = None
        if not seat.held:
            teacher = sharing.least_loaded(board, seat)
        elif seat.shared:
            teacher = sharing.lighter(board, seat)
        if teacher is not None:
            self._join(seat, teacher)
        return teacher is not None

    def _take(self, seat: Seat, teacher: str) -> None:
        """Give an idle teacher; a part of a shared one is left for it."""
        board = self._board
        if seat.shared:
            board.take(seat, seat.held[0])
        board.give(seat, teacher)
        self._settled(seat)

    def _join(self, seat: Seat, teacher: str) -> None:
        """Share a teacher; those who had it alone may claim something then."""
        board = self._board
        holders = board.holders[teacher]
        if seat.held:
            board.take(seat, seat.held[0])
        board.give(seat, teacher)
        seat.notes.append(f"shares teacher {teacher}")
        self._packed, self._moved = False, True
        self._settled(seat)
        if len(holders) == 1:
            self._claims.push(holders[0])

    def _transfer(self, seat: Seat) -> bool:
        if self._nobody_gives:
            return False
        board = self._board
        self._givers = self._givers or Givers(board, board.seats)
        weakest = self._givers.weakest()
        claim = rank(board, seat)
        if weakest is None or not beats(claim, weakest[1]):
            self._nobody_gives = True
            return False
        giver, self._moved = weakest[0], True
        teacher = _to_give(board, giver, claim, seat)
        board.take(giver, teacher)
        giver.notes.append(f"teacher {teacher} given to {seat.name}, {_why(claim, giver)}")
        seat.notes.append(f"teacher {teacher} taken over from {giver.name}")
        if seat.shared:
            board.take(seat, seat.held[0])
        board.give(seat, teacher)
        self._settled(giver)
        self._settled(seat)
        return True

    def _trade(self, seat: Seat) -> bool:
        if self._trades is None:
            self._trades = Trades(self._board)
        other = self._trades.trade(seat)
        if other is None:
            return False
        self._moved = True
        self._settled(other)
        self._settled(seat)
        return True

    @property
    def _all_compete(self) -> bool:
        """Whether claims compete for the same: nobody shares, and nobody is known to trade."""
        return not (self._board.shared or (self._trades and self._trades.anybody))

    def _settled(self, seat: Seat) -> None:
        _give_back(self._board, seat)  # a large teacher may replace small ones
        self._stale, self._trades = self._stale or self._turned_away, None
        self._nobody_gives = False
        self._claims.push(seat)
        if self._givers is not None:
            self._givers.push(seat)


def _part(board: Board, seat: Seat) -> None:
    """Whoever holds several holds none with others: that is left over from a recovery."""
    while seat.shared and len(seat.held) > 1:
        shared = [name for name in seat.held if len(board.holders[name]) > 1]
        teacher = max(shared, key=lambda name: len(board.holders[name]))
        board.take(seat, teacher)
        other = board.holders[teacher][0].name
        seat.notes.append(f"teacher {teacher}, shared during the recovery, left to {other}")


def _give_back(board: Board, seat: Seat) -> None:
    """What a student holds beyond its need is free for others, the longest held last."""
    _release(board, seat)
    if seat.need == 0:
        while seat.held:
            _return(board, seat, seat.held[-1])
        return
    if seat.shared or not seat.held or seat.own - board.powers[0] < seat.need - EPS:
        return
    for teacher in list(reversed(seat.held)):
        if board.claim_class(seat, seat.own - board.power[teacher], gives=1) == SERVED:
            _return(board, seat, teacher)


def _release(board: Board, seat: Seat) -> bool:
    """Who has enough keeps none that gives it no labels."""
    if not seat.aside or not board.is_served(seat):
        return False
    seat.notes.append(f"without {', '.join(seat.aside)}, which gave no labels, it has enough")
    board.release(seat)
    return True


def _return(board: Board, seat: Seat, teacher: str) -> None:
    board.take(seat, teacher)
    seat.notes.append(f"teacher {teacher} not needed any more")


def _to_give(board: Board, giver: Seat, claim: Rank, seat: Seat) -> str:
    """Of those that may be given, the one that fits best; near ones first, then the latest held."""
    unmet = seat.need - seat.own

    def fit(index: int) -> tuple[float, bool, int]:
        name = giver.held[index]
        power = board.power[name]
        waste = unmet - power if power <= unmet else 1e6 + power
        return waste, board.host(name) != seat.host, -index

    allowed = [
        index
        for index, name in enumerate(giver.held)
        if beats(claim, rank(board, giver, board.power[name]))
    ]
    return giver.held[min(allowed, key=fit)]


def _why(claim: Rank, giver: Seat) -> str:
    if claim[0] in _WHY:
        return _WHY[claim[0]]
    return "which goes first" if -claim[1] > giver.priority else "which had less"
