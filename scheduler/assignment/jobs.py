"""A job is as fast as its slowest rank: what cannot lift all of its ranks lifts a smaller job."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from .board import SERVED, Board, Seat
from .claims import Rank, rank


@dataclass(slots=True)
class _Marginal:
    """The ranks of a job at one level: those that were lifted above it, and those that were not."""

    lifted: list[Seat] = field(default_factory=list)
    left: list[Seat] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(self.lifted) + len(self.left)

    @property
    def arrival(self) -> int:
        return min(seat.arrival for seat in (*self.lifted, *self.left))


def whole_jobs(board: Board) -> None:
    """Between equal claims, give the last teachers so that as many jobs as can be are lifted whole.

    Only for teachers of one power: among others, hardly two levels are equal.
    """
    if len(board.powers) != 1 or len({seat.job for seat in board.seats}) == len(board.seats):
        return
    for level in _levels(board).values():
        jobs = list(level.values())
        if any(job.lifted for job in jobs) and any(job.left for job in jobs):
            _concentrate(board, jobs)


def _levels(board: Board) -> dict[Rank, dict[str, _Marginal]]:
    power = board.powers[0]
    levels: dict[Rank, dict[str, _Marginal]] = defaultdict(lambda: defaultdict(_Marginal))
    for seat in board.seats:
        if seat.need <= 0 or seat.shared:
            continue
        claim = rank(board, seat)
        if claim[0] != SERVED:
            levels[claim][seat.job].left.append(seat)
        if len(seat.held) > 1:
            levels[rank(board, seat, power)][seat.job].lifted.append(seat)
    return levels


def _concentrate(board: Board, jobs: list[_Marginal]) -> None:
    whole = sum(not job.left for job in jobs)
    jobs.sort(key=lambda job: (job.size, len(job.left), job.arrival))
    spare, targets = sum(len(job.lifted) for job in jobs), 0
    while targets < len(jobs) and jobs[targets].size <= spare:
        spare -= jobs[targets].size
        targets += 1
    if targets <= whole:
        return
    givers = [seat for job in reversed(jobs[targets:]) for seat in reversed(job.lifted)]
    for job in jobs[:targets]:
        for seat in job.left:
            giver = givers.pop(0)
            teacher = giver.held[-1]
            board.take(giver, teacher)
            board.give(seat, teacher)
            giver.notes.append(f"teacher {teacher} given to {seat.name}, the slowest of its job")
            seat.notes.append(f"teacher {teacher} taken over from {giver.name}")
