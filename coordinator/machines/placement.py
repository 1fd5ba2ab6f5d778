"""The placement of teachers on machines (section 3.1 of the paper), as a pure function.

Machines are free or have a teacher; each service demands a number of teachers. If there are too few
machines, each service first gets its least number, by priority, and then, in the same order, the
rest of its demand. A teacher stays where it is if possible: a machine is only taken from a service
that has too many, or if a service that goes first lacks one and no machine is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

#: Seconds for which a new deployment has its least number of teachers without a student, so that
#: the operator sees it work; the default of autoscaling's idle_to_zero_s.
FRESH_S: Final = 120.0
#: Seconds after the lead was gained in which a service without a number from autoscaling keeps its
#: teachers: its leader and its students may not have returned yet.
HOLD_S: Final = 60.0

#: Value of a machine for its service; machines are taken in this order.
_WAITS, _SPARE, _WANTED, _LEAST = range(4)


@dataclass(frozen=True, slots=True)
class PlacedMachine:
    """A machine with its latest order.

    Attributes:
        machine_id: its name.
        service: service that it was ordered to serve; empty: none, it is free.
        content_id: model content of that order.
        serves: whether its teacher of that service is ready for requests.
        available: whether it takes orders: its owner does not use it, and it is not leaving.
        refuses: services whose teacher it could not start lately.
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
        least: teachers that it has before other services get more than their least number.
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
        led_s: seconds since the caller gained the lead.
        idle_s: seconds without a student after which it needs no teachers.
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
        most: greatest number of these.
        desired: number of teachers that it should have, as `desired_of` returns it.
        elsewhere: number of its teachers that are not on machines.
        priority: higher priorities go first.
    """
    if desired == 0:
        least = 0
    whole = min(max(desired, least), most)
    return TeacherDemand(
        service,
        content_id,
        max(0, least - elsewhere),
        max(0, whole - elsewhere),
        priority,
    )


def place(
    machines: Iterable[PlacedMachine], demands: Iterable[TeacherDemand]
) -> tuple[Change, ...]:
    """Return the new orders; machines whose order stays are left out.

    A machine of a service without a demand keeps its order, as the deployment may just be unknown.

    Args:
        machines: all live machines.
        demands: one demand for each service with a deployment.
    """
    return _Placing(tuple(machines), tuple(demands)).changes()


class _Placing:
    """One computation: gives machines to the demands, by priority."""

    def __init__(self, machines: Sequence[PlacedMachine], demands: Sequence[TeacherDemand]) -> None:
        self._demands = {demand.service: demand for demand in demands}
        self._free: dict[str, PlacedMachine] = {}
        self._given_back: list[PlacedMachine] = []
        for one in sorted(machines, key=lambda one: one.machine_id):
            if not one.available:
                if one.service:
                    self._given_back.append(one)
            elif not one.service or one.service in self._demands:
                self._free[one.machine_id] = one
        self._held = {name: self._holders(demand) for name, demand in self._demands.items()}
        self._worth = self._worths()
        self._has = dict.fromkeys(self._demands, 0)
        self._given: dict[
            str, tuple[PlacedMachine, TeacherDemand, str]
        ] = {}  # by machine: its demand and the reason

    def changes(self) -> tuple[Change, ...]:
        order = sorted(
            self._demands.values(), key=lambda demand: (-demand.priority, demand.service)
        )
        for demand in order:
            self._fill(demand, demand.least)
        for demand in order:
            self._fill(demand, demand.wanted)
        changes = [
            Change(one.machine_id, demand.service, why)
            for one, demand, why in self._given.values()
            if not _holds(one, demand)
        ]
        for one in self._free.values():
            if one.service:
                changes.append(Change(one.machine_id, "", self._why_released(one)))
        for one in self._given_back:
            changes.append(Change(one.machine_id, "", "the machine is used by others"))
        return tuple(sorted(changes, key=lambda change: change.machine_id))

    def _holders(self, demand: TeacherDemand) -> list[PlacedMachine]:
        """Return the machines of a service, best first."""
        its = [one for one in self._free.values() if _holds(one, demand)]
        return sorted(its, key=lambda one: (not one.serves, one.machine_id))

    def _worths(self) -> Mapping[str, tuple[int, int, int]]:
        """Return sort keys of machines: the smallest is taken first, ties from the last kept."""
        worth: dict[str, tuple[int, int, int]] = {}
        for name, holders in self._held.items():
            demand = self._demands[name]
            for rank, one in enumerate(holders):
                kind = (
                    _LEAST if rank < demand.least else _WANTED if rank < demand.wanted else _SPARE
                )
                worth[one.machine_id] = (kind, demand.priority, -rank)
        return worth

    def _fill(self, demand: TeacherDemand, until: int) -> None:
        for one in self._held[demand.service]:
            if self._has[demand.service] >= until:
                return
            if one.machine_id in self._free:
                self._give(one, demand)
        while self._has[demand.service] < until and self._give_one(demand, set()):
            pass

    def _give(self, one: PlacedMachine, demand: TeacherDemand) -> None:
        self._free.pop(one.machine_id, None)
        self._has[demand.service] += 1
        self._given[one.machine_id] = (one, demand, self._why_given(one, demand))

    def _give_one(self, demand: TeacherDemand, excluded: set[str]) -> bool:
        """Give one more machine to a demand; returns whether that was possible.

        If it can use none of the free machines, it may swap: another service gives it a machine and
        takes a free one. So the order of earlier grants does not matter. Machines granted in this
        computation are swapped before those that their service had.
        """
        if (best := self._best(demand)) is not None:
            self._give(best, demand)
            return True
        excluded.add(demand.service)
        if not self._free:
            return False
        of_others = [(one, other) for one, other, _ in self._given.values()]
        for one, other in sorted(of_others, key=lambda pair: _swap_key(*pair)):
            usable = other.service not in excluded and demand.service not in one.refuses
            if usable and self._give_one(other, excluded):
                self._has[other.service] -= 1
                self._give(one, demand)
                return True
        return False

    def _best(self, demand: TeacherDemand) -> PlacedMachine | None:
        fitting = [one for one in self._free.values() if demand.service not in one.refuses]
        return min(fitting, key=lambda one: self._preference(one, demand), default=None)

    def _preference(self, one: PlacedMachine, demand: TeacherDemand) -> tuple[object, ...]:
        """Return the sort key of a machine for a demand: free ones first, then cached models."""
        usual = (_SPARE, 0, 0) if one.service else (_WAITS, 0, 0)
        worth = self._worth.get(one.machine_id, usual)
        # Machines that refuse many services go first, to leave the others to those services.
        return worth, demand.content_id not in one.cached, -len(one.refuses), one.machine_id

    def _why_given(self, one: PlacedMachine, demand: TeacherDemand) -> str:
        count = f"teacher {self._has[demand.service]} of {demand.wanted}"
        if not one.service:
            return f"{count} that {demand.service} wants"
        if one.service == demand.service:
            return f"{count} that {demand.service} wants, of content {demand.content_id[:12]}"
        return f"{count} that {demand.service} wants; taken from {one.service}"

    def _why_released(self, one: PlacedMachine) -> str:
        if one.service in one.refuses:
            return f"it could not start a teacher of {one.service}"
        return f"{one.service} wants {self._demands[one.service].wanted} of the machines"


def _swap_key(one: PlacedMachine, demand: TeacherDemand) -> tuple[object, ...]:
    """Return the sort key of a granted machine for swaps; the smallest is swapped first."""
    return _holds(one, demand), one.serves, one.machine_id


def _holds(one: PlacedMachine, demand: TeacherDemand) -> bool:
    """Return whether a machine was ordered to serve this demand and can."""
    same = one.service == demand.service and one.content_id == demand.content_id
    return same and demand.service not in one.refuses
