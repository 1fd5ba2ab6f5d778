"""The placement of teachers on machines (section 3.1 of the paper), as a pure function.

Machines are free or have a teacher; each service demands a number of teachers. If there are too few
machines, each service first gets its least number, by priority, and then, in the same order, the
rest of its demand. A teacher stays where it is if possible. Its machine is taken if its service has
too many, or if a service that goes first lacks one and can use no free machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

#: Seconds for which a new deployment has its least number of teachers without a student, so that
#: its user sees it work. Equal to the default of autoscaling's idle_to_zero_s.
FRESH_S: Final = 120.0
#: For this many seconds under a new leader, a service without a number from autoscaling demands at
#: least the teachers that it has: its own leader and its students may not have returned yet.
HOLD_S: Final = 60.0

#: A machine whose teacher managers have refused for `REFUSED_S` seconds is not used for its service
#: in the next `AVOIDED_S` seconds.
REFUSED_S: Final = 60.0
AVOIDED_S: Final = 120.0

#: Value of a machine for its service, in the order in which machines are taken: it is free; it is
#: more than the service wants; it is wanted; it belongs to the least number of the service.
_FREE, _SPARE, _WANTED, _LEAST = range(4)


@dataclass(frozen=True, slots=True)
class PlacedMachine:
    """A machine with its latest order.

    Attributes:
        machine_id: its name.
        service: service that it was ordered to serve; empty: none, it is free.
        content_id: model content of that order.
        serves: whether its teacher of that service is ready for requests.
        available: whether it takes orders: its owner does not use it, and it is not leaving.
        refuses: services whose teacher it recently could not start, or whose teacher there managers
            refused for long.
        cached: content ids of models in its cache.
    """

    machine_id: str
    service: str = ""
    content_id: str = ""
    serves: bool = False
    available: bool = True
    refuses: frozenset[str] = field(default_factory=frozenset)
    cached: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True, slots=True)
class TeacherDemand:
    """The machines that a service demands.

    Attributes:
        service: name of the service.
        content_id: model content of its teachers.
        least: number of teachers that it gets before others get more than their least number.
        wanted: number of all teachers, at least `least`; 0: it gives back its machines.
        priority: higher priorities go first.
    """

    service: str
    content_id: str
    least: int
    wanted: int
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """A new order for a machine.

    Attributes:
        machine_id: the machine.
        service: service that it serves from now on; empty: none.
        why: the reason, as text.
    """

    machine_id: str
    service: str
    why: str


class RefusedTeachers:
    """Remembers which machines have teachers that managers refuse."""

    def __init__(self) -> None:
        self._since_s: dict[tuple[str, str], float] = {}
        self._until_s: dict[tuple[str, str], float] = {}

    def update(self, refused: Iterable[tuple[str, str]], now: float) -> Set[tuple[str, str]]:
        """Record the (machine, service) whose teacher is refused now; return those to avoid."""
        self._since_s = {pair: self._since_s.get(pair, now) for pair in refused}
        for pair, since_s in self._since_s.items():
            if now - since_s >= REFUSED_S:
                self._until_s[pair] = now + AVOIDED_S
        self._until_s = {pair: until_s for pair, until_s in self._until_s.items() if until_s > now}
        return self._until_s.keys()


def desired_of(
    autoscaled: int | None,
    *,
    least: int,
    has: int,
    students: bool,
    age_s: float,
    led_s: float,
    idle_s: float = FRESH_S,
) -> int:
    """Return how many teachers a service should have: autoscaling's number, else an estimate.

    Args:
        autoscaled: number from autoscaling; None: unknown.
        least: least number of teachers while any are needed.
        has: teachers that it has or is about to have.
        students: whether it has students; ignored if `autoscaled` is given.
        age_s: seconds since it was deployed.
        led_s: seconds since the caller gained the leadership.
        idle_s: seconds after its deployment for which it needs teachers even without a student.
    """
    fresh = age_s < idle_s
    if autoscaled is not None:
        return max(autoscaled, least) if fresh else autoscaled
    least = least if students or fresh else 0
    return max(least, has) if students or led_s < HOLD_S else least


def demand_of(
    service: str,
    content_id: str,
    *,
    least: int,
    most: int,
    desired: int,
    elsewhere: int = 0,
    priority: int = 0,
) -> TeacherDemand:
    """Return the machines that a service demands beside its other teachers.

    If autoscaling wants no teachers, because there are no students, the least number is 0, too.

    Args:
        service: name of the service.
        content_id: model content of its teachers.
        least: least number of its teachers on machines and elsewhere.
        most: greatest number of its teachers on machines and elsewhere.
        desired: number of teachers that it should have, as `desired_of` returns it.
        elsewhere: number of its teachers that are not on machines.
        priority: higher priorities go first.
    """
    if desired == 0:
        least = 0
    total = min(max(desired, least), most)
    return TeacherDemand(
        service,
        content_id,
        max(0, least - elsewhere),
        max(0, total - elsewhere),
        priority,
    )


def place(
    machines: Iterable[PlacedMachine], demands: Iterable[TeacherDemand]
) -> tuple[Change, ...]:
    """Return the new orders, without machines whose order stays.

    An available machine of a service without a demand keeps its order: the service may have a
    deployment that could not be read.

    Args:
        machines: all live machines.
        demands: one demand for each service with a deployment.
    """
    return _Placing(tuple(machines), tuple(demands)).changes()


class _Placing:
    """One computation: gives machines to the demands, by priority."""

    def __init__(self, machines: Sequence[PlacedMachine], demands: Sequence[TeacherDemand]) -> None:
        self._demands = {demand.service: demand for demand in demands}
        self._remaining: dict[str, PlacedMachine] = {}  # not given to a demand yet
        self._to_release: list[PlacedMachine] = []  # machines that take no orders now
        for machine in sorted(machines, key=lambda machine: machine.machine_id):
            if not machine.available:
                if machine.service:
                    self._to_release.append(machine)
            elif not machine.service or machine.service in self._demands:
                self._remaining[machine.machine_id] = machine
        self._present = {name: self._machines_of(demand) for name, demand in self._demands.items()}
        self._values = self._machine_values()
        self._given_counts = dict.fromkeys(self._demands, 0)
        self._stuck: set[str] = set()  # services that can get no more, unless a machine is given
        # machine id -> the machine, its demand and the reason
        self._given: dict[str, tuple[PlacedMachine, TeacherDemand, str]] = {}

    def changes(self) -> tuple[Change, ...]:
        order = sorted(
            self._demands.values(), key=lambda demand: (-demand.priority, demand.service)
        )
        for demand in order:
            self._fill(demand, demand.least)
        for demand in order:
            self._fill(demand, demand.wanted)
        changes = [
            Change(machine.machine_id, demand.service, why)
            for machine, demand, why in self._given.values()
            if not _serves(machine, demand)
        ]
        for machine in self._remaining.values():
            if machine.service:
                changes.append(Change(machine.machine_id, "", self._why_released(machine)))
        for machine in self._to_release:
            changes.append(
                Change(machine.machine_id, "", "its owner uses the machine, or its agent stops")
            )
        return tuple(sorted(changes, key=lambda change: change.machine_id))

    def _machines_of(self, demand: TeacherDemand) -> list[PlacedMachine]:
        """Return the machines of a service, best first."""
        machines = [machine for machine in self._remaining.values() if _serves(machine, demand)]
        return sorted(machines, key=lambda machine: (not machine.serves, machine.machine_id))

    def _machine_values(self) -> Mapping[str, tuple[int, int, int]]:
        """Return machine id -> sort key.

        The machine with the smallest key is taken first; within a service that is its worst one.
        """
        values: dict[str, tuple[int, int, int]] = {}
        for name, machines in self._present.items():
            demand = self._demands[name]
            for rank, machine in enumerate(machines):
                value = (
                    _LEAST if rank < demand.least else _WANTED if rank < demand.wanted else _SPARE
                )
                values[machine.machine_id] = (value, demand.priority, -rank)
        return values

    def _fill(self, demand: TeacherDemand, count: int) -> None:
        for machine in self._present[demand.service]:
            if self._given_counts[demand.service] >= count:
                return
            if machine.machine_id in self._remaining:
                self._give(machine, demand)
        while self._given_counts[demand.service] < count and demand.service not in self._stuck:
            searched = set(self._stuck)
            if not self._give_one(demand, searched):
                self._stuck = searched

    def _give(self, machine: PlacedMachine, demand: TeacherDemand) -> None:
        self._remaining.pop(machine.machine_id, None)
        self._stuck.clear()
        self._given_counts[demand.service] += 1
        self._given[machine.machine_id] = (machine, demand, self._why_given(machine, demand))

    def _give_one(self, demand: TeacherDemand, excluded: set[str]) -> bool:
        """Give one more machine to a demand; return whether that was possible.

        If the service can use none of the remaining machines, it may swap: another service gives it
        a machine and takes one of the remaining. So the order of earlier grants does not matter.
        Machines granted in this computation are swapped before those that their service had.
        `excluded`: services that take part in the swap already.
        """
        if (best := self._best(demand)) is not None:
            self._give(best, demand)
            return True
        excluded.add(demand.service)
        if not self._remaining:
            return False
        given = [(machine, other) for machine, other, _ in self._given.values()]
        for machine, other in sorted(given, key=lambda pair: _swap_key(*pair)):
            usable = other.service not in excluded and demand.service not in machine.refuses
            if usable and self._give_one(other, excluded):
                self._given_counts[other.service] -= 1
                self._give(machine, demand)
                return True
        return False

    def _best(self, demand: TeacherDemand) -> PlacedMachine | None:
        fitting = [
            machine for machine in self._remaining.values() if demand.service not in machine.refuses
        ]
        return min(fitting, key=lambda machine: self._preference(machine, demand), default=None)

    def _preference(self, machine: PlacedMachine, demand: TeacherDemand) -> tuple[object, ...]:
        """Return the sort key of a machine for a demand.

        Free machines come first, and among equals those with the model in their cache.
        """
        default = (_SPARE, 0, 0) if machine.service else (_FREE, 0, 0)
        value = self._values.get(machine.machine_id, default)
        # Machines that refuse many services go first, to leave the others to those services.
        return (
            value,
            demand.content_id not in machine.cached,
            -len(machine.refuses),
            machine.machine_id,
        )

    def _why_given(self, machine: PlacedMachine, demand: TeacherDemand) -> str:
        count = f"teacher {self._given_counts[demand.service]} of {demand.wanted}"
        if not machine.service:
            return f"{count} that {demand.service} wants"
        if machine.service == demand.service:
            return f"{count} that {demand.service} wants, of content {demand.content_id[:12]}"
        return f"{count} that {demand.service} wants; taken from {machine.service}"

    def _why_released(self, machine: PlacedMachine) -> str:
        if machine.service in machine.refuses:
            return f"its teacher of {machine.service} could not start, or was refused"
        return f"{machine.service} wants {self._demands[machine.service].wanted} of the machines"


def _swap_key(machine: PlacedMachine, demand: TeacherDemand) -> tuple[object, ...]:
    """Return the sort key of a granted machine for swaps; the smallest is swapped first."""
    return _serves(machine, demand), machine.serves, machine.machine_id


def _serves(machine: PlacedMachine, demand: TeacherDemand) -> bool:
    """Return whether a machine was ordered to serve this demand, and can serve it."""
    same = machine.service == demand.service and machine.content_id == demand.content_id
    return same and demand.service not in machine.refuses
