"""In which order students are given teachers and give some up, and which jobs are lifted whole.

A job is as fast as its slowest rank: what cannot lift all of its ranks lifts a smaller job.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .board import NOTHING, SERVED, Board, Seat

#: Class, priority (negative) and level: what a claim is compared by; the smaller is the stronger.
Rank = tuple[int, int, float]


def rank(board: Board, seat: Seat, without: float = 0.0) -> Rank:
    """What a student can claim, or could claim if it gave a teacher of power `without`."""
    level = board.level(seat) - without
    return board.claim_class(seat, level, gives=int(without > 0)), -seat.priority, round(level, 6)


def beats(claim: Rank, other: Rank) -> bool:
    """Whether a teacher is better given to `claim` than left to who would then have `other`.

    Priority decides neither about the first teacher, nor against a level below a guaranteed one.
    """
    if claim[0] == other[0] == NOTHING or claim[0] == SERVED:
        return False
    return claim < other


@dataclass(slots=True)
class _Job:
    """The claims of the students of one job, and how many of them are equal."""

    heap: list[tuple[Rank, int, Seat]] = field(default_factory=list)
    equal: Counter[Rank] = field(default_factory=Counter)


class Claims:
    """All who have less than they need, the strongest claim first.

    Of equal claims the one whose job has the fewest equal ones goes first: a job is as fast as its
    slowest rank, so lifting some of its ranks is worth nothing until all are lifted.
    """

    def __init__(self, board: Board, seats: Iterable[Seat]) -> None:
        self._board = board
        self._jobs: dict[str, _Job] = {}
        for seat in seats:
            if seat.need > 0 and not board.is_served(seat):
                claim = rank(board, seat)
                job = self._jobs.setdefault(seat.job, _Job())
                job.heap.append((claim, seat.arrival, seat))
                job.equal[claim] += 1
        for job in self._jobs.values():
            heapify(job.heap)
        self._heap = [self._best(name) for name in self._jobs]
        heapify(self._heap)

    def pop(self) -> Seat | None:
        """The strongest claim, which is then out of the line; None: there is none."""
        while self._heap:
            entry = heappop(self._heap)
            name = entry[3]
            job = self._jobs[name]
            if not job.heap or entry != self._best(name):
                continue
            claim, _, seat = heappop(job.heap)
            job.equal[claim] -= 1
            self._offer(name)
            if seat.shared and not self._board.is_served(seat):
                return seat  # others came or went where it shares: that is not worth a new place
            if rank(self._board, seat) == claim:
                return seat
            self.push(seat)
        return None

    def push(self, seat: Seat) -> None:
        """Line up (again), if it still needs something."""
        if seat.need <= 0 or self._board.is_served(seat):
            return
        claim = rank(self._board, seat)
        job = self._jobs.setdefault(seat.job, _Job())
        heappush(job.heap, (claim, seat.arrival, seat))
        job.equal[claim] += 1
        self._offer(seat.job)

    def _offer(self, name: str) -> None:
        if self._jobs[name].heap:
            heappush(self._heap, self._best(name))

    def _best(self, name: str) -> tuple[Rank, int, int, str]:
        job = self._jobs[name]
        claim, arrival, _ = job.heap[0]
        return claim, job.equal[claim], arrival, name


class Givers:
    """All who have more than one teacher, the one that would miss one least first."""

    def __init__(self, board: Board, seats: Iterable[Seat]) -> None:
        self._board = board
        self._heap: list[tuple[tuple[int, int, float], int, int, Seat]] = []
        for seat in seats:
            self.push(seat)

    def push(self, seat: Seat) -> None:
        """Offer what it has, as it has it now; what was offered before is forgotten."""
        if len(seat.held) < 2 or seat.shared:
            return
        after = self._after(seat)
        key = (-after[0], -after[1], -after[2])
        heappush(self._heap, (key, -seat.arrival, len(seat.held), seat))

    def weakest(self) -> tuple[Seat, Rank] | None:
        """Who would miss one least, and what it could claim then; it stays in the line."""
        while self._heap:
            key, _, _, seat = self._heap[0]
            if len(seat.held) > 1 and not seat.shared:
                after = self._after(seat)
                if key == (-after[0], -after[1], -after[2]):
                    return seat, after
            heappop(self._heap)
        return None

    def _after(self, seat: Seat) -> Rank:
        return rank(self._board, seat, min(self._board.power[name] for name in seat.held))


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
