"""Among teachers of several powers: who has more than it needs trades with who has less."""

from __future__ import annotations

from .board import Board, Seat
from .power import EPS


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
            for less in {board.power(name) for name in seat.held}
            for power, (spare, _) in self._spare.items()
            if EPS < power - less <= spare + EPS
        ]
        if not gains:
            return None
        _, power, less = min(gains)
        other = self._spare[power][1]
        _exchange(board, seat, _latest(board, seat, less), other, _latest(board, other, power))
        return other

    def _offer(self, seat: Seat) -> None:
        """For each power, the student that can do best with a weaker one."""
        spare = seat.own - seat.need
        if seat.shared or seat.need <= 0 or spare <= EPS:
            return
        for name in seat.held:
            power = self._board.power(name)
            if power not in self._spare or spare > self._spare[power][0] + EPS:
                self._spare[power] = spare, seat


def _latest(board: Board, seat: Seat, power: float) -> str:
    return next(name for name in reversed(seat.held) if board.power(name) == power)


def _exchange(board: Board, seat: Seat, weak: str, other: Seat, strong: str) -> None:
    board.take(seat, weak)
    board.take(other, strong)
    board.give(seat, strong)
    board.give(other, weak)
    seat.notes.append(f"teacher {strong} taken over from {other.name} for teacher {weak}")
    other.notes.append(f"teacher {strong} traded for {weak} with {seat.name}, which needs more")
