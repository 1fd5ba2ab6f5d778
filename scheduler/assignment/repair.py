"""The assignment rule: repair what students hold, with as few moves as fairness needs.

The same procedure serves one new teacher and a service that starts from nothing. Claims are ordered
by class (no teacher; too small a part of one; below the guaranteed `min`; below the need), then by
priority, level, and the number of ranks of the job that must rise together. So every student has a
first teacher before any student has a second. Then come the guarantees: if the sum of all `min`
exceeds the supply, higher priorities are served first, and students of one priority get equal
shares. The rest follows in the same way.

1. Students give back what they do not need. 2. Idle teachers go to the strongest claim. 3. When no
teacher is idle: a light student joins another one; light students make room; the student that would
miss a teacher least gives one to a strictly stronger claim; a student that can do with a weaker
teacher trades; a student without any teacher shares one. 4. Teachers that are idle after that
relieve students that share, where one teacher is all that they need. Each step serves a stronger
claim than it creates, so the procedure ends.

A job is as fast as its slowest rank. So teachers that cannot raise all ranks of a job go to a
smaller job that they can raise as a whole.

Filling all levels from scratch at each change, and matching the result to what is held, would take
fewer rules. With teachers of one power it moves as many. With three powers it moves 8 to 26 times
as many, because each mixture depends on the students filled before, and a change with 10,000
teachers takes 14 times the CPU. Hence the repair.

Teachers that give labels to none of their students take no part. A student keeps such a teacher in
addition to its share, to notice when it answers again, and returns it once it has enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from . import sharing
from .assignment_table import A_PART, BELOW_MIN, NOTHING, SERVED, Board, Seat
from .sharing import Trades, by_priority
from .state import EPS

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
