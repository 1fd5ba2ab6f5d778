"""Who holds what while the rule works: levels, loads and idle teachers of one content.

Everything here is scratch: it is built from the frozen state, changed by the rule, and read back.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from .fleet import EPS, Fleet, Pool, StudentEntry


class Idle:
    """Teachers to be given: of equal ones the longest idle first.

    Args:
        fleet: all teachers.
        pool: those that may ever be idle here.
        held: those that are not now.
    """

    def __init__(self, fleet: Fleet, pool: Pool, held: Container[str]) -> None:
        self._fleet = fleet
        self._powers = sorted(pool.of_power)
        self._of = {
            power: {name: None for name in names if name not in held}
            for power, names in pool.of_power.items()
        }
        # Made when somebody asks for one on a host.
        self._at: dict[tuple[float, str], dict[str, None]] | None = None

    def __bool__(self) -> bool:
        return any(self._of.values())

    def put(self, teacher: str) -> None:
        entry = self._fleet[teacher]
        self._of[entry.power][teacher] = None
        if self._at is not None:
            self._at.setdefault((entry.power, entry.host), {})[teacher] = None

    def take(self, teacher: str) -> None:
        entry = self._fleet[teacher]
        del self._of[entry.power][teacher]
        if self._at is not None:
            del self._at[entry.power, entry.host][teacher]

    def fitting(self, unmet: float, host: str) -> str:
        """The largest not above `unmet`, else the smallest; of equal ones one on the host."""
        powers = [power for power in self._powers if self._of[power]]
        return self._one(max((p for p in powers if p <= unmet + EPS), default=powers[0]), host)

    def enough(self, need: float, host: str) -> str | None:
        """The smallest that is all that somebody needs; None: there is none."""
        for power in self._powers:
            if power >= need - EPS and self._of[power]:
                return self._one(power, host)
        return None

    def _one(self, power: float, host: str) -> str:
        near = self._by_host().get((power, host)) if host else None
        return next(iter(near or self._of[power]))

    def _by_host(self) -> dict[tuple[float, str], dict[str, None]]:
        if self._at is None:
            self._at = {}
            for power, names in self._of.items():
                for name in names:
                    self._at.setdefault((power, self._fleet[name].host), {})[name] = None
        return self._at


_Heap = list[tuple[float, str]]


class Loads:
    """Loads are computed when first asked for, and followed from then on.

    Args:
        fleet: all teachers.
        power: of those that may be held.
        holders: who holds each of those that are held now.
        growing: whether one more may be seated anywhere.
    """

    def __init__(
        self,
        fleet: Fleet,
        power: Mapping[str, float],
        holders: Mapping[str, Sequence[Seat]],
        growing: bool,
    ) -> None:
        self._fleet = fleet
        self._power = power
        self._holders = holders
        self._growing = growing
        self._loads: dict[str, float] = {}
        self._heaps: dict[tuple[float, str], _Heap] | None = None

    def of(self, teacher: str) -> float:
        """How much of its time those that hold it can use; beyond 1 they lack some."""
        load = self._loads.get(teacher)
        if load is None:
            seats = self._holders[teacher]
            load = self._loads[teacher] = sum(self.part(seat, teacher) for seat in seats)
        return load

    def part(self, seat: Seat, teacher: str) -> float:
        """How much of a teacher's time a student can use: 0 to 1."""
        return min(1.0, seat.need / self._power[teacher])

    def may_share(self, teacher: str) -> bool:
        """Whether it is the only teacher of those that hold it, so that one more may sit there."""
        seats = self._holders.get(teacher)
        if not seats:
            return False
        return self._growing or len(seats) > 1 or len(seats[0].held) == 1

    def changed(self, teacher: str, by: float) -> None:
        """Somebody came to hold it, or does so no more."""
        if teacher in self._loads:
            self._loads[teacher] += by
        self.offer(teacher)

    def idle(self, teacher: str) -> None:
        """Nobody holds it any more."""
        self._loads.pop(teacher, None)

    def offer(self, teacher: str) -> None:
        """One more may be seated there now, or its load is another."""
        if self._heaps is not None and self.may_share(teacher):
            entry = self._fleet[teacher]
            for key in {(entry.power, ""), (entry.power, entry.host)}:
                heappush(self._heaps.setdefault(key, []), (self.of(teacher), teacher))

    def least(self, power: float, host: str) -> str | None:
        """Of the teachers of a power where one more may sit the least loaded, a near one if any."""
        if self._heaps is None:
            self._heaps = {}
            for teacher in self._holders:
                if self.may_share(teacher):
                    entry = self._fleet[teacher]
                    for key in {(entry.power, ""), (entry.power, entry.host)}:
                        self._heaps.setdefault(key, []).append((self.of(teacher), teacher))
            for heap in self._heaps.values():
                heapify(heap)
        near, far = self._top((power, host)), self._top((power, ""))
        if near is not None and far is not None and self.of(near) <= self.of(far) + 1e-9:
            return near
        return far

    def _top(self, key: tuple[float, str]) -> str | None:
        heap = (self._heaps or {}).get(key, [])
        while heap:
            load, teacher = heap[0]
            if self._loads.get(teacher) == load and self.may_share(teacher):
                return teacher
            heappop(heap)
        return None


NOTHING, A_PART, BELOW_MIN, BELOW_NEED, SERVED = range(5)
"""Classes of claims, the strongest first; who has only a part of a teacher, and lacks the rest of
it, comes before anyone's second teacher."""


@dataclass(slots=True, eq=False)
class Seat:
    """A student at the board.

    Attributes:
        arrival: its place in the order of arrival.
        held: its teachers, the longest held first.
        aside: teachers that give it no labels, nor anybody else: it keeps them, and they count for
            nothing.
        released: those that were put aside, and that it does not keep.
        own: power of those that serve nobody else.
        notes: what was done to it, in words.
    """

    name: str
    arrival: int
    need: float
    min: int
    priority: int
    host: str
    job: str
    held: list[str] = field(default_factory=list)
    aside: list[str] = field(default_factory=list)
    released: set[str] = field(default_factory=set)
    own: float = 0.0
    shared: int = 0
    notes: list[str] = field(default_factory=list)


class Board:
    """The teachers that serve one content, and the students that are on it.

    Args:
        fleet: all teachers.
        pool: those that serve the content.
        growing: whether nobody may lose anything, so that whoever has none shares with anyone.
    """

    idle: Idle  # once it is open

    def __init__(self, fleet: Fleet, pool: Pool, growing: bool) -> None:
        self.seats: list[Seat] = []
        self.holders: dict[str, tuple[Seat, ...]] = {}
        self.powers = sorted(pool.of_power)
        self.loads = Loads(fleet, pool.power, self.holders, growing)
        self._fleet = fleet
        self._pool = pool
        self._power = pool.power

    # -- building

    def seat(self, name: str, arrival: int, entry: StudentEntry) -> Seat:
        """Bring a student to the board, without any teacher yet."""
        seat = Seat(
            name,
            arrival,
            entry.need,
            entry.min,
            entry.priority,
            entry.host,
            name.rpartition("/")[0] or name,
        )
        self.seats.append(seat)
        return seat

    def believe(self, seat: Seat, teachers: Iterable[str], silent: Set[str]) -> None:
        """What a student holds from before, as far as it is there; before the board is open."""
        if silent:
            given = list(teachers)
            seat.aside = [name for name in given if name in silent and name in self._power]
            teachers = [name for name in given if name not in silent]
        holders, known, alone = self.holders, self._power, (seat,)
        mine = dict.fromkeys(teachers, alone)
        if mine.keys() <= known.keys() and holders.keys().isdisjoint(mine):
            holders.update(mine)  # as below, but there may be ten thousand of them
            seat.held += mine
            seat.own = sum(map(known.__getitem__, mine))
            return
        for name in mine:
            if name in holders:
                self._join(seat, name)
                seat.held.append(name)
            elif name in known:
                holders[name] = alone
                seat.held.append(name)
                seat.own += known[name]

    def open(self) -> None:
        """All that hold something are seated: the other teachers are idle."""
        for seat in self.seats:
            for name in seat.aside:
                self.holders.setdefault(name, ())
        self.idle = Idle(self._fleet, self._pool, self.holders)

    def __len__(self) -> int:
        """How many teachers there are."""
        return len(self._power)

    # -- what is asked

    @property
    def shared(self) -> bool:
        """Whether students outnumber teachers, or light ones sit together."""
        return any(seat.shared for seat in self.seats)

    def power(self, teacher: str) -> float:
        return self._power[teacher]

    def host(self, teacher: str) -> str:
        return self._fleet[teacher].host

    def part(self, seat: Seat, teacher: str) -> float:
        """How much of a teacher's time a student can use: 0 to 1."""
        return self.loads.part(seat, teacher)

    def level(self, seat: Seat) -> float:
        """Power that a student has: its own teachers, and its part of shared ones."""
        if not seat.shared:
            return seat.own
        return seat.own + sum(
            self.power(name) * self.part(seat, name) / max(1.0, self.loads.of(name))
            for name in seat.held
            if len(self.holders[name]) > 1
        )

    def is_served(self, seat: Seat) -> bool:
        return self.level(seat) >= seat.need - EPS

    def least(self, seat: Seat) -> float:
        """Power of the weakest teacher that it holds."""
        return min(map(self._power.__getitem__, seat.held))

    def claim_class(self, seat: Seat, level: float, *, gives: int = 0) -> int:
        """How strong its claim is at a level, or would be after giving so many of its teachers."""
        heads = len(seat.held) - seat.shared - gives
        if heads + seat.shared <= 0:
            return NOTHING
        if level >= seat.need - EPS:
            return SERVED
        if heads == 0:
            return A_PART
        return BELOW_MIN if heads < seat.min else BELOW_NEED

    # -- what is done

    def give(self, seat: Seat, teacher: str) -> None:
        """The student holds the teacher from now on, beside whoever holds it already."""
        if teacher in self.holders:
            self._join(seat, teacher)
        else:
            self.idle.take(teacher)
            self.holders[teacher] = (seat,)
            seat.own += self.power(teacher)
        seat.held.append(teacher)
        self.loads.changed(teacher, self.part(seat, teacher))

    def take(self, seat: Seat, teacher: str) -> None:
        """The student does not hold the teacher any more; held by nobody, it is idle."""
        holders = tuple(other for other in self.holders[teacher] if other is not seat)
        seat.held.remove(teacher)
        if holders:
            self.holders[teacher] = holders
            seat.shared -= 1
            if len(holders) == 1:
                self._owns(holders[0], teacher, True)
            self.loads.changed(teacher, -self.part(seat, teacher))
        else:
            seat.own = seat.own - self.power(teacher) if len(seat.held) > seat.shared else 0.0
            del self.holders[teacher]
            self.loads.idle(teacher)
            self.idle.put(teacher)
        if len(seat.held) == 1:
            self.loads.offer(seat.held[0])

    def release(self, seat: Seat) -> None:
        """The student holds none of those any more that give it no labels."""
        names, seat.aside = seat.aside, []
        seat.released.update(names)
        for name in names:
            if not self.holders[name] and not any(name in other.aside for other in self.seats):
                del self.holders[name]
                self.idle.put(name)

    def _join(self, seat: Seat, teacher: str) -> None:
        seat.shared += 1
        holders = self.holders[teacher]
        if len(holders) == 1:
            self._owns(holders[0], teacher, False)
        self.holders[teacher] = (*holders, seat)

    def _owns(self, seat: Seat, teacher: str, alone: bool) -> None:
        seat.own += self.power(teacher) if alone else -self.power(teacher)
        seat.shared += -1 if alone else 1
        if len(seat.held) == seat.shared:
            seat.own = 0.0


def boards(
    teachers: Fleet,
    students: Mapping[str, StudentEntry],
    silent: Set[str],
    keeping: bool,
    newcomers: Iterable[str],
) -> list[Board]:
    """A board for each content, with what students hold of it.

    Args:
        teachers: all that are known.
        students: all that are known, with what they held.
        silent: teachers that give labels to none of those that hold them.
        keeping: whether what somebody holds already may be held by a newcomer too.
        newcomers: students that say themselves what they hold.
    """
    made: dict[str, Board] = {}
    new = frozenset(newcomers)
    for arrival, (name, entry) in enumerate(students.items()):
        content = entry.content_id
        board = made.get(content)
        if board is None:
            board = made[content] = Board(teachers, teachers.pool(content), keeping)
        seat = board.seat(name, arrival, entry)
        held = entry.teachers
        if name in new and not keeping:
            held = tuple(teacher for teacher in held if teacher not in board.holders)
        board.believe(seat, held, silent)
    for board in made.values():
        board.open()
    return list(made.values())


def silent_teachers(students: Mapping[str, StudentEntry]) -> set[str]:
    """Teachers that give labels to none of those that hold them."""
    entries = students.values()
    silent = {name for one in entries for name in one.unavailable.intersection(one.teachers)}
    if silent:
        silent -= {name for one in entries for name in one.teachers if name not in one.unavailable}
    return silent
